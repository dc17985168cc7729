"""Functions that read and write operands of a warp, and slots for constants and addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pallasc.emulator.machine.warp import LANES, Step, Warp
from pallasc.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
    register_numbers,
)
from pallasc.errors import UnsupportedError

Values = np.ndarray
DType = np.dtype[np.generic]
Read = Callable[[Warp], Values]
Write = Callable[[Warp, Values], None]
Build = Callable[[Instruction, "Builder"], Step]

CLOCKS = ("%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi")

_WORDS: dict[int, DType] = {
    8: np.dtype("u1"),
    16: np.dtype("u2"),
    32: np.dtype("u4"),
    64: np.dtype("u8"),
}
PREDICATE = np.dtype(np.bool_)


def storage(register_type: str) -> DType:
    """Return the dtype that stores a register of this declared type."""
    if register_type == "pred":
        return PREDICATE
    width = int("".join(c for c in register_type if c.isdigit()))
    return _WORDS[64 if width == 128 else width]


def dtype_of(type_name: str) -> DType:
    """Return the dtype of an integer or untyped PTX type such as "s32" or "b64".

    Floating-point types map to unsigned integers of the same size.

    Raises:
        UnsupportedError: the type is not supported here.
    """
    kind, width = type_name[:1], type_name[1:]
    if type_name == "pred":
        return PREDICATE
    if kind in "bufs" and width in ("8", "16", "32", "64"):
        return np.dtype(("i" if kind == "s" else "u") + str(int(width) // 8))
    raise UnsupportedError(f"the emulator does not support the type .{type_name} here")


def refusal(instruction: Instruction, what: str = "") -> UnsupportedError:
    """Return the error for an instruction that the emulator does not support."""
    detail = f" ({what})" if what else ""
    return UnsupportedError(
        f"the emulator does not support {instruction.opcode}{detail}: {instruction.text}"
    )


def immediate(instruction: Instruction, number: int = 0) -> int:
    """Return the value of an operand that must be a constant."""
    operand = instruction.operands[number]
    if not isinstance(operand, Immediate):
        raise refusal(instruction)
    return operand.bits


@dataclass(slots=True)
class Builder:
    """Assigns slots to a kernel's registers, and to constants and addresses in its instructions.

    A slot is an index into `Warp.registers`.
    """

    kernel: Kernel
    constants: dict[tuple[int, str], int] = field(default_factory=dict)
    symbols: dict[tuple[str, int], int] = field(default_factory=dict)
    specials: dict[str, int] = field(default_factory=dict)
    slots: int = 0
    flag: Register | None = None
    read_registers: set[int] | None = None

    def __post_init__(self) -> None:
        """Give the kernel's own registers the first slots."""
        self.slots = len(self.kernel.registers)

    def _new(self) -> int:
        self.slots += 1
        return self.slots - 1

    def carry(self) -> Register:
        """Return the carry flag, which is an implicit operand; initially 0 in each lane."""
        if self.flag is None:
            self.flag = Register(self._new(), "b32")
        return self.flag

    def constant(self, bits: int, dtype: DType) -> int:
        """Return the slot of a constant, the same in every lane."""
        key = (bits, storage_of(dtype).str)
        if key not in self.constants:
            self.constants[key] = self._new()
        return self.constants[key]

    def slot(self, operand: Operand, dtype: DType) -> tuple[int, DType]:
        """Return the slot of an operand's value, and the dtype it is stored in."""
        if isinstance(operand, Register):
            return operand.number, storage(operand.type)
        if isinstance(operand, Immediate):
            bits = _converted(operand, dtype)
            return self.constant(bits, dtype), storage_of(dtype)
        if isinstance(operand, Symbol):
            key = (operand.name, operand.offset)
            if key not in self.symbols:
                self.symbols[key] = self._new()
            return self.symbols[key], np.dtype("u8")
        if isinstance(operand, Special):
            if operand.name not in self.specials:
                self.specials[operand.name] = self._new()
            wide = operand.name.endswith("64") or operand.name == "%globaltimer"
            return self.specials[operand.name], np.dtype("u8" if wide else "u4")
        raise UnsupportedError(f"the emulator does not support the operand {operand} here")

    def read(self, operand: Operand, dtype: DType) -> Read:
        """Return a function that reads an operand's value from a warp, as this dtype.

        Reading from a wider register returns its low part, as PTX specifies for ld, st and cvt
        (PTX ISA 9.0, 9.4.1).
        """
        slot, kept = self.slot(operand, dtype)
        negated = isinstance(operand, Register) and operand.negated
        if negated:
            return lambda w: ~w.registers[slot]
        if kept == dtype:
            return lambda w: w.registers[slot]
        if kept.itemsize == dtype.itemsize and PREDICATE not in (kept, dtype):
            return lambda w: w.registers[slot].view(dtype)
        if PREDICATE in (kept, dtype):
            return lambda w: w.registers[slot].astype(dtype)
        narrow = storage_of(dtype)
        return lambda w: w.registers[slot].astype(narrow).view(dtype)

    def address(self, operand: Operand) -> Read:
        """Return a function that computes the address of an operand in brackets."""
        if not isinstance(operand, Address):
            raise UnsupportedError(f"the operand {operand} must be an address in brackets")
        slot, kept = self.slot(operand.base, np.dtype("u8"))
        offset = operand.offset
        wide = kept.itemsize == 8
        if offset:
            if wide:
                return lambda w: w.registers[slot].view(np.int64) + offset
            return lambda w: w.registers[slot].astype(np.int64) + offset
        if wide:
            return lambda w: w.registers[slot].view(np.int64)
        return lambda w: w.registers[slot].astype(np.int64)

    def write(self, operand: Operand, dtype: DType) -> Write:
        """Return a function that sets a register in the active lanes.

        A narrower value is extended, with its sign if `dtype` is signed.
        """
        if isinstance(operand, Sink):
            return lambda w, value: None
        if not isinstance(operand, Register):
            raise UnsupportedError(f"the destination {operand} is not a register")
        slot, kept = operand.number, storage(operand.type)
        if kept == dtype:
            return lambda w, value: _set(w, slot, value)
        if kept.itemsize == dtype.itemsize:
            return lambda w, value: _set(w, slot, value.view(kept))
        if dtype.kind == "i":
            wide = np.dtype(f"i{kept.itemsize}")
            return lambda w, value: _set(w, slot, value.astype(wide).view(kept))
        narrow = storage_of(dtype)
        return lambda w, value: _set(w, slot, value.view(narrow).astype(kept))

    def is_read(self, result: Operand) -> bool:
        """Return True if an instruction of the kernel reads the register `result`."""
        if self.read_registers is None:
            self.read_registers = {
                number
                for each in self.kernel.instructions
                for number in (
                    *([] if each.guard is None else [each.guard.number]),
                    *(n for operand in each.sources for n in register_numbers(operand)),
                )
            }
        return bool(self.read_registers & {*register_numbers(result)})

    def elements(self, operand: Operand) -> tuple[Operand, ...]:
        """Return the elements of a vector, or the operand itself."""
        return operand.elements if isinstance(operand, Vector) else (operand,)


def storage_of(dtype: DType) -> DType:
    """Return the unsigned dtype of the same width; predicates are unchanged."""
    return dtype if dtype == PREDICATE else _WORDS[8 * dtype.itemsize]


def _set(warp: Warp, slot: int, value: Values) -> None:
    registers = warp.registers
    registers[slot] = value if warp.full else np.where(warp.mask, value, registers[slot])


def broadcast(bits: int, dtype: DType) -> Values:
    """Return a read-only array with one value in every lane."""
    if dtype == PREDICATE:
        return np.full(LANES, bool(bits))
    value = np.full(LANES, bits % (1 << 8 * dtype.itemsize), dtype)
    value.flags.writeable = False
    return value


def _converted(immediate: Immediate, dtype: DType) -> int:
    """Return the bits of a constant converted to this dtype.

    PTX writes floating-point constants as the bits of an f32 or of an f64 (PTX ISA 9.0, 4.5.2).
    """
    if immediate.width == 32 and dtype.itemsize == 8:
        return int(np.array(immediate.bits, "u4").view("f4").astype("f8").view("u8"))
    if immediate.width == 64 and dtype.itemsize == 4:
        return int(np.array(immediate.bits, "u8").view("f8").astype("f4").view("u4"))
    return immediate.bits
