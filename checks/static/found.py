"""What a rule of the static level finds, before it becomes a finding with places and cubin."""

from __future__ import annotations

from typing import NamedTuple

from pallasc.checks.findings import Severity
from pallasc.emulator.ptx.syntax import Instruction


class Found(NamedTuple):
    """Something that is wrong: the rule, the instruction, others that take part and what they do.

    `instruction` is None for what concerns the kernel as a whole; `subject` is that of the finding.
    """

    rule: str
    message: str
    instruction: Instruction | None = None
    others: tuple[tuple[str, Instruction], ...] = ()
    severity: Severity = "error"
    subject: str = ""
