"""Follow threads through a kernel's control flow, and count the instructions they execute.

If a path depends on unknown data, there is no count. A loop that counts nothing and waits for data,
such as a semaphore, is exited with the registers that it writes unknown. A loop is followed once
for each set of values of its registers on entry: successive tiles of a block, and other blocks,
share the same loop over K.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pallasc.analysis.metrics.program import Block, Event, Program, Registers, UnknownWayError

_MOST_DEPTH = 64


class _DataError(UnknownWayError):
    """A branch depends on data."""


class Walk:
    """Follows threads through a program, and counts.

    Args:
        program: the program.
        most_steps: maximum number of computed instructions.
    """

    def __init__(self, program: Program, most_steps: int) -> None:
        self._program = program
        self._most_steps = most_steps
        self._steps = 0
        self._known: dict[tuple[int | None, ...], tuple[int | None, Registers, Counter[Event]]] = {}

    def follow(self, specials: Mapping[str, int]) -> Counter[Event]:
        """Return the counts of a thread with these special registers.

        Raises:
            UnknownWayError: a branch depends on unknown data, or the path is too long.
        """
        registers = list(self._program.constants)
        for name, slot in self._program.specials.items():
            registers[slot] = specials.get(name)
        found: Counter[Event] = Counter()
        self._walk(0 if self._program.blocks else None, None, registers, found, 0)
        return found

    def _walk(
        self,
        at: int | None,
        header: int | None,
        registers: Registers,
        found: Counter[Event],
        depth: int,
    ) -> int | None:
        """Follow blocks to the end, or out of the loop with this header; return the next block."""
        program = self._program
        inside = -1 if header is None else program.loops[header].blocks
        while at is not None and inside >> at & 1:
            if at in program.loops and at != header:
                at = self._loop(at, registers, found, depth + 1)
            else:
                at = self._block(program.blocks[at], registers, found)
        return at

    def _loop(
        self, header: int, registers: Registers, found: Counter[Event], depth: int
    ) -> int | None:
        if depth > _MOST_DEPTH:
            raise UnknownWayError(f"loops are nested more than {_MOST_DEPTH} deep")
        loop = self._program.loops[header]
        key = (header, *[registers[slot] for slot in loop.reads])
        if key not in self._known:
            own: Counter[Event] = Counter()
            try:
                after = self._walk(header, header, registers, own, depth)
            except _DataError:
                # If the loop counts nothing, the number of its iterations does not matter.
                if loop.way_out is None:
                    raise
                after = loop.way_out
                for slot in loop.writes:
                    registers[slot] = None
            self._known[key] = after, [registers[slot] for slot in loop.writes], own
        after, values, own = self._known[key]
        for slot, value in zip(loop.writes, values, strict=True):
            registers[slot] = value
        found.update(own)
        return after

    def _block(self, block: Block, registers: Registers, found: Counter[Event]) -> int | None:
        for op in block.body:
            op.run(registers, found)
        self._steps += len(block.body) + 1
        if self._steps > self._most_steps:
            raise UnknownWayError(f"it takes more than {self._most_steps:,} steps to follow")
        if block.guard is None:
            return block.taken
        held = registers[block.guard]
        if held is None:
            raise _DataError(
                f"a trip count depends on data: the branch in line {block.line} of the PTX"
            )
        return block.taken if bool(held) != block.negated else block.other
