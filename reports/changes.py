"""Changes since a baseline, as HTML for the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pallasc.analysis.compare.comparison import Comparison, Difference
from pallasc.reports.content import Content
from pallasc.reports.words import number
from pallasc.specs.spelling import one_line

_MOST_ROWS = 40
_ORDER = {"worse": 0, "mixed": 1, "better": 2, "": 3}


class Row(NamedTuple):
    """A variant that differs: its page, its name, better or worse, and the differences."""

    slug: str
    label: str
    verdict: str
    what: str


def changes_of(comparison: Comparison, content: Content, environment: Any) -> Mapping[str, str]:
    """Return the changes as HTML, by the slug of a variant; the key "" is for the overview.

    Args:
        comparison: the baseline comes first, the report's variants second.
        content: the report's content.
        environment: the Jinja2 environment of the templates.
    """
    slugs = {entry.id: entry.slug for entry in content.entries}
    baseline = one_line(comparison.first.name)
    found = {_id(difference): difference for difference in comparison.differing}
    new = {one_line(subject.id) for subject in comparison.only_second}
    one, several = map(environment.get_template, ("change.html.j2", "changes.html.j2"))
    pages = {
        slugs[name]: one.render(baseline=baseline, difference=found.get(name), is_new=name in new)
        for name in (entry.id for entry in content.entries if entry.artifact is not None)
    }
    rows = sorted(
        (_row(name, difference, slugs) for name, difference in found.items()),
        key=lambda row: _ORDER[row.verdict],
    )
    shown = rows[:_MOST_ROWS]
    pages[""] = several.render(
        baseline=baseline, comparison=comparison, rows=shown, hidden=len(rows) - len(shown)
    )
    return pages


def _id(difference: Difference) -> str:
    second = difference.pair.second
    return one_line(second.id if second is not None else difference.pair.label)


def _row(name: str, difference: Difference, slugs: Mapping[str, str]) -> Row:
    words = [
        f"{each.field.replace('_', ' ')} {number(each.before)} → {number(each.after)}"
        for each in difference.numbers
    ]
    if difference.plan:
        words.append("launch plan")
    if difference.kernels and not words:
        words.append("machine code")
    return Row(slugs.get(name, ""), name, difference.verdict, ", ".join(words))
