"""The whole page as text: templates, style and script with the data of a report.

Names, messages, sources and PTX are untrusted: Jinja2 escapes everything that a template shows, and
the script inserts them as text. The page's content security policy forbids all requests, and all
scripts except the page's two, which it lists by digest.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallasc.analysis.compare import Comparison
from pallasc.analysis.sass import Codes
from pallasc.errors import ToolError
from pallasc.reports import words
from pallasc.reports.blocks import Blocks
from pallasc.reports.changes import changes_of
from pallasc.reports.charts import Point, draw, varying
from pallasc.reports.code import CodeSheet, code_of
from pallasc.reports.columns import COLUMNS, Column, columns_of
from pallasc.reports.content import Content, Entry, Group
from pallasc.reports.overview import overview_of
from pallasc.reports.sheet import Sheet, launch_sheet, launches_of, plan_of, tiles_of
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.source_lines import SourceLines
from pallasc.version import installed_version

SCHEMA = 1
_HERE = Path(__file__).parent
_SCRIPTS = ("blocks", "tables", "code", "pages")
_MOST_AXES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Data from records other than the artifacts; each may be missing.

    Attributes:
        codes: SASS by the digest of its cubin; None if there is no disassembler.
        source_lines: returns the source lines of a variant, None if there are none.
        comparison: of a baseline with the report's variants; None without a baseline.
    """

    codes: Codes | None = None
    source_lines: Callable[[Entry], SourceLines | None] = lambda entry: None
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class _KernelSheet:
    count: str
    example: str
    charts: str
    axes: tuple[str, ...]
    several_targets: bool
    columns: frozenset[str]


def render(content: Content, extras: Extras) -> str:
    """Return the page.

    Raises:
        ToolError: Jinja2 or pygal is not installed.
        PallascError: an artifact is damaged.
    """
    require_packages()
    environment = _environment()
    blocks = Blocks()
    changes: Mapping[str, str] = {}
    if extras.comparison is not None:
        changes = changes_of(extras.comparison, content, environment)
    for group in content.groups:
        _add_pages(environment, group, extras, changes, blocks)
    sheets = {group.slug: _kernel_sheet(group, blocks) for group in content.groups}
    early, script = _script("theme"), "".join(_script(name) for name in _SCRIPTS)
    return str(
        environment.get_template("page.html.j2").render(
            content=content,
            overview=overview_of(content, _markup(changes.get("", ""))),
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
    """Check that the packages for making pages are installed.

    Raises:
        ToolError: Jinja2 or pygal is not.
    """
    for name, package in (("jinja2", "Jinja2"), ("pygal", "pygal")):
        if importlib.util.find_spec(name) is None:
            raise ToolError(
                f"pallasc report needs {package}, which is not installed.",
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
        "n": words.number,
        "size": words.size,
        "percent": words.percent,
        "duration": words.duration,
    }
    environment.filters.update(functions)
    environment.globals.update(
        functions,
        spill_of=lambda entry: words.size(entry.figures.spill_bytes),
        cubin_of=lambda entry: words.size(entry.figures.cubin_bytes),
        status_count=words.status_count,
        seconds_of=lambda entry: words.duration(entry.seconds),
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


def _add_pages(
    environment: Any, group: Group, extras: Extras, changes: Mapping[str, str], blocks: Blocks
) -> None:
    template = environment.get_template("variant.html.j2")
    for number, entry in enumerate(group.entries):
        before = group.entries[number - 1].slug if number else ""
        after = group.entries[number + 1].slug if number + 1 < len(group.entries) else ""
        sheet = _sheet(entry, before, after, extras, changes.get(entry.slug, ""), blocks)
        page = template.render(group=group, entry=entry, sheet=sheet)
        blocks.add(page, name=f"page-{entry.slug}")


def _sheet(
    entry: Entry, before: str, after: str, extras: Extras, changed: str, blocks: Blocks
) -> Sheet:
    params = ", ".join(f"{name}={value}" for name, value in entry.params.items())
    changes = _markup(changed)
    artifact = entry.artifact
    if artifact is None:
        return Sheet(params=params, before=before, after=after, changes=changes)
    source = extras.source_lines(entry)
    launches = [
        launch_sheet(number, times, entry, artifact, source)
        for number, times in launches_of(artifact)
    ]
    return Sheet(
        params=params,
        before=before,
        after=after,
        changes=changes,
        tiles=tiles_of(entry),
        launches=tuple(launches),
        plan=plan_of(artifact),
        code=tuple(_code(artifact, source, extras, blocks)),
    )


def _code(
    artifact: Artifact, source: SourceLines | None, extras: Extras, blocks: Blocks
) -> list[CodeSheet]:
    kernels = sorted(artifact.kernels, key=lambda kernel: kernel.origin != "mosaic")
    return [code_of(kernel, artifact, extras.codes, source, blocks) for kernel in kernels]


def _kernel_sheet(group: Group, blocks: Blocks) -> _KernelSheet:
    entries = group.entries
    axes = varying([entry.params for entry in entries])[:_MOST_AXES]
    columns = columns_of(entries)
    return _KernelSheet(
        words.counted(len(entries), "variant"),
        _example(group, axes),
        _charts(entries, axes, columns, blocks),
        tuple(axes),
        len({entry.target for entry in entries}) > 1,
        frozenset(column.key for column in columns),
    )


def _example(group: Group, axes: Sequence[str]) -> str:
    """Return a filter that a reader might write."""
    first = f"{axes[0]}={group.entries[0].params[axes[0]]} " if axes else ""
    return f"{first}registers>128 spill>0"


def _charts(
    entries: Sequence[Entry], axes: Sequence[str], columns: Sequence[Column], blocks: Blocks
) -> str:
    """Return the block with the plots: JSON, for each parameter a list of SVG elements."""
    plotted = [column for column in columns if column.is_plotted]
    if len(entries) < 2 or not plotted:
        return ""
    return blocks.add_json(
        {
            axis: [draw(column.measure, _points(entries, column), axis) for column in plotted]
            for axis in axes or [""]
        }
    )


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
