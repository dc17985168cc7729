"""What is worth a word although a build succeeded: warnings, no kernel of Pallas's, XLA's kernels.

The same of hits as of what was compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count
from pallasc.specs.plain_text import one_line, printable

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.specs.artifacts.artifact import Artifact

_NAMED = 10
_MOST_LISTED = 10


def remarks(report: Report, *, warnings: bool = False, added: bool = True) -> list[str]:
    """Return the lines that say what stands out of results that did not fail, [] for nothing.

    Args:
        report: what the build did.
        warnings: show all that was said while variants were compiled, instead of counting it.
        added: list what XLA added around Pallas kernels.
    """
    lines = _without_kernel(report.results)
    if added:
        lines += _added(report.results)
    return lines + (_shown(report.results) if warnings else _counted(report.results))


def facts(result: VariantResult) -> list[str]:
    """Return the same of one variant, as short as it can be."""
    lacks = ["no Mosaic kernel"] if holds_no_kernel(result) else []
    number = warning_count([result])
    return [*lacks, count(number, "warning")] if number else lacks


def warning_count(results: Iterable[VariantResult]) -> int:
    """Return how many warnings there were, repeated ones counted."""
    return sum(one.count for result in results for one in result.diagnostics)


def holds_no_kernel(result: VariantResult) -> bool:
    """Tell whether a variant was compiled, and no kernel of Mosaic GPU is in it."""
    artifact = result.artifact
    return artifact is not None and all(one.origin != "mosaic" for one in artifact.kernels)


def xla_kernels(artifact: Artifact | None) -> list[str]:
    """Return the names of the kernels that XLA wrote, in the order of first launch."""
    if artifact is None:
        return []
    return list(dict.fromkeys(one.name for one in artifact.kernels if one.origin != "mosaic"))


def _without_kernel(results: Sequence[VariantResult]) -> list[str]:
    found = [result for result in results if holds_no_kernel(result)]
    if not found:
        return []
    verb, whose = ("holds", "its") if len(found) == 1 else ("hold", "their")
    return [
        f"warning: {count(len(found), 'variant')} {verb} no Pallas Mosaic GPU kernel, XLA wrote "
        f"{whose} code: {_names(found)}"
    ]


def _added(results: Sequence[VariantResult]) -> list[str]:
    """Return what XLA added, a line for each kernel and set of additions."""
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
        f"  {one_line(name)} ({count(number, 'variant')}): {', '.join(map(one_line, names))}"
        for (name, names), number in shown
    ]
    more = [f"  and {len(groups) - len(shown):,} more"] if len(groups) > len(shown) else []
    return ["kernels that XLA added around those of Pallas:", *lines, *more]


def _counted(results: Sequence[VariantResult]) -> list[str]:
    found = [result for result in results if result.diagnostics]
    if not found:
        return []
    number = count(warning_count(found), "warning")
    return [f"{number} in {count(len(found), 'variant')}: pallasc build --warnings shows them"]


def _shown(results: Sequence[VariantResult]) -> list[str]:
    """Return every warning, with the variants that it belongs to."""
    groups: dict[str, list[VariantResult]] = {}
    for result in results:
        for one in result.diagnostics:
            groups.setdefault(str(one), []).append(result)
    lines = []
    for text, found in groups.items():
        lines += [f"  {line}".rstrip() for line in printable(text).splitlines()]
        lines.append(f"    {count(len(found), 'variant')}: {_names(found)}")
    return ["warnings:", *lines] if lines else []


def _names(results: Sequence[VariantResult]) -> str:
    named = ", ".join(one_line(result.variant.id) for result in results[:_NAMED])
    more = len(results) - _NAMED
    return f"{named} and {more:,} more" if more > 0 else named
