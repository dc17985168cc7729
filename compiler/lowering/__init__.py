"""From a callable to a checked artifact, in a compiling process: trace, lower, compile, check.

The types in this file are part of workers' messages, which every build imports.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.errors import Location

Stack = tuple[Location, ...]
"""The user's frames, the innermost first."""


@dataclass(frozen=True, slots=True)
class Part:
    """An allocation in the shared memory of a block; see `specs/artifacts/source_lines.py`."""

    what: str
    name: str
    type: str
    bytes: int
    offset: int | None = None
    stack: Stack = ()


@dataclass(frozen=True, slots=True)
class LineTable:
    """The user's source lines of a kernel's PTX.

    Attributes:
        stacks: stacks of the user's frames, the innermost first.
        numbers: for each line of the PTX, the number of its stack, from 1; 0 for none.
        memory: the parts of the kernel's shared memory.
        loops: for each stack, its frames that call a loop; `stacks` omits these frames.
    """

    stacks: tuple[Stack, ...]
    numbers: tuple[int, ...]
    memory: tuple[Part, ...] = ()
    loops: tuple[Stack, ...] = ()

    def stack(self, line: int) -> Stack:
        """Return the user's frames for a line of the PTX, the innermost first."""
        number = self.numbers[line - 1] if 0 < line <= len(self.numbers) else 0
        return self.stacks[number - 1] if number else ()

    def loops_around(self, line: int) -> Stack:
        """Return the user's calls of loops around a line of the PTX, the innermost first."""
        number = self.numbers[line - 1] if 0 < line <= len(self.numbers) else 0
        return self.loops[number - 1] if number and self.loops else ()

    def place(self, line: int) -> Location | None:
        """Return the user's innermost source line for a line of the PTX."""
        return next(iter(self.stack(line)), None)
