"""Add the user's lines to findings in PTX.

The lines are no part of a stored result: PTX is the same wherever a kernel's source lies.
They are found by compiling once more (`line_tables`), so only for variants with findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pallasc.errors import PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.compiler.lowering.line_table import LineTable
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


class Locator:
    """Finds the lines of variants, each once.

    Args:
        store: the store of the build.
        timeout_s: how long a variant may take.
    """

    def __init__(self, store: Store, timeout_s: float | None) -> None:
        self._store, self._timeout_s = store, timeout_s
        self._tables: dict[str, Mapping[str, LineTable]] = {}

    def located(
        self, result: LevelResult, artifact: Artifact, variant: Variant | None
    ) -> LevelResult:
        """Return a result with the lines of its findings, as far as they can be found."""
        if variant is None or not any(finding.ptx_line for finding in result.findings):
            return result
        key = f"{variant.id} {variant.base_dir}"
        if key not in self._tables:
            self._tables[key] = self._find(artifact, variant)
        tables = self._tables[key]
        return replace(result, findings=tuple(with_lines(f, tables) for f in result.findings))

    def _find(self, artifact: Artifact, variant: Variant) -> Mapping[str, LineTable]:
        from pallasc.compiler.again.find_lines import find_lines
        from pallasc.compiler.toolchain.setup import prepare

        names = [kernel.name for kernel in artifact.kernels]
        ptx = {
            k.name: artifact.blob(k.ptx).decode()
            for k in artifact.kernels
            if k.ptx and names.count(k.name) == 1  # a finding names its kernel, and no cubin
        }
        try:
            with prepare() as setup:
                (tables,) = find_lines(
                    [(variant, ptx)], setup, self._store, timeout_s=self._timeout_s
                )
        except PallascError:  # there is no compiler: findings are told without lines
            return {}
        return tables


def with_lines(finding: Finding, tables: Mapping[str, LineTable]) -> Finding:
    """Return a finding with the user's lines behind its lines of PTX."""
    table = tables.get(finding.kernel)
    if table is None:
        return finding
    places = tuple(
        replace(place, location=place.location or table.place(place.ptx_line))
        for place in finding.places
    )
    location = finding.location or table.place(finding.ptx_line)
    return replace(finding, location=location, places=places)
