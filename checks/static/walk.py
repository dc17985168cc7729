"""Follow loops whose iterations are decided by numbers alone, such as those of pipelines.

A loop is walked from its first iteration on, with what its registers hold. A condition that is not
known is stepped over: what runs whatever it is, runs for certain. Where it decides whether the loop
goes on, the walk ends.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import NamedTuple

from pallasc.checks.static.evaluation import Evaluation
from pallasc.checks.static.values import Value, signed, unsigned

_MOST_ITERATIONS = 256
_LIMIT = 1 << 31
_RESULTS = frozenset(
    {"setp", "not", "selp", "shr", "shl", "and", "or", "xor", "div", "rem", "min", "max"}
)
"""What `_result` computes."""


Numbers = dict[int, int | None]
"""What atoms are in an iteration, as far as somebody has asked; None for what is not known."""


class Iteration(NamedTuple):
    """An iteration: what atoms are in it, and the blocks that run for certain."""

    numbers: Numbers
    blocks: frozenset[int]


def walk(evaluation: Evaluation, header: int) -> list[Iteration]:
    """Return the iterations of a loop from the first on, as far as they are known."""
    graph, atoms = evaluation.graph, evaluation.atoms
    ends = evaluation.ends
    before = graph.blocks[header].before
    entries = [ends[each] for each in before if not graph.is_back(each, header) and each in ends]
    latches = [ends[each] for each in before if graph.is_back(each, header) and each in ends]
    if len(entries) != 1 or len(latches) != 1:
        return []
    phis = {
        atom: description[2]
        for atom, description in enumerate(atoms.descriptions)
        if description[:2] == ("phi", header)
    }
    count = next(
        (a for a, each in enumerate(atoms.descriptions) if each == ("iteration", header)), None
    )
    numbers = _numbers(evaluation, entries[0], phis, {})
    found: list[Iteration] = []
    for number in range(_MOST_ITERATIONS):
        if count is not None:
            numbers[count] = number
        blocks, goes_on = _pass(evaluation, header, numbers)
        found.append(Iteration(numbers, blocks))
        if not goes_on:
            break
        numbers = _numbers(evaluation, latches[0], phis, numbers)
    return found


def _numbers(
    evaluation: Evaluation, end: dict[str, Value], phis: dict[int, str], before: Numbers
) -> Numbers:
    """Return what atoms become that registers hold at the end of a block."""
    found: Numbers = {}
    for atom, register in phis.items():
        value = end.get(register)
        found[atom] = None if value is None else number_of(evaluation, value, before)
    return found


def _pass(evaluation: Evaluation, header: int, numbers: Numbers) -> tuple[frozenset[int], bool]:
    """Return the blocks of an iteration that run for certain, and whether another one follows."""
    graph = evaluation.graph
    members, blocks = graph.loops[header], []
    block: int | None = header
    while block is not None and members >> block & 1:
        blocks.append(block)
        after = graph.blocks[block]
        if after.condition is None:
            block = after.taken if after.taken is not None else after.other
        else:
            guard = evaluation.guards.get(block)
            held = None if guard is None else number_of(evaluation, guard, numbers)
            known = after.taken if held else after.other
            block = graph.meeting(block) if held is None else known
        if block == header:
            return frozenset(blocks), True
        if block in blocks:
            break
    return frozenset(blocks), False


def number_of(evaluation: Evaluation, value: Value, numbers: Numbers) -> int | None:
    """Return a value as a number, given those of atoms; None where it is not known."""
    if not isinstance(value.constant, int):
        return None
    total = value.constant
    for atom, factor in value.terms:
        if atom in numbers:
            number = numbers[atom]
        else:
            number = numbers[atom] = _result(evaluation, atom, numbers)
        if number is None:
            return None
        total += factor * number
    return total


def _result(evaluation: Evaluation, atom: int, numbers: Numbers) -> int | None:
    """Return what an instruction gives; of numbers below 2³¹ alone, except for comparisons."""
    atoms = evaluation.atoms
    parts = _parts(atoms.kind(atom))
    if parts is None:
        return None
    name, *more = parts
    known = []
    for operand in atoms.operands[atom]:
        if (number := number_of(evaluation, operand, numbers)) is None:
            return None
        known.append(number)
    if name == "setp" and len(known) == 2 and len(more) >= 1:
        return _compared(more[0], more[-1], *known)
    if name == "not" and not more:
        return int(not known[0])
    if name == "selp" and len(known) == 3:
        return known[0] if known[2] else known[1]
    if len(known) != 2 or not all(0 <= each < _LIMIT for each in known):
        return None
    a, b = known
    if name == "shr" and b < 32:
        return a >> b
    if name == "shl" and b < 32:
        return a << b if a << b < _LIMIT else None
    if name in ("and", "or", "xor") and more and more[0] != "pred":
        return a & b if name == "and" else a | b if name == "or" else a ^ b
    if name in ("div", "rem") and b:
        return a // b if name == "div" else a % b
    if name in ("min", "max"):
        return min(a, b) if name == "min" else max(a, b)
    return None


@cache
def _parts(kind: Hashable) -> list[str] | None:
    """Return the parts of an opcode, None for what is not computed."""
    parts = str(kind).split(".")
    return parts if parts[0] in _RESULTS else None


def _compared(name: str, kind: str, a: int, b: int) -> int | None:
    """Return whether a comparison holds of two numbers of 32 bits."""
    if name in ("eq", "ne"):
        return int((unsigned(a, 32) == unsigned(b, 32)) == (name == "eq"))
    if kind not in ("s32", "u32"):
        return None
    cast = signed if kind == "s32" else unsigned
    a, b = cast(a, 32), cast(b, 32)
    held = {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return int(held[name]) if name in held else None
