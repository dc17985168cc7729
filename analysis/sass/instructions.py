"""SASS instructions and the code of a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

INSTRUCTION_BYTES = 16
"""Size of every instruction from compute capability 7.0 on."""

_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        address: bytes from the start of the kernel's code.
        predicate: `@!P0`, "" if it has none.
        opcode: with its modifiers, `HGMMA.64x256x16.F32.BF16`.
        operands: as printed by nvdisasm, `gdesc[UR4]`; a branch's operand is a label.
        label: the label at this address if a branch uses it, else "".
        live_registers: number of live general registers; None if nvdisasm does not know.
        encoding: 16 bytes, little-endian, including the control word.
    """

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    label: str
    live_registers: int | None
    encoding: bytes

    @property
    def mnemonic(self) -> str:
        """The opcode without modifiers, `HGMMA`."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The opcode's modifiers, in order."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def text(self) -> str:
        """The instruction as printed by nvdisasm."""
        parts = (self.predicate, self.opcode, ", ".join(self.operands))
        return " ".join(filter(None, parts))

    @property
    def target(self) -> str:
        """The label or function that an operand names, "" if there is none."""
        for operand in self.operands:
            if match := _TARGET.search(operand):
                return match[1]
        return ""


@dataclass(frozen=True, slots=True)
class Code:
    """The instructions of a kernel by address, without padding at the end.

    `functions` has the names and addresses of called functions within the kernel.
    """

    kernel: str
    instructions: tuple[Instruction, ...]
    functions: tuple[tuple[str, int], ...] = ()
