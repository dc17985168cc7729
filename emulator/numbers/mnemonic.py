"""Parses a mnemonic part by part; unknown parts are rejected."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from pallasc.errors import UnsupportedError

PREDICATE = np.dtype(np.bool_)
U8, U16, U32, U64 = (np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
S8, S16, S32, S64 = (np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
F16, F32, F64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
BF16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

UNSIGNED: dict[str, np.dtype[Any]] = {"u8": U8, "u16": U16, "u32": U32, "u64": U64}
SIGNED: dict[str, np.dtype[Any]] = {"s8": S8, "s16": S16, "s32": S32, "s64": S64}
BITS: dict[str, np.dtype[Any]] = {"b8": U8, "b16": U16, "b32": U32, "b64": U64}
FLOATS: dict[str, np.dtype[Any]] = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}
INTEGERS = {**UNSIGNED, **SIGNED}

# A packed type: the dtype of its registers, and the dtype of its elements, twice as many.
PACKED: dict[str, tuple[np.dtype[Any], np.dtype[Any]]] = {
    "f16x2": (U32, F16),
    "bf16x2": (U32, BF16),
    "u16x2": (U32, U16),
    "s16x2": (U32, S16),
    "f32x2": (U64, F32),
}

ROUNDINGS = ("rn", "rz", "rm", "rp")


def named(*names: str) -> dict[str, np.dtype[Any]]:
    """Return the element types of these names, in order."""
    known = {**INTEGERS, **BITS, **FLOATS, "pred": PREDICATE}
    return {name: known[name] for name in names}


class Mnemonic:
    """A mnemonic whose parts are consumed one by one.

    Args:
        opcode: the whole mnemonic, such as `add.rn.f32`.
        destinations: number of destination operands.
        sources: number of source operands; None if the opcode determines it.
    """

    def __init__(self, opcode: str, *, destinations: int = 1, sources: int | None = None) -> None:
        self.opcode = opcode
        self.base, *self.parts = opcode.split(".")
        self.destinations = destinations
        self.sources = sources

    def flag(self, name: str) -> bool:
        """Consume an optional part; return True if it was present."""
        if name not in self.parts:
            return False
        self.parts.remove(name)
        return True

    def choice(self, *names: str, default: str | None = None) -> str:
        """Consume the one part that is among these names.

        Raises:
            UnsupportedError: there is none, and no default was given.
        """
        for part in self.parts:
            if part in names:
                self.parts.remove(part)
                return part
        if default is None:
            raise self.refused(f"it needs one of .{', .'.join(names)}")
        return default

    def type(self, *names: str) -> str:
        """Consume the last part, which must be one of these types.

        Raises:
            UnsupportedError: it is another one.
        """
        if not self.parts:
            raise self.refused(f"it needs one of .{', .'.join(names)}")
        if self.parts[-1] not in names:
            raise self.refused(f".{self.parts[-1]} is unknown here")
        return self.parts.pop()

    def finish(self) -> None:
        """Reject parts that have not been consumed.

        Raises:
            UnsupportedError: parts are left, or there are unconsumed operands.
        """
        if self.parts:
            raise self.refused(f".{self.parts[0]} is unknown here")
        if self.destinations != 1:
            raise self.refused(f"it has {self.destinations} destinations")
        if self.sources is not None:
            raise self.refused(f"it has {self.sources} sources")

    def refused(self, why: str) -> UnsupportedError:
        """Return the error that names the instruction and its unsupported part."""
        return UnsupportedError(
            f"the emulator does not support {self.opcode}: {why}",
            hint="docs/check.md lists what it supports.",
        )
