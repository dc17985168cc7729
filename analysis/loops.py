"""The loops of a kernel's SASS: natural loops of its graph of basic blocks.

A graph is a list with the successors of each block; block 0 is the entry. Sets of blocks are bit
masks in an integer, so that kernels with thousands of blocks take little time. A loop is natural
(Aho, Lam, Sethi, Ullman, "Compilers", 9.6.6): it is closed by an edge to a block that dominates the
edge's source.

In SASS, a block ends after an instruction that leaves it, and before a label. `BSYNC B0` jumps to
the target of the preceding `BSSY B0`. If a jump's target is in a register (`BRX`, `JMX`), its block
is treated as having no successor: this never adds a false loop, but misses a loop closed by that
jump. A call continues at its function and at the next instruction; returns from functions are not
followed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pallasc.analysis.sass import Class, Code, Instruction, classify, mix_of

Successors = Sequence[Sequence[int]]

_JUMPS = frozenset({"BRA", "JMP"})
_ENDS = frozenset({"EXIT", "RET", "KILL", "BRX", "BRXU", "JMX", "JMXU"})
_LEAVES = _JUMPS | _ENDS | {"BSYNC", "CALL", "BREAK"}
_SHAPE = re.compile(r"\.(?:(\d+)x(\d+)x(\d+)|(16|8)(8)(4|8|16|32|64))\b")
_ALWAYS = ("", "@PT", "@UPT")
_COMPUTES = frozenset({"tensor", "tensor_memory", "floating", "conversion"})
_WORK = _COMPUTES | {"tma", "load_global", "store_global", "local"}
"""Classes of instructions that a loop that only waits does not have."""


def _natural_loops(after: Successors) -> dict[int, int]:
    """Return the blocks of each loop by the loop's header; loops that share a header are merged."""
    order = _reverse_postorder(after)
    before: list[list[int]] = [[] for _ in after]
    for source in order:
        for target in after[source]:
            before[target].append(source)
    dominators = _dominators(before, order)
    loops: dict[int, int] = {}
    for source in order:
        for target in after[source]:
            if dominators[source] >> target & 1:
                loops[target] = loops.get(target, 0) | _body(before, source, target)
    return loops


def _reverse_postorder(after: Successors) -> list[int]:
    """Return the reachable blocks, each before its successors except along back edges."""
    if not after:
        return []
    seen, postorder = {0}, []
    stack = [(0, iter(after[0]))]
    while stack:
        number, rest = stack[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            postorder.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(after[following])))
    return postorder[::-1]


def _dominators(before: Successors, order: Sequence[int]) -> list[int]:
    """Return for each block the set of its dominators, including itself."""
    everything = (1 << len(before)) - 1
    found = [everything] * len(before)
    found[:1] = [1]
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            common = everything
            for each in before[number]:
                common &= found[each]
            common |= 1 << number
            if common != found[number]:
                found[number], changed = common, True
    return found


def _body(before: Successors, source: int, header: int) -> int:
    """Return the blocks of the loop closed by an edge from `source` to `header`."""
    found = 1 << header
    stack = [source]
    while stack:
        number = stack.pop()
        if not found >> number & 1:
            found |= 1 << number
            stack += before[number]
    return found


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop of SASS.

    Attributes:
        header: the address of the first instruction of every iteration.
        depth: 1 for an outermost loop.
        parent: the header of the innermost enclosing loop, or None.
        is_wait: True if it only polls a barrier, as `mbarrier.try_wait` does until it succeeds.
        mix: its instructions by class, including nested loops.
        tensor_flops: the tensor-core operations of an iteration; None if an opcode does not contain
            its shape, or if a nested loop does more than wait.
    """

    header: int
    depth: int
    parent: int | None
    is_wait: bool
    mix: Mapping[Class, int]
    tensor_flops: int | None


_Block = tuple[Instruction, ...]


def loops(code: Code) -> tuple[Loop, ...]:
    """Return the loops of a kernel by the address of their header."""
    blocks = _blocks(code)
    bits = _natural_loops(_successors(code, blocks))
    found = [_loop(header, bits, blocks) for header in sorted(bits)]
    around = {loop.parent for loop in found if not loop.is_wait}
    return tuple(
        replace(loop, tensor_flops=None) if loop.header in around else loop for loop in found
    )


def _loop(header: int, found: Mapping[int, int], blocks: Sequence[_Block]) -> Loop:
    members = (block for number, block in enumerate(blocks) if found[header] >> number & 1)
    body = tuple(instruction for block in members for instruction in block)
    around = [other for other, bits in found.items() if other != header and bits >> header & 1]
    parent = min(around, key=lambda other: found[other].bit_count(), default=None)
    return Loop(
        blocks[header][0].address,
        1 + len(around),
        None if parent is None else blocks[parent][0].address,
        _is_wait(body),
        mix_of(body),
        _flops(body),
    )


def _flops(instructions: Iterable[Instruction]) -> int | None:
    """Return the operations of tensor instructions; None if an opcode does not contain its shape.

    `HGMMA.64x128x16` contains M, N and K; `HMMA.16816` means 16, 8 and 16.
    """
    total = 0
    for each in instructions:
        if classify(each) == "tensor":
            match = _SHAPE.search(each.opcode)
            if match is None:
                return None
            total += 2 * math.prod(int(size) for size in match.groups() if size)
    return total


def _is_wait(body: _Block) -> bool:
    polls = any(".PHASECHK" in each.opcode or each.mnemonic == "NANOSLEEP" for each in body)
    return polls and not any(classify(each) in _WORK for each in body)


def _blocks(code: Code) -> list[_Block]:
    starts = {0, len(code.instructions)}
    called = {address for _, address in code.functions}
    for index, each in enumerate(code.instructions):
        if each.label or each.address in called:
            starts.add(index)
        if each.mnemonic in _LEAVES:
            starts.add(index + 1)
    return [code.instructions[a:b] for a, b in pairwise(sorted(starts))]


def _successors(code: Code, blocks: Sequence[_Block]) -> list[list[int]]:
    numbers = {block[0].address: number for number, block in enumerate(blocks)}
    places = {each.label: each.address for each in code.instructions if each.label}
    places.update(code.functions)
    ends = _reconvergence(code, places)
    after: list[list[int]] = []
    for number, block in enumerate(blocks):
        last, following = block[-1], [each[0].address for each in blocks[number + 1 : number + 2]]
        targets = _targets(last, places, ends)
        # If a barrier has several targets, a BSYNC directly before one of them jumps to that one.
        if last.mnemonic == "BSYNC" and set(following) & set(targets):
            targets = following
        if _goes_on(last):
            targets = [*targets, *following]
        after.append(list(dict.fromkeys(numbers[each] for each in targets if each in numbers)))
    return after


def _targets(
    last: Instruction, places: Mapping[str, int], ends: Mapping[str, list[int]]
) -> list[int]:
    """Return the jump targets of the last instruction of a block."""
    if last.mnemonic == "BSYNC" and last.operands:
        return ends.get(last.operands[-1], [])
    if last.mnemonic in _JUMPS or last.mnemonic == "CALL":
        return [places[last.target]] if last.target in places else []
    return []


def _reconvergence(code: Code, places: Mapping[str, int]) -> dict[str, list[int]]:
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
