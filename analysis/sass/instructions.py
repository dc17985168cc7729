"""An instruction of SASS, and the code of a kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

INSTRUCTION_BYTES = 16
"""Of every instruction from compute capability 7.0 on."""

_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        address: bytes from the start of the kernel's code.
        predicate: `@!P0`, "" where it has none.
        opcode: with its modifiers, `HGMMA.64x256x16.F32.BF16`.
        operands: as nvdisasm writes them, `gdesc[UR4]`; that of a branch names a label.
        label: the label at this address that branches name, "" where none does.
        live_registers: general registers that hold a value here; None where nvdisasm cannot tell.
        encoding: 16 bytes, little-endian, the control word among them.
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
        """The opcode's modifiers, in their order."""
        return tuple(self.opcode.split(".")[1:])

    @property
    def text(self) -> str:
        """The instruction as nvdisasm writes it."""
        parts = (self.predicate, self.opcode, ", ".join(self.operands))
        return " ".join(filter(None, parts))

    @property
    def target(self) -> str:
        """The label or function that an operand names, "" where none does."""
        for operand in self.operands:
            if match := _TARGET.search(operand):
                return match[1]
        return ""


@dataclass(frozen=True, slots=True)
class Code:
    """The instructions of a kernel by address, without what fills up its end.

    `functions` has the addresses of the functions within it that are called, by name.
    """

    kernel: str
    instructions: tuple[Instruction, ...]
    functions: tuple[tuple[str, int], ...] = ()
