"""Faults end the emulation of a kernel: operations that fail or are undefined on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.misuse import OperandError
from pallasc.errors import CheckError


@dataclass(frozen=True, slots=True)
class Actor:
    """A warp of a block, on a device."""

    device: int
    block: tuple[int, int, int]
    warp: int

    def __str__(self) -> str:
        x, y, z = self.block
        device = f" on device {self.device}" if self.device else ""
        return f"warp {self.warp} of block ({x}, {y}, {z}){device}"


class EmulationTimeout(CheckError):
    """The time limit of an emulation is over."""


class Fault(CheckError):
    """An invalid operation of a kernel; `rule` names the kind.

    `instruction` and `actor` locate it; they are None if no single instruction or warp caused it.
    """

    def __init__(
        self,
        rule: str,
        message: str,
        *,
        instruction: Instruction | None = None,
        actor: Actor | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule
        self.instruction = instruction
        self.actor = actor
        self.place: int | None = None  # index of the instruction in its kernel


def fault_of(error: Fault | OperandError) -> Fault:
    """Return an error as a fault; the caller fills in its place."""
    if isinstance(error, Fault):
        return error
    fault = Fault(error.rule, error.message, hint=error.hint)
    return fault.with_traceback(error.__traceback__)
