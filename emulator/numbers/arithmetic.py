"""The type of the table's entries: an instruction as a pure function over lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The element types depend on the opcode, which static types cannot express.
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An arithmetic instruction without its operands.

    Attributes:
        sources: the dtype that each source operand is viewed as, in the order of the PTX text.
            Packed types are unsigned integers of their full width. If a register is wider than its
            source type (PTX allows a `.b32` register for `.u8`), the caller must narrow it.
        results: the dtype of each result. For a wider destination register, the value is extended
            as by `astype`: with its sign for signed types, with zeros for the others (PTX ISA 9.0,
            9.4.1).
        apply: takes one array for each source, all contiguous and of the same shape, and returns
            one new array, or a tuple if there are several results. It keeps no state, does not
            modify its arguments and raises no floating-point warnings.
    """

    sources: tuple[np.dtype[Any], ...]
    results: tuple[np.dtype[Any], ...]
    apply: Callable[..., Any]
