"""Make a report: a build, with the related data in the store, as one page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pallasc.analysis.sass import Codes
from pallasc.errors import CorruptError, ToolError
from pallasc.reports.content import Entry
from pallasc.reports.gather import gather
from pallasc.reports.page import Extras, render

if TYPE_CHECKING:
    from pallasc.analysis.compare import Comparison
    from pallasc.analysis.sides import Side
    from pallasc.cache.store import Store
    from pallasc.checks.report import Report as CheckReport
    from pallasc.compiler.builds.report import Report
    from pallasc.specs.artifacts.source_lines import SourceLines


def make_report(
    report: Report,
    store: Store,
    *,
    checked: CheckReport | None = None,
    baseline: Side | None = None,
    title: str = "",
    timing: bool = True,
) -> str:
    """Return the page about a build, as HTML.

    Args:
        report: the report of the build.
        store: the store with the source lines of its variants.
        checked: stored results of checks.
        baseline: the variants to compare with, None for none.
        title: the heading; "" for one that counts.
        timing: include when and where it was made, and how long the build took. If False, equal
            inputs give equal bytes.

    Raises:
        ToolError: a package that makes pages is not installed.
        CorruptError: an artifact is damaged.
    """
    codes = disassembled(report)
    content = gather(report, checked, codes=codes, title=title, timing=timing)
    comparison = _compared(baseline, report, has_code=codes is not None) if baseline else None
    lines = partial(_lines_of, store=store)
    return render(content, Extras(codes=codes, source_lines=lines, comparison=comparison))


def _compared(baseline: Side, report: Report, *, has_code: bool) -> Comparison:
    """Return the changes; instructions are counted only if there is a disassembler."""
    from pallasc.analysis.compare import compare
    from pallasc.analysis.sides import built_side

    depth = "mix" if has_code else "resources"
    return compare(baseline, built_side("this report", report.results), depth=depth)


def disassembled(report: Report) -> Codes | None:
    """Return the SASS of all variants, None if there is no disassembler."""
    from pallasc.analysis.nvdisasm import disassemble_all

    cubins = {
        kernel.cubin: result.artifact.blob(kernel.cubin)
        for result in report.results
        if result.artifact is not None
        for kernel in result.artifact.kernels
    }
    try:
        return disassemble_all(cubins)
    except ToolError:
        return None
    except CorruptError:
        return _one_by_one(cubins)


def _one_by_one(cubins: Mapping[str, bytes]) -> Codes:
    """Return the SASS of those cubins that can be disassembled."""
    from pallasc.analysis.nvdisasm import disassemble

    found = {}
    for digest, cubin in cubins.items():
        try:
            found[digest] = disassemble(cubin)
        except CorruptError:
            continue  # its page reports that there is none
    return found


def _lines_of(entry: Entry, store: Store) -> SourceLines | None:
    """Return the source lines of a variant, None if the store has none that match."""
    from pallasc.analysis.lines import read_source_lines

    if not entry.action_key:
        return None
    return read_source_lines(store, entry.action_key, base_dir=entry.base_dir or None)
