"""Differences in the machine code of a kernel.

Code is compared in three steps, and the first that finds no difference decides:

* `same`: the bytes are equal;
* `renamed`: the normal form is equal (`sass/normal.py`): registers, labels or scheduling differ;
* `reordered`: both have the same instructions apart from register names, in another order or with
  other registers; otherwise `changed`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import Literal

from pallasc.analysis.compare.pairing import paired
from pallasc.analysis.sass.classes import CLASSES, classify
from pallasc.analysis.sass.instructions import Code, Instruction
from pallasc.analysis.sass.loops import Loop, loops
from pallasc.analysis.sass.normal import normalised

Verdict = Literal["same", "renamed", "reordered", "changed"]

_REGISTER = re.compile(r"(?<![\w.$])(UR|R|UP|P|B|SB)\d+\b")
_LABEL = re.compile(r"`\(\.L_\w+\)|^L\d+: ")
_CONTEXT = 3


@dataclass(frozen=True, slots=True)
class LoopChange:
    """A loop whose mix differs; the counts are empty for a side without this loop.

    Attributes:
        number: its index among the loops of the second side, from 0; if the second side has no such
            loop, among the loops of the first.
        depth: 1 for an outermost loop.
        before, after: the number of instructions of each class.
    """

    number: int
    depth: int
    before: dict[str, int]
    after: dict[str, int]


@dataclass(frozen=True, slots=True)
class CodeDifference:
    """The difference between the code of two kernels.

    Attributes:
        verdict: see the module's docstring.
        before, after: the number of instructions on each side.
        removed, added: the number of instructions that only the first or only the second has, apart
            from register names.
        mix: classes whose counts differ, with both counts.
        loops: loops whose mix differs.
    """

    verdict: Verdict
    before: int = 0
    after: int = 0
    removed: int = 0
    added: int = 0
    mix: tuple[tuple[str, int, int], ...] = ()
    loops: tuple[LoopChange, ...] = ()


def compare_code(first: Code, second: Code) -> CodeDifference:
    """Compare the code of two kernels whose bytes differ, so the verdict is never `same`."""
    texts = normalised(first), normalised(second)
    counts = len(first.instructions), len(second.instructions)
    if texts[0] == texts[1]:
        return CodeDifference("renamed", *counts)
    shapes = Counter(map(_shape, texts[0])), Counter(map(_shape, texts[1]))
    removed, added = (shapes[0] - shapes[1]).total(), (shapes[1] - shapes[0]).total()
    return CodeDifference(
        "changed" if removed or added else "reordered",
        *counts,
        removed,
        added,
        _mix_changes(first.instructions, second.instructions),
        _loop_changes(loops(first), loops(second)),
    )


def _shape(text: str) -> str:
    """Return an instruction without register and label names."""
    return _REGISTER.sub(r"\1", _LABEL.sub("", text))


def mix(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Count the instructions of each class, in the order of the classes."""
    counts = Counter(map(classify, instructions))
    return {name: counts[name] for name in CLASSES if counts[name]}


def _mix_changes(
    first: Sequence[Instruction], second: Sequence[Instruction]
) -> tuple[tuple[str, int, int], ...]:
    before, after = mix(first), mix(second)
    rows = ((name, before.get(name, 0), after.get(name, 0)) for name in CLASSES)
    return tuple(row for row in rows if row[1] != row[2])


def _loop_changes(first: Sequence[Loop], second: Sequence[Loop]) -> tuple[LoopChange, ...]:
    """Compare matching loops; those that only wait for a barrier are skipped."""
    sides = [[loop for loop in each if not loop.is_wait] for each in (first, second)]
    mixes = [[mix(loop.body) for loop in side] for side in sides]
    found = []
    for i, j in paired(*(list(map(Counter, side)) for side in mixes)):
        before = {} if i is None else mixes[0][i]
        after = {} if j is None else mixes[1][j]
        if before != after:
            number, side = (i or 0, 0) if j is None else (j, 1)
            found.append(LoopChange(number, sides[side][number].depth, before, after))
    return tuple(found)


def normal_hunks(first: Code, second: Code) -> list[str]:
    """Return the normal forms of two kernels as the hunks of a unified diff."""
    return _hunks(normalised(first), normalised(second))


def raw_hunks(first: Code, second: Code) -> list[str]:
    """Return the code of two kernels as the hunks of a unified diff, without addresses."""
    return _hunks(
        [_raw(each) for each in first.instructions], [_raw(e) for e in second.instructions]
    )


def _raw(instruction: Instruction) -> str:
    """Return an instruction with its label and its control word, the upper 23 significant bits."""
    control = int.from_bytes(instruction.encoding[8:], "little") >> 41
    label = f"{instruction.label}: " if instruction.label else ""
    return f"{control:06x}  {label}{instruction.text}"


def _hunks(first: Sequence[str], second: Sequence[str]) -> list[str]:
    lines = list(unified_diff(first, second, n=_CONTEXT, lineterm=""))
    return lines[2:]  # without file names
