"""The end of a build's output; the totals are its last line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pallasc.cli.render.remarks import remarks
from pallasc.cli.terminal.output import count, echo
from pallasc.cli.terminal.screen import STATUS_COLOURS, duration
from pallasc.specs.plain_text import printable

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.terminal.screen import Screen
    from pallasc.compiler.builds.report import Report


def summary(report: Report, screen: Screen | None = None, *, quiet: bool = False) -> str:
    """Return the end of a build's output; one line where nothing stands out.

    Its last line is `3 variants in 1.2 s: 1 hit (33 %), 2 compiled, 14 s saved`.

    Args:
        report: what the build did.
        screen: gives colours, and the columns of a line where they are limited.
        quiet: nothing but what went wrong; an empty text where nothing did.
    """
    if quiet:
        return _summary_of_failures(report, screen)
    lines = [*map(printable, remarks(report))]
    if report.remote is not None and report.remote.requests:
        lines.append(printable(str(report.remote)))
    lines.append(totals_line(report, screen))
    if len(report.hits) == len(report.results):
        return "\n".join(lines)
    from pallasc.cli.render.highlights import highlights

    columns = screen.line_columns if screen else None
    return "\n".join([*map(printable, highlights(report, columns)), *lines])


def _summary_of_failures(report: Report, screen: Screen | None) -> str:
    if not report.exit_code:
        return ""
    from pallasc.cli.render.highlights import highlights

    columns = screen.line_columns if screen else None
    failures = map(printable, highlights(report, columns, failures=True))
    return "\n".join([*failures, totals_line(report, screen)])


def print_notes(report: Report, store: Store) -> None:
    """Print the notes of a build that the store has not warned of already."""
    for note in report.notes:
        if note not in store.warnings:
            echo(f"warning: {note}", err=True)


def totals_line(report: Report, screen: Screen | None = None) -> str:
    """Return the totals as one line; where that is too long, without the time saved."""
    counts = dict.fromkeys(STATUS_COLOURS, 0)
    saved_s = 0.0
    for result in report.results:
        counts[result.status] += 1
        saved_s += result.saved_s if result.status == "hit" else 0.0
    took = f"{report.seconds:.1f} s" if report.seconds < 120 else duration(report.seconds)
    start = f"{count(len(report.results), 'variant')} in {took}: "
    parts = totals_words(counts)
    end = f", {duration(saved_s)} saved" if saved_s >= 0.05 else ""
    columns = screen.line_columns if screen else None
    if columns is not None and len(start + ", ".join(parts.values()) + end) > columns:
        end = ""
    if screen:
        parts = {
            status: screen.paint(text, STATUS_COLOURS[status]) for status, text in parts.items()
        }
    return f"{start}{', '.join(parts.values()) or 'nothing to do'}{end}"


def totals_words(counts: Mapping[str, int]) -> dict[str, str]:
    """Return each count that is not 0 in words; hits with their share of what was finished."""
    parts = {status: f"{number:,} {status}" for status, number in counts.items() if number}
    if counts["hit"]:
        share = counts["hit"] / (sum(counts.values()) - counts["skipped"])
        parts["hit"] = f"{count(counts['hit'], 'hit')} ({int(100 * share)} %)"
    return parts
