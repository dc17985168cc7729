"""Finds the loops of a kernel from the branches in its SASS.

A block ends after an instruction that leaves it, and before a label. `BSYNC B0` jumps to the target
of the preceding `BSSY B0`. If a jump's target is in a register (`BRX`, `JMX`), its block is treated
as having no successor: this never adds a false loop, but misses a loop closed by that jump. A call
continues at its function and at the next instruction; returns from functions are not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pallasc.analysis.flow import natural_loops
from pallasc.analysis.sass.classes import classify
from pallasc.analysis.sass.instructions import Code, Instruction

_JUMPS = frozenset({"BRA", "JMP"})
_ENDS = frozenset({"EXIT", "RET", "KILL", "BRX", "BRXU", "JMX", "JMXU"})
_LEAVES = _JUMPS | _ENDS | {"BSYNC", "CALL", "BREAK"}
_ALWAYS = ("", "@PT", "@UPT")
_WORK = frozenset(
    {
        *("tensor", "tensor_memory", "tma", "load_global", "store_global", "local", "floating"),
        *("conversion",),
    }
)


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop.

    Attributes:
        header: the address of the first instruction of every iteration.
        addresses: the addresses of all its instructions, including nested loops.
        depth: 1 for an outermost loop.
        body: its instructions by address, including nested loops.
        parent: the header of the innermost enclosing loop, or None.
        is_wait: True if it only polls a barrier, as `mbarrier.try_wait` does until it succeeds.
    """

    header: int
    addresses: frozenset[int]
    depth: int
    body: tuple[Instruction, ...]
    parent: int | None
    is_wait: bool


def loops(code: Code) -> tuple[Loop, ...]:
    """Return the loops of a kernel by the address of their header."""
    blocks = _blocks(code)
    found = natural_loops(_successors(code, blocks))
    members = {blocks[header].start: _inside(blocks, bits) for header, bits in found.items()}
    return tuple(_loop(code, header, members) for header in sorted(members))


def innermost(found: Iterable[Loop], address: int) -> Loop | None:
    """Return the innermost loop around an address, None if there is none."""
    around = (loop for loop in found if address in loop.addresses)
    return max(around, key=lambda loop: loop.depth, default=None)


@dataclass(frozen=True, slots=True)
class _Block:
    start: int
    instructions: tuple[Instruction, ...]


def _blocks(code: Code) -> list[_Block]:
    starts = {0, len(code.instructions)}
    called = {address for _, address in code.functions}
    for index, each in enumerate(code.instructions):
        if each.label or each.address in called:
            starts.add(index)
        if each.mnemonic in _LEAVES:
            starts.add(index + 1)
    pieces = (code.instructions[a:b] for a, b in pairwise(sorted(starts)))
    return [_Block(piece[0].address, piece) for piece in pieces if piece]


def _successors(code: Code, blocks: Sequence[_Block]) -> list[list[int]]:
    numbers = {block.start: number for number, block in enumerate(blocks)}
    places = {each.label: each.address for each in code.instructions if each.label}
    places.update(code.functions)
    ends = _reconvergence(code, places)
    after: list[list[int]] = []
    for number, block in enumerate(blocks):
        last, following = block.instructions[-1], blocks[number + 1 : number + 2]
        targets = _targets(last, places, ends)
        # If a barrier has several targets, a BSYNC directly before one of them jumps to that one.
        if last.mnemonic == "BSYNC" and any(each.start in targets for each in following):
            targets = [each.start for each in following]
        found = [numbers[target] for target in targets if target in numbers]
        if following and _goes_on(last):
            found.append(number + 1)
        after.append(list(dict.fromkeys(found)))
    return after


def _targets(last: Instruction, places: dict[str, int], ends: dict[str, list[int]]) -> list[int]:
    """Return the jump targets of the last instruction of a block."""
    if last.mnemonic == "BSYNC" and last.operands:
        return ends.get(last.operands[-1], [])
    if last.mnemonic in _JUMPS or last.mnemonic == "CALL":
        return [places[last.target]] if last.target in places else []
    return []


def _reconvergence(code: Code, places: dict[str, int]) -> dict[str, list[int]]:
    """Return the targets of each convergence barrier."""
    ends: dict[str, list[int]] = {}
    for each in code.instructions:
        if each.mnemonic == "BSSY" and each.operands and each.target in places:
            ends.setdefault(each.operands[0], []).append(places[each.target])
    return ends


def _goes_on(last: Instruction) -> bool:
    """Return True if execution can continue after the last instruction of a block."""
    if last.mnemonic not in _LEAVES or last.mnemonic in ("CALL", "BREAK"):
        return True
    # A branch on a uniform predicate has it as an operand: BRA.U !UP0, `(.L_x_3)
    conditions = [each for each in last.operands if each.lstrip("!").startswith(("P", "UP"))]
    return last.predicate not in _ALWAYS or any(each not in ("PT", "UPT") for each in conditions)


def _inside(blocks: Sequence[_Block], bits: int) -> tuple[Instruction, ...]:
    return tuple(
        instruction
        for number, block in enumerate(blocks)
        if bits >> number & 1
        for instruction in block.instructions
    )


def _loop(code: Code, header: int, members: dict[int, tuple[Instruction, ...]]) -> Loop:
    body = members[header]
    addresses = frozenset(each.address for each in body)
    around = [
        other
        for other, instructions in members.items()
        if other != header and len(instructions) > len(body) and _has(instructions, header)
    ]
    parent = min(around, key=lambda other: len(members[other]), default=None)
    return Loop(header, addresses, 1 + len(around), body, parent, _is_wait(body))


def _has(instructions: tuple[Instruction, ...], address: int) -> bool:
    return any(each.address == address for each in instructions)


def _is_wait(body: tuple[Instruction, ...]) -> bool:
    polls = any("PHASECHK" in each.modifiers or each.mnemonic == "NANOSLEEP" for each in body)
    return polls and not any(classify(each) in _WORK for each in body)
