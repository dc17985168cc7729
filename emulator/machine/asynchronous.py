"""Asynchronous operations, and the memory they access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.faults import Actor
from pallasc.emulator.machine.memory import Region
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.tensors.tensor_memory import TensorMemory

Range = tuple[Region, "np.ndarray | int", int]
"""Bytes of a region: their start offsets, and the number of bytes from each start."""

Cells = tuple[TensorMemory, np.ndarray, "np.ndarray | range"]
"""Cells of tensor memory: lanes and columns, which are broadcast if both are arrays."""


@dataclass(slots=True, eq=False)
class Asynchronous:
    """An operation that was issued and completes later."""

    complete: Callable[[], None]
    what: str
    instruction: Instruction
    actor: Actor
    lane: int = 0
    read: Callable[[], None] | None = None  # reads the source, if that is a separate step
    done: bool = False
    reads: Sequence[Range] = ()  # these four are for the observer
    writes: Sequence[Range] = ()
    cells_read: Sequence[Cells] = ()
    cells_written: Sequence[Cells] = ()
    registers: tuple[Sequence[int], Sequence[int]] = ((), ())  # written and read by wgmma
    signals: Sequence[tuple[Block, int]] = ()  # mbarriers, by their offsets
    tag: Any = None  # the observer's
