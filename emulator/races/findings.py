"""A race as the observer finds it: a rule, two accesses, and what is missing between them."""

from __future__ import annotations

from dataclasses import dataclass

from pallasc.emulator.machine.faults import Actor, Fault
from pallasc.emulator.ptx.syntax import Instruction


@dataclass(frozen=True, slots=True)
class Access:
    """Something that an instruction did; `what` names it as a noun, such as "the tensor load"."""

    what: str
    instruction: Instruction
    actor: Actor

    def __str__(self) -> str:
        return f"{self.what} by {self.actor}, PTX line {self.instruction.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a kernel.

    Args:
        rule: names the kind, as in `docs/check.md`.
        message: one sentence that says what is missing.
        second: the access at which it was noticed.
        first: the access that it conflicts with, if there are two.
        memory: which memory, in words.
        begin: of the bytes concerned, in that memory; None where there are none.
        end: behind the last of them.
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
