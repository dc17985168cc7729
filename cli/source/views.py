"""The views of `pallasc inspect` that show lines of the source: whose lines, and what of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import echo
from pallasc.errors import NotCachedError, PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.artifacts.source_lines import SourceLines
    from pallasc.specs.spec import Variant

    Found = SourceLines | PallascError

FoundLines = Mapping[str, "Found"]
"""Lines by the id of the variant, or why there are none."""

JSON_LINES = "json-lines"
SOURCE_VIEWS = {"lines": "", "sass-source": "//", "ptx-source": "//"}
"""What is shown with lines of the source, and how a comment begins there."""


def needs_lines(views: Iterable[str]) -> bool:
    """Tell whether a view needs lines of the source."""
    return any(view in SOURCE_VIEWS or view == JSON_LINES for view in views)


def found_lines(
    results: Sequence[VariantResult], store: Store, options: Options, say: Callable[[str], None]
) -> FoundLines:
    """Return the lines of what a build has, found now where the store has none.

    Raises:
        ToolError: the compiler is missing, or a compiling process cannot be started.
    """
    from pallasc.analysis.lines.find import Compiled
    from pallasc.analysis.lines.obtain import obtain_source_lines

    compiled = [
        Compiled(result.variant, result.artifact, result.action_key)
        for result in results
        if result.artifact is not None and result.action_key is not None
    ]
    found = obtain_source_lines(
        compiled, store, jobs=options.jobs, timeout_s=options.timeout_s, say=say
    )
    return {each.variant.id: lines for each, lines in zip(compiled, found, strict=True)}


def held_lines(
    compiled: Iterable[tuple[Variant, Artifact, str | None]], store: Store
) -> FoundLines:
    """Return the lines of what comes without source: those of the store, or of its bundle."""
    from pallasc.analysis.lines.stored import read_source_lines

    found: dict[str, Found] = {}
    for variant, artifact, action_key in compiled:
        if action_key is None:
            lines = artifact.source_lines
            hint = "Make the bundle with: pallasc bundle create --lines"
            where = "its bundle"
        else:
            lines = read_source_lines(store, action_key)
            hint = "Find them where its spec is: pallasc inspect SPECS --lines"
            where = "the store"
        missing = f"{variant.id}: {where} has no source lines of it."
        found[variant.id] = lines or NotCachedError(missing, hint=hint)
    return found


def tell_missing(lines: FoundLines) -> int:
    """Say which variants have no lines, and why; return the exit code."""
    errors = {name: found for name, found in lines.items() if isinstance(found, PallascError)}
    for name, error in errors.items():
        text = str(error)
        echo(text if name in text else f"{name}: {text}", err=True)
    return max((error.exit_code for error in errors.values()), default=0)


def source_view(artifact: Artifact, view: str, lines: Found | None) -> str:
    """Return a view with lines of the source; a remark where there are none."""
    from pallasc.cli.source import text as source_text

    if lines is None or isinstance(lines, PallascError):
        return f"{SOURCE_VIEWS[view]} no source lines".strip()
    views: dict[str, Callable[[Artifact, SourceLines], str]] = {
        "lines": source_text.lines_text,
        "sass-source": source_text.sass_source_text,
        "ptx-source": source_text.ptx_source_text,
    }
    return views[view](artifact, lines)


def lines_record(artifact: Artifact, lines: Found | None) -> object:
    """Return what `--lines --json` tells of an artifact, None where there are no lines."""
    from pallasc.cli.source.text import lines_json

    if lines is None or isinstance(lines, PallascError):
        return None
    return lines_json(artifact, lines)


def fitting(text: str, views: Iterable[str]) -> str:
    """Return lines of the source cut to a terminal's width; tables, and files, stay whole."""
    if not all(view in SOURCE_VIEWS for view in views) or not sys.stdout.isatty():
        return text
    from pallasc.cli.terminal.text_width import ELLIPSIS, cut, width

    columns = os.get_terminal_size(sys.stdout.fileno()).columns
    return "".join(
        line if width(line.rstrip("\n")) <= columns else f"{cut(line, columns - 1)}{ELLIPSIS}\n"
        for line in text.splitlines(keepends=True)
    )
