"""Small kernels around one instruction, and what they must leave, computed without the emulator.

`of("ld")` registers a function that makes the case of a mnemonic which begins like that; the
longest beginning counts. It returns None for what the manual does not have, or has no use for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from small_kernels import Run

from pallasc.emulator.machine.memory import Fault

LANES = np.arange(32, dtype=np.uint32)
MEMORY = (
    ".shared .align 128 .b8 s[8192]; .shared .align 8 .b64 m; .local .align 16 .b8 l[128];"
    ".reg .b32 %f<80>;"
)
SHOW = "st.global.b32 [%out], %r1;"
FIRST = "setp.eq.u32 %p8, %t, 0;"
READY = FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], 1; bar.sync 0;"
WAIT = "TRY: mbarrier.try_wait.parity.shared::cta.b64 %p9, [m], 0; @!%p9 bra TRY;"


@dataclass
class Case:
    """A kernel and its outcome.

    Attributes:
        lines: of the kernel, as `small_kernels` has them.
        expected: the array that it leaves as its result, or a function of the run that gives it.
        arrays: its inputs.
        changed: what it leaves in inputs, by their numbers.
        options: of `Run`.
        prepare: is called with the run before it starts.
        look: is called with the run after it, and asserts.
        fault: the rule of the fault that ends it.
    """

    lines: str
    expected: Any = None
    arrays: tuple[np.ndarray, ...] = ()
    changed: dict[int, np.ndarray] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Run], None] | None = None
    look: Callable[[Run], None] | None = None
    fault: str = ""

    def check(self) -> None:
        """Run the kernel and compare."""
        options: dict[str, Any] = {"variables": MEMORY, **self.options}
        kernel = Run(self.lines, *self.arrays, **options)
        if self.prepare is not None:
            self.prepare(kernel)
        if self.fault:
            with pytest.raises(Fault) as caught:
                kernel.run()
            assert caught.value.rule == self.fault
            return
        kernel.run()
        expected = self.expected(kernel) if callable(self.expected) else self.expected
        if expected is not None:
            wanted = np.ascontiguousarray(expected).view(np.uint8).ravel()
            np.testing.assert_array_equal(kernel.out.data[: wanted.size], wanted)
        for number, array in self.changed.items():
            found = kernel.inputs[number].data[: array.nbytes]
            np.testing.assert_array_equal(found, array.view(np.uint8).ravel())
        if self.look is not None:
            self.look(kernel)


Make = Callable[[str], Case | None]
_MAKERS: dict[str, Make] = {}


def of(*beginnings: str) -> Callable[[Make], Make]:
    """Register a function for mnemonics with these beginnings."""

    def register(make: Make) -> Make:
        _MAKERS.update(dict.fromkeys(beginnings, make))
        return make

    return register


def case_of(opcode: str) -> Case | None:
    """Return the case of a mnemonic; KeyError where none is registered."""
    known = [beginning for beginning in _MAKERS if _begins(opcode, beginning)]
    if not known:
        raise KeyError(f"no case of {opcode}")
    return _MAKERS[max(known, key=len)](opcode)


def _begins(opcode: str, beginning: str) -> bool:
    return opcode == beginning or opcode.startswith((f"{beginning}.", f"{beginning}::"))


def register_of(bits: int, number: int) -> str:
    """Return the name of a register of so many bits; narrower than 16 bits there are none."""
    return f"%{ {64: 'rd', 32: 'r'}.get(bits, 'h') }{number}".replace(" ", "")


def vector_of(bits: int, count: int) -> tuple[list[str], str]:
    """Return as many registers, and the operand that has them all."""
    registers = [register_of(bits, 40 + n) for n in range(count)]
    return registers, registers[0] if count == 1 else "{" + ", ".join(registers) + "}"


def bits_of(kind: str) -> int:
    """Return the bits of a PTX type."""
    return {"f16x2": 32, "bf16x2": 32, "bf16": 16}.get(kind) or int(kind[1:])


def dtype_of(kind: str) -> np.dtype[Any]:
    """Return the integers that a PTX type is made of; floats are words."""
    return np.dtype(("i" if kind[0] == "s" else "u") + str(bits_of(kind) // 8))


HALVES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
FLOATS: dict[str, Any] = {**HALVES, "f32": np.float32, "f64": np.float64}


def element_of(kind: str) -> np.dtype[Any]:
    """Return the dtype of the elements of a type."""
    return np.dtype(FLOATS.get(kind.removesuffix("x2")) or dtype_of(kind))


def combined(operation: str, kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return what an operation makes of what memory holds and what comes, element by element."""
    dtype = element_of(kind)
    if dtype.kind not in "ui":
        function = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
        return function(old.astype(np.float64), new.astype(np.float64)).astype(dtype)
    function = {
        "add": lambda a, b: a + b, "min": min, "max": max, "exch": lambda a, b: b,
        "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
        "inc": lambda a, b: 0 if a >= b else a + 1,
        "dec": lambda a, b: b if a == 0 or a > b else a - 1,
    }[operation]  # fmt: skip
    pairs = zip(old.view(dtype).tolist(), new.view(dtype).tolist(), strict=True)
    words = [function(a, b) % (1 << 8 * dtype.itemsize) for a, b in pairs]
    return np.array(words, f"u{dtype.itemsize}").view(dtype)


def numbers(operation: str, kind: str, count: int, seed: int) -> np.ndarray:
    """Return random numbers for an operation; those of floats are small, and their sums exact."""
    generator = np.random.default_rng(seed)
    dtype = element_of(kind)
    if dtype.kind not in "ui":
        return generator.integers(-9, 10, count).astype(dtype)
    high = 12 if operation in ("inc", "dec") else 1 << 8 * dtype.itemsize
    return generator.integers(0, high, count, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
