"""Remarks about a build that succeeded: warnings, variants without a Mosaic kernel, XLA's kernels.

They are the same for hits as for what was compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count
from pallasc.specs.plain_text import one_line, printable

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.specs.artifacts.artifact import Artifact

_NAMED = 10
_MOST_LISTED = 10
_WRONG = "CompiledWrongly"
_PRODUCT = re.compile(r"(?:^|_)(?:gemm|dot)(?:_|\d|\.|$)")


def remarks(report: Report, *, added: bool = True) -> list[str]:
    """Return a build's remarks, line by line.

    Args:
        report: what the build did.
        added: list the kernels that XLA added around Pallas kernels.
    """
    results = report.results
    xla = _added(results) if added else []
    return [*_without_kernel(results), *xla, *_shown(results)]


def facts(result: VariantResult) -> list[str]:
    """Return the remarks about a variant, in a few words each."""
    lacks = ["no Mosaic kernel"] if holds_no_kernel(result) else []
    number = warning_count([result])
    return [*lacks, count(number, "warning")] if number else lacks


def warning_count(results: Iterable[VariantResult]) -> int:
    """Return how many warnings there were, repeated ones counted."""
    return sum(warning.count for result in results for warning in result.diagnostics)


def holds_no_kernel(result: VariantResult) -> bool:
    """Tell whether a variant was compiled, and no kernel of Mosaic GPU is in it."""
    artifact = result.artifact
    return artifact is not None and all(k.origin != "mosaic" for k in artifact.kernels)


def xla_kernels(artifact: Artifact | None) -> list[str]:
    """Return the names of the kernels that XLA wrote, in the order of first launch."""
    if artifact is None:
        return []
    return list(dict.fromkeys(k.name for k in artifact.kernels if k.origin != "mosaic"))


def _without_kernel(results: Sequence[VariantResult]) -> list[str]:
    matching = [result for result in results if holds_no_kernel(result)]
    if not matching:
        return []
    verb, whose = ("holds", "its") if len(matching) == 1 else ("hold", "their")
    return [
        f"warning: {count(len(matching), 'variant')} {verb} no Pallas Mosaic GPU kernel, XLA wrote "
        f"{whose} code: {names(matching)}"
    ]


def _added(results: Sequence[VariantResult]) -> list[str]:
    """Return the kernels that XLA added, a line for each Pallas kernel."""
    groups: dict[tuple[str, tuple[str, ...]], int] = {}
    for result in results:
        names = () if holds_no_kernel(result) else tuple(xla_kernels(result.artifact))
        if names:
            key = (result.variant.name, names)
            groups[key] = groups.get(key, 0) + 1
    if not groups:
        return []
    shown = list(groups.items())[:_MOST_LISTED]
    lines = [
        f"  {one_line(name)} ({count(number, 'variant')}): {', '.join(map(_described, names))}"
        for (name, names), number in shown
    ]
    more = [f"  and {len(groups) - len(shown):,} more"] if len(groups) > len(shown) else []
    return ["kernels that XLA added around those of Pallas:", *lines, *more]


def _described(name: str) -> str:
    """Return a kernel's name; XLA names those of products after their operation."""
    text = one_line(name)
    return f"{text} (a matrix product)" if _PRODUCT.search(name) else text


def compiled_wrongly(results: Sequence[VariantResult]) -> list[str]:
    """Return the warnings about constructs that JAX compiles wrongly."""
    return _shown(results, _WRONG)


def _shown(results: Sequence[VariantResult], kind: str | None = None) -> list[str]:
    """Return the warnings, or those of one kind, with the variants that they belong to.

    Warnings that JAX compiles a construct wrongly come first.
    """
    groups: dict[tuple[bool, str], list[VariantResult]] = {}
    for result in results:
        for warning in result.diagnostics:
            if kind not in (None, warning.kind):
                continue
            groups.setdefault((warning.kind != _WRONG, str(warning)), []).append(result)
    lines = []
    for (_, text), matching in sorted(groups.items(), key=lambda item: item[0][0])[:_MOST_LISTED]:
        lines += [f"  {line}".rstrip() for line in printable(text).splitlines()]
        lines.append(f"    {count(len(matching), 'variant')}: {names(matching)}")
    if len(groups) > _MOST_LISTED:
        lines.append(f"  and {count(len(groups) - _MOST_LISTED, 'more warning')} (--json has all)")
    return ["warnings:", *lines] if lines else []


def names(results: Sequence[VariantResult]) -> str:
    """Return the ids of the first few results, and how many more there are."""
    named = ", ".join(one_line(result.variant.id) for result in results[:_NAMED])
    more = len(results) - _NAMED
    return f"{named} and {more:,} more" if more > 0 else named
