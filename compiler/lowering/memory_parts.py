"""Parts of the shared memory of a kernel, with the places that allocate them."""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.errors import Location


@dataclass(frozen=True, slots=True)
class Part:
    """An allocation in the shared memory of a block; see `specs/artifacts/source_lines.py`."""

    what: str
    name: str
    type: str
    bytes: int
    offset: int | None = None
    stack: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """The parts of the dynamic shared memory of a kernel, which may share its name with another."""

    kernel: str
    parts: tuple[Part, ...]

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(part.bytes for part in self.parts)
