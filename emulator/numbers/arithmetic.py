"""What every part of the table returns: one instruction as a pure function over lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The elements' types are a matter of the opcode, which no static type can say.
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An arithmetic instruction without its operands.

    Attributes:
        sources: what each source operand is viewed as, in the order of the PTX text. Packed types
            are unsigned integers of their whole width. A register that is wider than its source
            type (PTX allows a `.b32` register for `.u8`) is to be narrowed by the caller.
        results: what each destination receives. A destination register that is wider gets the
            value extended as `astype` does: by sign for signed types, with zeros for the others
            (PTX ISA 9.0, 9.4.1).
        apply: takes one array for each source, all of one shape and contiguous, and returns one
            new array, or a tuple where there are several results. It keeps no state, changes no
            argument and raises no floating-point warning.
    """

    sources: tuple[np.dtype[Any], ...]
    results: tuple[np.dtype[Any], ...]
    apply: Callable[..., Any]
