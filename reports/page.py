"""Makes a report: one HTML page about a build, with the related data from the store.

Names, messages, sources and PTX are untrusted: Jinja2 escapes everything that a template shows, and
the script inserts them as text. The page's content security policy forbids all requests, and all
scripts except the page's two, which it lists by digest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.analysis.compare import Comparison, Difference, compare
from pallasc.analysis.lines import read_source_lines
from pallasc.analysis.nvdisasm import disassemble, disassemble_all
from pallasc.analysis.sass import Codes
from pallasc.analysis.sides import Side, built_side
from pallasc.errors import CorruptError, ToolError
from pallasc.reports.content import (
    COLUMNS,
    Column,
    Content,
    Entry,
    Group,
    columns_of,
    counted,
    duration,
    gather,
    number,
    percent,
    size,
    status_count,
)
from pallasc.reports.drawings import PLOT, Point, draw, varying
from pallasc.reports.variant import Blocks, Data, variant_data
from pallasc.specs.artifacts.source_lines import SourceLines
from pallasc.specs.spelling import one_line
from pallasc.version import installed_version

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.report import Report as CheckReport
    from pallasc.compiler.builds.report import Report

SCHEMA = 1
_HERE = Path(__file__).parent
_SCRIPTS = ("blocks", "tables", "code", "pages")
_MOST_AXES = 8
_TOP = 8
"""Number of variants in a ranking."""
_MOST_ROWS = 40
"""Maximum number of changed variants on the first page."""
_ORDER = {"worse": 0, "mixed": 1, "better": 2, "": 3}
_SEVERITIES = {"error": 0, "warning": 1, "note": 2}


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
        title: the heading; "" for one with the numbers of variants and kernels.
        timing: include when and where the report was made, and how long the build took. If False,
            equal inputs give equal bytes.

    Raises:
        ToolError: a package that makes pages is not installed.
        CorruptError: an artifact is damaged.
    """
    codes = _disassembled(report)
    content = gather(report, checked, codes=codes, title=title, timing=timing)
    comparison = None
    if baseline is not None:
        # Instructions are counted only if there is a disassembler.
        depth = "resources" if codes is None else "mix"
        comparison = compare(baseline, built_side("this report", report.results), depth=depth)
    lines = partial(_lines_of, store=store)
    return render(content, codes, lines, comparison)


def _disassembled(report: Report) -> Codes | None:
    """Return the SASS of all variants, None if there is no disassembler."""
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
    found = {}
    for digest, cubin in cubins.items():
        try:
            found[digest] = disassemble(cubin)
        except CorruptError:
            continue  # The variant's page reports that there is no SASS.
    return found


def _lines_of(entry: Entry, store: Store) -> SourceLines | None:
    """Return the source lines of a variant, None if the store has none that match."""
    if not entry.action_key:
        return None
    return read_source_lines(store, entry.action_key, base_dir=entry.base_dir or None)


def render(
    content: Content,
    codes: Codes | None = None,
    source_lines: Callable[[Entry], SourceLines | None] = lambda entry: None,
    comparison: Comparison | None = None,
) -> str:
    """Return the page.

    Args:
        content: the content of the report.
        codes: SASS by the digest of its cubin; None if there is no disassembler.
        source_lines: returns the source lines of a variant, None if there are none.
        comparison: comparison of a baseline with the report's variants; None without a baseline.

    Raises:
        ToolError: Jinja2 is not installed.
        PallascError: an artifact is damaged.
    """
    require_packages()
    environment = _environment()
    blocks = Blocks()
    changes: Mapping[str, str] = {}
    if comparison is not None:
        changes = _changes(comparison, content, environment)
    template = environment.get_template("variant.html.j2")
    for group in content.groups:
        slugs = [entry.slug for entry in group.entries]
        for at, entry in enumerate(group.entries):
            sheet = {
                **variant_data(entry, codes, source_lines(entry), blocks),
                "before": slugs[at - 1] if at else "",
                "after": slugs[at + 1] if at + 1 < len(slugs) else "",
                "changes": _markup(changes.get(entry.slug, "")),
            }
            page = template.render(group=group, entry=entry, sheet=sheet)
            blocks.add(page, name=f"page-{entry.slug}")
    sheets = {group.slug: _kernel_sheet(group, environment, blocks) for group in content.groups}
    early, script = _script("theme"), "".join(_script(name) for name in _SCRIPTS)
    return str(
        environment.get_template("page.html.j2").render(
            content=content,
            overview={**_overview(content), "changes": _markup(changes.get("", ""))},
            sheets=sheets,
            columns=COLUMNS,
            blocks=blocks,
            version=installed_version(),
            schema=SCHEMA,
            style=_markup((_HERE / "templates" / "style.css").read_text(encoding="utf-8")),
            early_script=_markup(early),
            script=_markup(script),
            hashes=" ".join(map(_source_hash, (early, script))),
        )
    )


def require_packages() -> None:
    """Check that the package for making pages is installed.

    Raises:
        ToolError: Jinja2 is not installed.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise ToolError(
            "pallasc report needs Jinja2, which is not installed.",
            hint="Install it with: pip install 'pallasc[report]'",
        )


def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions = {
        "n": number,
        "size": size,
        "percent": percent,
        "duration": duration,
    }
    environment.filters.update(functions)
    environment.globals.update(
        functions,
        spill_of=lambda entry: size(entry.figures.spill_bytes),
        cubin_of=lambda entry: size(entry.figures.cubin_bytes),
        status_count=status_count,
        plot=PLOT,
        seconds_of=lambda entry: duration(entry.seconds),
    )
    return environment


def _markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def _script(name: str) -> str:
    return (_HERE / "script" / f"{name}.js").read_text(encoding="utf-8")


def _source_hash(script: str) -> str:
    """Return the source expression of a script (Content Security Policy, level 3)."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _kernel_sheet(group: Group, environment: Any, blocks: Blocks) -> Data:
    """Return the data of a kernel's page; `example` is a filter that a reader might write."""
    entries = group.entries
    axes = varying([entry.params for entry in entries])[:_MOST_AXES]
    columns = columns_of(entries)
    charts = _charts(environment, entries, axes, columns)
    first = f"{axes[0]}={entries[0].params[axes[0]]} " if axes else ""
    return {
        "count": counted(len(entries), "variant"),
        "example": f"{first}registers>128 spill>0",
        "charts": blocks.add_json(charts) if charts else "",
        "axes": axes,
        "several_targets": len({entry.target for entry in entries}) > 1,
        "columns": {column.key for column in columns},
    }


def _charts(
    environment: Any, entries: Sequence[Entry], axes: Sequence[str], columns: Sequence[Column]
) -> Mapping[str, list[str]] | None:
    """Return the plots: for each parameter, a list of SVG elements; None if there are none."""
    plotted = [column for column in columns if column.is_plotted]
    if len(entries) < 2 or not plotted:
        return None
    template = environment.get_template("chart.html.j2")
    return {
        axis: [
            template.render(chart=draw(column.label, column.unit, _points(entries, column), axis))
            for column in plotted
        ]
        for axis in axes or [""]
    }


def _points(entries: Sequence[Entry], column: Column) -> list[Point]:
    values = [(entry, column.value(entry)) for entry in entries]
    return [
        Point(
            entry.slug,
            entry.id,
            entry.params,
            value * column.scale if isinstance(value, int | float) else None,
            column.show(entry),
            bool(entry.figures.spill_bytes),
        )
        for entry, value in values
    ]


def _overview(content: Content) -> Data:
    """Return the data of the first page, over all variants."""
    entries = content.entries
    failures = [entry for entry in entries if entry.status != "compiled" or entry.damage]
    checked = sum(bool(entry.levels) for entry in entries)
    return {
        "kernels": list(map(_kernel, content.groups)),
        "failures": failures,
        "not_compiled": f"{len(failures):,} not compiled" if failures else "",
        "spilling": _top(entries, lambda entry: entry.figures.spill_bytes, len(entries)),
        "largest": _top(entries, lambda entry: entry.figures.cubin_bytes),
        "slowest": _top(entries, lambda entry: entry.seconds),
        "findings": _findings(entries),
        "finding_count": sum(len(entry.findings) for entry in entries),
        "checked": checked,
        "checked_note": f"{checked:,} checked" if checked else "not checked",
        "seconds": sum(entry.seconds or 0 for entry in entries),
        "cubin_bytes": sum(entry.figures.cubin_bytes or 0 for entry in entries),
    }


def _kernel(group: Group) -> Data:
    """Return a kernel, with the minimum and maximum of its variants' figures."""
    figures = [entry.figures for entry in group.entries]
    return {
        "group": group,
        "registers": _range([each.registers for each in figures]),
        "occupancy": _range([each.occupancy for each in figures]),
        "smem": _range([each.smem_bytes for each in figures]),
        "cubin": _range([each.cubin_bytes for each in figures]),
        "spilling": sum(bool(each.spill_bytes) for each in figures),
        "findings": sum(len(entry.findings) for entry in group.entries),
        "seconds": sum(entry.seconds or 0 for entry in group.entries),
    }


def _range(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else (None, None)


def _top(
    entries: Sequence[Entry], value: Callable[[Entry], float | None], most: int = _TOP
) -> list[Entry]:
    """Return the variants with the highest values above zero; ties keep their order."""
    ranked = sorted(entries, key=lambda entry: -(value(entry) or 0))
    return [entry for entry in ranked[:most] if value(entry)]


def _findings(entries: Sequence[Entry]) -> list[Data]:
    """Return findings, each once with the variants that have it, errors first."""
    found: dict[tuple[str, ...], Data] = {}
    for entry in entries:
        for row in entry.findings:
            key = (entry.kernel, row.level, row.rule, row.place)
            shared = found.setdefault(key, {"row": row, "entries": []})
            if entry not in shared["entries"][-1:]:
                shared["entries"].append(entry)
    return sorted(found.values(), key=lambda each: _SEVERITIES.get(each["row"].severity, 3))


def _changes(comparison: Comparison, content: Content, environment: Any) -> Mapping[str, str]:
    """Return the changes as HTML, by the slug of a variant; the key "" is for the overview.

    Args:
        comparison: the baseline comes first, the report's variants second.
        content: the report's content.
        environment: the Jinja2 environment of the templates.
    """
    slugs = {entry.id: entry.slug for entry in content.entries}
    baseline = one_line(comparison.first.name)
    found = {one_line(difference.second.id): difference for difference in comparison.differing}
    new = {one_line(subject.id) for subject in comparison.only_second}
    one, several = map(environment.get_template, ("change.html.j2", "changes.html.j2"))
    pages = {
        slugs[name]: one.render(baseline=baseline, difference=found.get(name), is_new=name in new)
        for name in (entry.id for entry in content.entries if entry.artifact is not None)
    }
    rows = sorted(
        (_row(name, difference, slugs) for name, difference in found.items()),
        key=lambda row: _ORDER[row["verdict"]],
    )
    shown = rows[:_MOST_ROWS]
    pages[""] = several.render(
        baseline=baseline, comparison=comparison, rows=shown, hidden=len(rows) - len(shown)
    )
    return pages


def _row(name: str, difference: Difference, slugs: Mapping[str, str]) -> Data:
    what = [
        f"{each.field.replace('_', ' ')} {number(each.before)} → {number(each.after)}"
        for each in difference.numbers
    ]
    if difference.plan:
        what.append("launch plan")
    if difference.kernels and not what:
        what.append("machine code")
    return {
        "slug": slugs.get(name, ""),
        "label": name,
        "verdict": difference.verdict,
        "what": ", ".join(what),
    }
