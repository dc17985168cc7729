"""The control-flow graph of a kernel: blocks, dominators, loops.

Sets of blocks are bits of an integer: kernels have at most some hundred blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import cache

from pallasc.analysis.flow import dominators, natural_loops, reverse_postorder
from pallasc.emulator.ptx.syntax import Instruction, Instructions, Kernel, Label, Register

ENDS = frozenset({"bra", "ret", "exit", "trap", "brx"})
"""Opcodes, without what follows the first dot, that may leave a block."""


@dataclass(slots=True)
class Block:
    """Instructions `start` to `end`, the latter not included, of which only the last branches.

    `condition` is the guard of that branch: `taken` follows where it holds, `other` where not.
    `before` and `after` are the blocks that may come before it and follow.
    """

    start: int
    end: int
    taken: int | None = None
    other: int | None = None
    condition: Register | None = None
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Graph:
    """The blocks of a kernel.

    Attributes:
        blocks: in the order of the text; the first is the entry.
        order: the blocks that can be reached, in reverse postorder.
        dominators: for each block, those that are on every path to it, and itself.
        post_dominators: for each block, those that are on every path from it to an end, and itself.
        loops: header -> blocks of the loop.
        loop_of: for each block, the header of the innermost loop around it, or None.
    """

    blocks: list[Block]
    order: list[int]
    dominators: list[int]
    post_dominators: list[int]
    loops: dict[int, int]
    loop_of: list[int | None]
    block_of: list[int]
    _meetings: dict[int, int | None] = field(default_factory=dict)

    def dominates(self, first: int, second: int) -> bool:
        """Tell whether every path to the block `second` goes through `first`."""
        return bool(self.dominators[second] >> first & 1)

    def is_back(self, source: int, target: int) -> bool:
        """Tell whether an edge closes a loop."""
        return self.dominates(target, source)

    def immediate_dominator(self, block: int) -> int | None:
        """Return the last block before this one on every path to it."""
        others = self.dominators[block] & ~(1 << block)
        found = [each for each in self.order if others >> each & 1]
        return max(found, key=lambda each: self.dominators[each].bit_count(), default=None)

    def meeting(self, block: int) -> int | None:
        """Return the first block that every path from a block goes through."""
        if block not in self._meetings:
            post = self.post_dominators
            others = [n for n in self.order if post[block] >> n & 1 and n != block]
            first = max(others, key=lambda each: post[each].bit_count(), default=None)
            self._meetings[block] = first
        return self._meetings[block]


def graph_of(kernel: Kernel) -> Graph:
    """Return the control-flow graph of a kernel."""
    blocks, block_of = _blocks(kernel.instructions)
    after = [block.after for block in blocks]
    order = reverse_postorder(after)
    loops = natural_loops(after)
    loop_of = [_innermost(loops, block) for block in range(len(blocks))]
    post_dominators = _post_dominators(blocks, order)
    return Graph(blocks, order, dominators(after, order), post_dominators, loops, loop_of, block_of)


def _target(instruction: Instruction) -> int | None:
    for operand in instruction.operands:
        if isinstance(operand, Label):
            return operand.target
    return None


@cache
def _end(opcode: str) -> str:
    name = opcode.partition(".")[0]
    return name if name in ENDS else ""


def _blocks(instructions: Instructions) -> tuple[list[Block], list[int]]:
    count = len(instructions)
    starts = {0, count}
    names = [_end(statement.opcode) for statement in instructions.statements]
    ends = {number: name for number, name in enumerate(names) if name}
    for number in ends:
        starts.add(number + 1)
        if (target := _target(instructions[number])) is not None:
            starts.add(target)
    cuts = sorted(start for start in starts if start <= count)
    numbers = {start: number for number, start in enumerate(cuts[:-1])}
    blocks, block_of = [], []
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        block = Block(start, end)
        block_of += [number] * (end - start)
        last = instructions[end - 1]
        name = ends.get(end - 1, "")
        if name == "bra":
            block.taken = numbers.get(_target(last) or 0)
            block.condition = last.guard
        if name in ("", "brx") or last.guard is not None:
            block.other = numbers.get(end)
            block.condition = last.guard if name else None
        block.after = [each for each in (block.taken, block.other) if each is not None]
        blocks.append(block)
    for number, block in enumerate(blocks):
        for after in block.after:
            blocks[after].before.append(number)
    return blocks, block_of


def _post_dominators(blocks: list[Block], order: list[int]) -> list[int]:
    everything = (1 << len(blocks)) - 1
    found = [everything] * len(blocks)
    changed = True
    while changed:
        changed = False
        for number in reversed(order):
            after = blocks[number].after
            common = everything if after else 0
            for each in after:
                common &= found[each]
            common |= 1 << number
            if common != found[number]:
                found[number], changed = common, True
    return found


def _innermost(loops: dict[int, int], block: int) -> int | None:
    around = [header for header, members in loops.items() if members >> block & 1]
    return min(around, key=lambda header: loops[header].bit_count(), default=None)
