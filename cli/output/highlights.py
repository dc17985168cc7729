"""Highlights of a build that compiled something, and explanations of cache misses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pallasc.cli.output.exits import error_line
from pallasc.cli.output.text import count, duration
from pallasc.specs.spelling import one_line

if TYPE_CHECKING:
    from pallasc.cli.output.outcome import Outcome, Run
    from pallasc.compiler.inputs.manifest import Difference, Explanation

_FEW_COMPILED = 5
"""Up to this many result lines are still on the screen and not repeated."""
_FEW_RESULTS = 20
_TOP = 3
_MOST_LISTED = 10


def highlights(run: Run, *, failures: bool = False) -> Iterator[str]:
    """Yield the slowest, largest, and spilling variants, failures, and unfinished variants.

    Args:
        run: record of the build.
        failures: include only failures and unfinished variants.
    """
    compiled = [outcome for outcome in run.outcomes if outcome.status == "compiled"]
    if len(compiled) > _FEW_COMPILED and not failures:
        slowest = _most(compiled, lambda outcome: outcome.seconds)
        yield from _section("slowest", slowest[:_TOP], lambda o: duration(o.seconds))
        largest = _most(compiled, _cubin_bytes)
        yield from _section("largest cubins", largest[:_TOP], lambda o: _bytes(_cubin_bytes(o)))
        spilling = _most(filter(_spill_bytes, compiled), _spill_bytes)
        title = f"{count(len(spilling), 'variant')} with spills"
        yield from _section(title, spilling, lambda o: _bytes(_spill_bytes(o)))
    # After many results, failures may have scrolled out of sight, so they are listed again.
    if len(run.outcomes) > _FEW_RESULTS:
        failed = [outcome for outcome in run.outcomes if outcome.problem == "failure"]
        yield from _section("failed", failed, remark=_why)
    left = [outcome for outcome in run.outcomes if outcome.status == "skipped"]
    why = "interrupted" if run.report.interrupted else "stopped after a failure"
    of = f"{len(left):,} of {len(run.outcomes):,}"
    yield from _section(f"{why}: {of} left; finished variants are kept", left)


def _section(
    title: str,
    outcomes: Sequence[Outcome],
    front: Callable[[Outcome], str] | None = None,
    remark: Callable[[Outcome], str] = lambda outcome: "",
) -> Iterator[str]:
    """Yield a title and the first outcomes, each with text before and after its id."""
    shown = outcomes[:_MOST_LISTED]
    fronts = [front(outcome) for outcome in shown] if front else []
    widest = max(map(len, fronts), default=0)
    if shown:
        yield f"{title}:"
    for number, outcome in enumerate(shown):
        lead = f"{fronts[number]:>{widest}}  " if fronts else ""
        yield f"  {lead}{one_line(outcome.id)}{remark(outcome)}"
    if len(outcomes) > len(shown):
        yield f"  and {len(outcomes) - len(shown):,} more"


def _why(outcome: Outcome) -> str:
    """Return `  kernels.py:5: ValueError: no kernel for (2048,)`."""
    place = outcome.error.location if outcome.error else None
    return f"  {f'{place}: ' if place else ''}{error_line(outcome.error)}"


def _most(outcomes: Iterable[Outcome], measure: Callable[[Outcome], float]) -> list[Outcome]:
    """Return outcomes in descending order of a measure; ties keep their order."""
    return sorted(outcomes, key=lambda outcome: -measure(outcome))


def _cubin_bytes(outcome: Outcome) -> int:
    return outcome.artifact.cubin_bytes if outcome.artifact else 0


def _spill_bytes(outcome: Outcome) -> int:
    return outcome.artifact.spill_bytes if outcome.artifact else 0


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
