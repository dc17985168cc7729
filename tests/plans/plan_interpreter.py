"""Execute a launch plan on memory of this process: what every step reads and writes is the plan's.

A kernel is a function that gets a `Memory` and the launch; it finds its arrays through the launch's
own parameters. What nothing has written yet holds a pattern, so that a missing fill or copy shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pallasc.specs.artifacts.plan import Launch, LaunchPlan

PATTERN = 0xC7
"""Every byte that nothing has written: as numbers, large ones."""

Kernel = Callable[["Memory", Launch], None]


class Memory:
    """The buffers of a plan, of bytes each."""

    def __init__(
        self, plan: LaunchPlan, inputs: Sequence[bytes], blobs: Mapping[str, bytes]
    ) -> None:
        self.buffers = [np.full(buffer.size, PATTERN, np.uint8) for buffer in plan.buffers]
        for buffer, memory in zip(plan.buffers, self.buffers, strict=True):
            if buffer.digest is not None:
                memory[:] = np.frombuffer(blobs[buffer.digest], np.uint8)
        for binding, data in zip(plan.inputs, inputs, strict=True):
            self.buffers[binding.buffer][:] = np.frombuffer(data, np.uint8)
        changing = {binding.buffer for binding in plan.outputs}
        self._fixed = {
            number
            for number, buffer in enumerate(plan.buffers)
            if buffer.role in ("input", "constant") and number not in changing
        }

    def read(self, buffer: int, offset: int, size: int) -> bytes:
        """Return bytes of a buffer; it has to have them."""
        return self._range(buffer, offset, size).tobytes()

    def write(self, buffer: int, offset: int, data: bytes) -> None:
        """Put bytes into a buffer, which has to have room for them and may be written."""
        if buffer in self._fixed and data:
            raise ValueError(f"buffer {buffer} is written")
        self._range(buffer, offset, len(data))[:] = np.frombuffer(data, np.uint8)

    def _range(self, buffer: int, offset: int, size: int) -> np.ndarray:
        memory = self.buffers[buffer]
        if offset < 0 or offset + size > len(memory):
            raise IndexError(f"bytes {offset} to {offset + size} of {len(memory)}")
        return memory[offset : offset + size]


def run_plan(
    plan: LaunchPlan, inputs: Sequence[bytes], blobs: Mapping[str, bytes], kernel: Kernel
) -> list[bytes]:
    """Return the bytes of each output.

    Args:
        plan: the plan.
        inputs: bytes of each input, in order.
        blobs: constants by digest.
        kernel: what is launched.
    """
    memory = Memory(plan, inputs, blobs)
    for step in plan.steps:
        if isinstance(step, Launch):
            kernel(memory, step)
        else:
            step.run(memory)
    return [memory.buffers[binding.buffer].tobytes() for binding in plan.outputs]
