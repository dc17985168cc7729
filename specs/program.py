"""Fields of whole programs that kernels do not have, in a spec and in a variant."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from pallasc.specs.canonical import digest
from pallasc.specs.machine import Machine

Axes = str | tuple[str, ...] | None
"""The axes of a mesh that divide one dimension of an array."""


class Program(Struct, frozen=True):
    """The part of a variant that only programs have: XLA compiles the whole function.

    Attributes:
        machine: the machine.
        donate: names of the arguments whose memory the program may reuse.
        shardings: the axes that divide each dimension, by the path of an argument.
        explicit: axes of the mesh whose shardings are part of the types of arrays.
        only_lower: True to find the key of the program without compiling it.
        tuned: recorded autotuning results of XLA; empty for XLA's default algorithms.
    """

    machine: Machine
    donate: tuple[str, ...] = ()
    shardings: dict[str, tuple[Axes, ...]] = field(default_factory=dict)
    explicit: tuple[str, ...] = ()
    only_lower: bool = False
    tuned: bytes = b""

    def request(self) -> dict[str, object]:
        """Return everything that affects compilation as plain data."""
        own: dict[str, object] = msgspec.to_builtins(self)
        return {**own, "machine": self.machine.digest, "tuned": digest(self.tuned)}


class Programs(Struct, frozen=True):
    """The part of a spec that only programs have.

    Attributes:
        machines: machines by name.
        files: their files, relative to the spec's folder.
        donate: as in `Program`.
        shardings: as in `Program`.
        explicit: as in `Program`.
    """

    machines: dict[str, Machine]
    files: tuple[str, ...]
    donate: tuple[str, ...] = ()
    shardings: dict[str, tuple[Axes, ...]] = field(default_factory=dict)
    explicit: tuple[str, ...] = ()

    def on(self, machine: str) -> Program:
        """Return the program for one of the machines."""
        return Program(self.machines[machine], self.donate, self.shardings, self.explicit)
