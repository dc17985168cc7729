"""A race as found by the observer: a rule, two accesses, and the missing synchronization."""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.emulator.machine.memory import Actor, Fault
from pallasc.emulator.ptx.syntax import Instruction


@dataclass(frozen=True, slots=True)
class Access:
    """An action of an instruction; `what` is a noun phrase, such as "the tensor load"."""

    what: str
    instruction: Instruction
    actor: Actor

    def __str__(self) -> str:
        return f"{self.what} by {self.actor}, PTX line {self.instruction.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in a kernel.

    Args:
        rule: names the kind, as in `docs/check.md`.
        message: one sentence that describes what is missing.
        second: the access at which it was noticed.
        first: the access that it conflicts with, if there are two.
        memory: the memory, as text.
        begin: start of the affected bytes in that memory; None if there are none.
        end: end of the affected bytes, exclusive.
    """

    rule: str
    message: str
    second: Access
    first: Access | None = None
    memory: str = ""
    begin: int | None = None
    end: int | None = None

    def __str__(self) -> str:
        where = "" if self.begin is None else f" ({self.memory}, {self.begin:#x} to {self.end:#x})"
        lines = [f"{self.rule}: {self.message}{where}"]
        for access in (self.first, self.second):
            if access is not None:
                lines.append(f"  {access}: {access.instruction.text}")
        return "\n".join(lines)

    def fault(self) -> Fault:
        """Return this as an error."""
        second = self.second
        return Fault(self.rule, str(self), instruction=second.instruction, actor=second.actor)
