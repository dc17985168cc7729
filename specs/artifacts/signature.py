"""What the caller of a plan passes: which arrays, in which order, where they may lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pallasc.errors import ArgumentError, CorruptError
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.dtypes import parse_dtype

Source = tuple[Literal["input", "result"], int]
"""Where an output comes from: the input with a number, or the memory passed for a result."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a plan, as the caller sees them.

    Attributes:
        inputs: the arrays that are passed, in order.
        outputs: the arrays that come back.
        sources: of each output, whether it is an input or in `results`.
        results: the arrays that need memory: outputs that are neither an input nor another output.
        updated: numbers of the inputs that are updated in place.
        buffers: numbers of the buffers of inputs and results, in that order.
        alignments, sizes_bytes: what their addresses are a multiple of, how long they are.
        input_tree, output_tree, parameters: as in the plan.
    """

    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    sources: tuple[Source, ...]
    results: tuple[Binding, ...]
    updated: tuple[int, ...]
    buffers: tuple[int, ...]
    alignments: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    input_tree: Any
    output_tree: Any
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, plan: LaunchPlan) -> Signature:
        """Return the signature of a plan.

        Raises:
            CorruptError: an array is smaller than the buffer it stands for, or does not say where
                an output comes from.
        """
        inputs = {binding.buffer: number for number, binding in enumerate(plan.inputs)}
        results: dict[int, Binding] = {}
        sources: list[Source] = []
        for output in plan.outputs:
            if output.buffer in inputs:
                sources.append(("input", inputs[output.buffer]))
            else:
                results.setdefault(output.buffer, output)
                sources.append(("result", list(results).index(output.buffer)))
        passed = (*plan.inputs, *results.values())
        _check_buffers(plan, passed)
        return cls(
            plan.inputs,
            plan.outputs,
            tuple(sources),
            tuple(results.values()),
            tuple(sorted({number for source, number in sources if source == "input"})),
            tuple(binding.buffer for binding in passed),
            tuple(plan.buffers[binding.buffer].alignment for binding in passed),
            tuple(array_bytes(binding) for binding in passed),
            plan.input_tree,
            plan.output_tree,
            plan.parameters,
        )

    @property
    def passed(self) -> tuple[Binding, ...]:
        """Inputs, then results: whatever has an address."""
        return (*self.inputs, *self.results)

    def check_addresses(self, name: str, pointers: Sequence[int]) -> None:
        """Check alignment and overlap.

        Raises:
            ArgumentError: an array lies where it may not.
        """
        sizes = self.sizes_bytes
        for pointer, alignment, size in zip(pointers, self.alignments, sizes, strict=True):
            if pointer % alignment and size:
                raise self._misaligned(name, pointers)
        first_result = len(self.inputs)
        for number in (*self.updated, *range(first_result, len(sizes))):
            start, size = pointers[number], sizes[number]
            end = start + size
            for other in range(max(number, first_result)):
                begin = pointers[other]
                if begin >= end or start >= begin + sizes[other] or other == number:
                    continue
                if size and sizes[other]:  # arrays without elements overlap nothing
                    raise _overlapping(
                        name, self.passed[number], self.passed[other], number >= first_result
                    )

    def _misaligned(self, name: str, pointers: Sequence[int]) -> ArgumentError:
        rows = zip(self.passed, self.alignments, pointers, self.sizes_bytes, strict=True)
        binding, alignment, pointer, _ = next(row for row in rows if row[2] % row[1] and row[3])
        return ArgumentError(
            f"{name}: {misaligned_text(binding.path, pointer, alignment)}.",
            hint="A view does that: pass a copy, or a view that starts at such a multiple.",
        )


def misaligned_text(path: str, address: int, alignment: int) -> str:
    """Return how far an array lies from where it may start."""
    return (
        f"{path} starts at {address:#x}, misaligned by {address % alignment} bytes: the kernel "
        f"requires multiples of {alignment}"
    )


def array_bytes(binding: Binding) -> int:
    """Return the bytes that an array takes on the device."""
    return (math.prod(binding.shape) * parse_dtype(binding.dtype).bits + 7) // 8


def _check_buffers(plan: LaunchPlan, passed: Sequence[Binding]) -> None:
    for binding in passed:
        buffer = plan.buffers[binding.buffer]
        if buffer.role not in ("input", "output"):
            raise CorruptError(f"array {binding.path} lies in a {buffer.role} buffer")
        size_bytes = array_bytes(binding)
        if buffer.size > size_bytes:
            raise CorruptError(
                f"array {binding.path} has {size_bytes} bytes, and its buffer {buffer.size}"
            )
        if buffer.alignment < 1:
            raise CorruptError(f"array {binding.path} is aligned to {buffer.alignment} bytes")
    owned = {binding.buffer for binding in passed}
    for number, buffer in enumerate(plan.buffers):
        if buffer.role in ("input", "output") and number not in owned and buffer.size:
            raise CorruptError(f"nobody provides {buffer.role} buffer {number}")


def _overlapping(name: str, written: Binding, other: Binding, is_result: bool) -> ArgumentError:
    if is_result:
        return ArgumentError(
            f"{name}: the memory for {written.path} overlaps {other.path}.",
            hint="Pass memory of its own as out.",
        )
    return ArgumentError(
        f"{name}: {written.path}, which is updated in place, overlaps {other.path}.",
        hint="Pass a copy of one of them.",
    )
