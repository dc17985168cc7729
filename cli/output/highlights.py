"""Highlights of a build that compiled something, and explanations of cache misses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import TYPE_CHECKING

from pallasc.cli.output.exits import error_line
from pallasc.cli.output.text import ELLIPSIS, count, cut, duration, shorten, width
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.inputs.why import Difference, Explanation

_FEW_COMPILED = 5
"""Up to this many result lines are still on the screen and not repeated."""
_FEW_RESULTS = 20
_TOP = 3
_MOST_LISTED = 10
_BELOW = "      "
_CAUSE_LINES = 3
"""Maximum number of terminal lines for the cause of a failure."""


def highlights(
    report: Report, columns: int | None = None, *, failures: bool = False
) -> Iterator[str]:
    """Yield the lines of all nonempty sections.

    Args:
        report: report of the build.
        columns: maximum line width; None for no limit.
        failures: include only failures and unfinished variants.
    """
    for section in () if failures else _stands_out(report):
        yield from section.lines(columns)
    # After many results, failures may have scrolled out of sight, so they are listed again.
    failed = report.failed if len(report.results) > _FEW_RESULTS else ()
    if columns is None:
        yield from _Section("failed", failed, remark=_why).lines(None)
    elif failed:
        yield from _narrow_failures(failed, columns)
    yield from _left(report).lines(columns)


@dataclass(frozen=True, slots=True)
class _Section:
    """A title and a list of results, each with text before and after its id."""

    title: str
    results: Sequence[VariantResult]
    front: Callable[[VariantResult], str] = lambda result: ""
    remark: Callable[[VariantResult], str] = lambda result: ""

    def lines(self, columns: int | None) -> list[str]:
        """Return the lines of the section, none if it has no results; each fits into `columns`."""
        shown = self.results[:_MOST_LISTED]
        if not shown:
            return []
        widest = max(width(self.front(result)) for result in shown)
        lines = [self._line(result, widest, columns) for result in shown]
        if len(self.results) > len(shown):
            lines.append(f"  and {len(self.results) - len(shown):,} more")
        return [f"{self.title}:", *lines]

    def _line(self, result: VariantResult, widest: int, columns: int | None) -> str:
        front = f"  {self.front(result):>{widest}}  " if widest else "  "
        name, remark = one_line(result.variant.id), self.remark(result)
        if columns is not None:
            remark = cut(
                remark, max(columns - len(front) - width(name), (columns - len(front)) // 2)
            )
            name = shorten(name, columns - len(front) - width(remark))
        return f"{front}{name}{remark}"


def _stands_out(report: Report) -> list[_Section]:
    """Return the slowest, the largest and all spilling variants that this build compiled."""
    compiled = [result for result in report.compiled if result.artifact is not None]
    if len(compiled) <= _FEW_COMPILED:
        return []
    spilling = [result for result in compiled if _spilled(result)]
    return [
        _Section("slowest", _most(compiled, _seconds)[:_TOP], lambda r: duration(r.seconds)),
        _Section("largest cubins", _most(compiled, _size)[:_TOP], lambda r: _bytes(_size(r))),
        _Section(
            f"{count(len(spilling), 'variant')} with spills",
            _most(spilling, _spilled),
            lambda r: _bytes(_spilled(r)),
        ),
    ]


def _narrow_failures(failed: Sequence[VariantResult], columns: int) -> list[str]:
    """Return the failed variants, grouped by kernel and cause.

    Args:
        failed: failed results.
        columns: maximum line width.
    """
    groups: dict[object, list[VariantResult]] = {}
    for result in failed:
        groups.setdefault((result.variant.name, _cause(result)), []).append(result)
    lines = ["failed:"]
    for first, *others in list(groups.values())[:_MOST_LISTED]:
        cause = _why(first, short=True).strip()
        more = f" and {len(others):,} more" if others else ""
        name = f"  {one_line(first.variant.id)}{more}"
        if width(name) + width(cause) + 2 <= columns:
            lines.append(f"{name}  {cause}")
            continue
        lines.append(f"  {shorten(one_line(first.variant.id), columns - 2 - width(more))}{more}")
        room = columns - len(_BELOW)
        room = max(1, room if cause.isascii() else room // 2)  # characters, which may be wide
        wrapped = wrap(cause, room, max_lines=_CAUSE_LINES, placeholder=ELLIPSIS)
        lines += [cut(f"{_BELOW}{line}", columns) for line in wrapped]
    if len(groups) > _MOST_LISTED:
        left = sum(len(results) for results in list(groups.values())[_MOST_LISTED:])
        lines.append(f"  and {left:,} more")
    return lines


def _left(report: Report) -> _Section:
    """Return the variants that the build did not finish."""
    why = "interrupted" if report.interrupted else "stopped after a failure"
    of = f"{len(report.skipped):,} of {len(report.results):,}"
    return _Section(f"{why}: {of} left; finished variants are kept", report.skipped)


def _why(result: VariantResult, *, short: bool = False) -> str:
    """Return `  kernels.py:5: ValueError: no kernel for (2048,)`, without folders if `short`."""
    error = result.error
    if error is None:
        return ""
    place = error.location
    if place is not None and short:
        place = replace(place, file=os.path.basename(place.file))
    where = f"{place}: " if place else ""
    return f"  {where}{error_line(error)}"


def _cause(result: VariantResult) -> object:
    """Return a key for failures with one cause: location and type of the error.

    Messages are ignored because they may contain sizes that differ between variants. Errors without
    a source line, or at the kernel's line in its spec, are distinguished by message.
    """
    error = result.error
    if error is None:
        return None
    first = error_line(error)
    if error.location in (None, result.variant.location):
        return first
    return error.location, first.partition(":")[0]


def _most(
    results: Iterable[VariantResult], measure: Callable[[VariantResult], float]
) -> list[VariantResult]:
    """Return results in descending order of a measure; ties keep their order."""
    return sorted(results, key=lambda result: -measure(result))


def _seconds(result: VariantResult) -> float:
    return result.seconds


def _size(result: VariantResult) -> int:
    return result.artifact.cubin_bytes if result.artifact else 0


def _spilled(result: VariantResult) -> int:
    return result.artifact.spill_bytes if result.artifact else 0


def _bytes(number: int) -> str:
    return count(number, "byte")


_TOOLCHAIN = ("tool ", "variable ")
"""Label prefixes of fields that are the same for all variants of a build."""
_DATA = "data "
"""Label prefix of a data file; the values of such fields are digests."""
_EXCERPT = 100
"""Maximum number of characters shown of a long value."""


def difference_lines(explanation: Explanation) -> list[str]:
    """Return the indented differences from the nearest stored entry, except those in the reason."""
    reason = explanation.reason
    lines = [f"      {sentence}" for sentence in explanation.sources if sentence != reason]
    if explanation.sources:
        lines.append(
            "      a build lowers it again, and compiles only if that gives something else"
        )
    for difference in explanation.fields:
        if difference.label.startswith(_TOOLCHAIN) and explanation.toolchain:
            continue  # the reason contains the names and versions
        if difference.label.startswith(_DATA):
            lines.append(f"      {_data_change(difference)}")
            continue
        stored, now = excerpts(difference.stored, difference.now)
        lines += [
            f"      {difference.label}",
            f"        stored: {stored}",
            f"        now:    {now}",
        ]
    return lines


def _data_change(difference: Difference) -> str:
    """Describe the change of a data file; its digests are not useful to the user."""
    name = one_line(difference.label.removeprefix(_DATA))
    if difference.stored is None:
        return f"{name} is new in the spec"
    return f"{name} {'is no longer in the spec' if difference.now is None else 'has changed'}"


def excerpts(stored: str | None, now: str | None) -> tuple[str, str]:
    """Shorten two different values to the text around their first difference."""
    if stored is None or now is None:
        return _excerpt(stored, 0), _excerpt(now, 0)
    pairs = enumerate(zip(stored, now, strict=False))
    shared = next((at for at, (a, b) in pairs if a != b), min(len(stored), len(now)))
    return _excerpt(stored, shared), _excerpt(now, shared)


def _excerpt(value: str | None, around: int) -> str:
    if value is None:
        return "(absent)"
    if len(value) <= _EXCERPT:
        return value
    start = max(0, min(around - _EXCERPT // 3, len(value) - _EXCERPT))
    end = start + _EXCERPT
    return f"{'…' if start else ''}{value[start:end]}{'…' if end < len(value) else ''}"
