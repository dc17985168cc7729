"""The user's source lines of the PTX of a kernel, as `line_tables` finds them."""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.errors import Location


@dataclass(frozen=True, slots=True)
class LineTable:
    """The user's source lines of a kernel's PTX.

    Attributes:
        stacks: stacks of the user's frames, the innermost first.
        numbers: for each line of the PTX, the number of its stack, from 1; 0 for none.
    """

    stacks: tuple[tuple[Location, ...], ...]
    numbers: tuple[int, ...]

    def stack(self, line: int) -> tuple[Location, ...]:
        """Return the user's frames for a line of the PTX, the innermost first."""
        number = self.numbers[line - 1] if 0 < line <= len(self.numbers) else 0
        return self.stacks[number - 1] if number else ()

    def place(self, line: int) -> Location | None:
        """Return the user's innermost source line for a line of the PTX."""
        return next(iter(self.stack(line)), None)
