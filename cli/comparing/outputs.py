"""A comparison as JSON, and as Markdown for a pull request."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from pallasc.cli.comparing.text import by_verdict, code_words, delta, one_sided, summary_line
from pallasc.cli.terminal.output import count
from pallasc.specs.plain_text import one_line
from pallasc.specs.resources import WORDS, Resources

if TYPE_CHECKING:
    from pallasc.analysis.compare.comparison import Comparison, Difference, KernelDifference
    from pallasc.analysis.compare.sides import Side, Subject

_MOST_ROWS = 500
"""GitHub takes one MiB of Markdown from a step."""


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Return a comparison as plain data."""
    verdicts = [difference.verdict for difference in comparison.differing]
    return {
        "first": _side(comparison.first),
        "second": _side(comparison.second),
        "depth": comparison.depth,
        "totals": {
            **{name: verdicts.count(name) for name in ("better", "worse", "mixed")},
            "otherwise": verdicts.count(""),
            "same": comparison.same,
        },
        "only_first": [subject.id for subject in comparison.only_first],
        "only_second": [subject.id for subject in comparison.only_second],
        "variants": [_difference(each) for each in comparison.differing],
    }


def _side(side: Side) -> dict[str, object]:
    return {"name": side.name, "variants": len(side.variants), "notes": list(side.notes)}


def _difference(difference: Difference) -> dict[str, object]:
    pair = difference.pair
    return {
        "first": _subject(pair.first),
        "second": _subject(pair.second),
        "verdict": difference.verdict or None,
        "resources": {
            each.field: {"before": each.before, "after": each.after, "verdict": each.verdict}
            for each in difference.numbers
        },
        "plan": difference.plan,
        "kernels": [_kernel(kernel) for kernel in difference.kernels],
    }


def _subject(subject: Subject | None) -> dict[str, object] | None:
    if subject is None:
        return None
    return {
        "id": subject.id,
        "action_key": subject.action_key,
        "digest": subject.digest,
        "resources": subject.resources._asdict(),
    }


def _kernel(kernel: KernelDifference) -> dict[str, object]:
    return {
        "first": kernel.first.name if kernel.first else None,
        "second": kernel.second.name if kernel.second else None,
        "code": asdict(kernel.code) if kernel.code else None,
        "lines": [
            {"place": place, "before": before, "after": after}
            for place, before, after in kernel.lines
        ],
        "no_lines": kernel.no_lines or None,
        "diff": list(kernel.hunks),
    }


def markdown(comparison: Comparison) -> str:
    """Return a comparison as Markdown: a table of all numbers that changed, worst first."""
    names = [_code(side.name) for side in (comparison.first, comparison.second)]
    lines = [f"### pallasc diff {' → '.join(dict.fromkeys(names))}", "", summary_line(comparison)]
    lines += [
        f"\n> {_cell(n)}" for side in (comparison.first, comparison.second) for n in side.notes
    ]
    rows = by_verdict(comparison)
    if rows:
        lines += ["", *_table(rows[:_MOST_ROWS])]
    if len(rows) > _MOST_ROWS:
        lines += ["", f"And {count(len(rows) - _MOST_ROWS, 'variant')} more."]
    for side, subjects in one_sided(comparison):
        if subjects:
            shown = ", ".join(_code(each.id) for each in subjects[:_MOST_ROWS])
            lines += ["", f"Only in {_code(side.name)}: {shown}"]
    return "\n".join(lines) + "\n"


def _table(rows: list[Difference]) -> list[str]:
    changed = {change.field for row in rows for change in row.numbers}
    fields = [field for field in Resources._fields if field in changed]
    heads = ["variant", "", *(WORDS[field] for field in fields), "code"]
    bars = ["---", "---", *("---:" for _ in fields), "---"]
    return [_row(heads), _row(bars), *(_row(_cells(row, fields)) for row in rows)]


def _cells(row: Difference, fields: list[str]) -> list[str]:
    changes = {change.field: change for change in row.numbers}
    numbers = []
    for field in fields:
        change = changes.get(field)
        if change is None:
            second = row.pair.second
            value = getattr(second.resources, field) if second else None
            numbers.append("" if value is None else f"{value:,}")
        else:
            after = f"**{change.after:,}**" if change.verdict == "worse" else f"{change.after:,}"
            numbers.append(f"{change.before:,} → {after} ({delta(change)})")
    what = [code_words(kernel) for kernel in row.kernels]
    if row.plan:
        what.append("other launch plan")
    return [_code(row.pair.label), row.verdict, *numbers, _cell("; ".join(dict.fromkeys(what)))]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    """Return text as code; a backtick in it would end the code."""
    return f"`{_cell(text).replace('`', chr(39))}`"


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|")
