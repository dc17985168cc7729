"""A comparison as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import TYPE_CHECKING

from pallasc.cli.terminal.output import count
from pallasc.specs.plain_text import one_line
from pallasc.specs.resources import WORDS, Resources

if TYPE_CHECKING:
    from pallasc.analysis.compare.code import CodeDifference
    from pallasc.analysis.compare.comparison import Comparison, Difference, KernelDifference
    from pallasc.analysis.compare.numbers import Change
    from pallasc.analysis.compare.sides import Side, Subject


_VERDICTS = ("worse", "mixed", "better", "")
_COLUMNS = 78
"""How wide lines about the mix may be, without the indent of the variant."""

_WIDEST = max(map(len, WORDS.values()))


def by_verdict(comparison: Comparison) -> list[Difference]:
    """Return the differences, what got worse first."""
    return sorted(comparison.differing, key=lambda each: _VERDICTS.index(each.verdict))


def comparison_lines(comparison: Comparison) -> Iterator[str]:
    """Yield what differs, variant by variant, then what only one side has."""
    for difference in by_verdict(comparison):
        yield one_line(difference.pair.label)
        yield from (f"  {line}" for line in _lines(difference))
    for side, subjects in one_sided(comparison):
        for subject in subjects:
            yield f"only in {one_line(side.name)}: {one_line(subject.id)}"


def one_sided(comparison: Comparison) -> tuple[tuple[Side, tuple[Subject, ...]], ...]:
    """Return each side with the variants that only it has."""
    return (
        (comparison.first, comparison.only_first),
        (comparison.second, comparison.only_second),
    )


def _lines(difference: Difference) -> Iterator[str]:
    for change in difference.numbers:
        before, after = f"{change.before:,}", f"{change.after:,}"
        yield (
            f"{WORDS[change.field]:<{_WIDEST}} {before:>9} → {after:>9} "
            f"{delta(change):>9}  {change.verdict}"
        )
    if difference.plan:
        yield "launch plan differs"
    for kernel in difference.kernels:
        yield from kernel_lines(kernel)


def delta(change: Change) -> str:
    """Return `+8` or `-1,024`."""
    return f"{change.after - change.before:+,}"


def kernel_lines(kernel: KernelDifference) -> Iterator[str]:
    """Yield what is known of a kernel's difference."""
    yield f"{one_line(kernel.name)}: {code_words(kernel)}"
    if kernel.code is not None:
        for line in _mix_lines(kernel.code):
            yield from wrap(line, _COLUMNS, initial_indent="  ", subsequent_indent="      ")
    if kernel.no_lines:
        yield f"  {kernel.no_lines}"
    for place, before, after in kernel.lines:
        yield f"  {before:>6,} → {after:>6,}  {one_line(place)}"
    yield from (f"  {one_line(line)}" for line in kernel.hunks)


def code_words(kernel: KernelDifference) -> str:
    """Say in words how the code of a kernel differs."""
    if kernel.first is None or kernel.second is None:
        return "a new kernel" if kernel.second else "no longer there"
    code = kernel.code
    if code is None:
        return "other machine code"
    if code.verdict == "renamed":
        return "other registers, labels or scheduling alone"
    number = (
        count(code.before, "instruction")
        if code.before == code.after
        else f"{code.before:,} → {count(code.after, 'instruction')}"
    )
    if code.verdict == "reordered":
        return f"{number}, in another order or with other registers"
    return f"{number}; {code.removed:,} removed, {code.added:,} added"


def _mix_lines(code: CodeDifference) -> Iterator[str]:
    if code.mix:
        yield _mix(code.mix)
    for loop in code.loops:
        names = dict.fromkeys((*loop.before, *loop.after))
        rows = [(name, loop.before.get(name, 0), loop.after.get(name, 0)) for name in names]
        what = f"loop {loop.number + 1} (depth {loop.depth})"
        if not loop.before or not loop.after:
            total = sum((loop.after or loop.before).values())
            state = "new" if loop.after else "gone"
            yield f"{what}: {state}, {count(total, 'instruction')}"
        else:
            yield f"{what}: {_mix(row for row in rows if row[1] != row[2])}"


def _mix(rows: Iterable[tuple[str, int, int]]) -> str:
    return ", ".join(f"{name} {before:,} → {after:,}" for name, before, after in rows)


def summary_line(comparison: Comparison) -> str:
    """Return how many variants got better, worse, or stayed as they are."""
    verdicts = [difference.verdict for difference in comparison.differing]
    words = {"worse": "worse", "mixed": "better and worse", "better": "better", "": "otherwise"}
    parts = [
        f"{verdicts.count(verdict):,} {text}"
        for verdict, text in words.items()
        if verdict in verdicts
    ]
    sentences = []
    if parts:
        verb = "differs" if len(verdicts) == 1 else "differ"
        sentences.append(f"{count(len(verdicts), 'variant')} {verb}: {', '.join(parts)}")
    sentences.append(f"{count(comparison.same, 'variant')} the same")
    sentences += [
        f"{len(subjects):,} only in {one_line(side.name)}"
        for side, subjects in one_sided(comparison)
        if subjects
    ]
    return "; ".join(sentences)


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
