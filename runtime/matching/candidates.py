"""Variants that may be launched: what decides whether they can be, and the artifact of each.

A signature says what the caller passes: which arrays, in which order, where they may lie. Arguments
bind what a call writes, by position and by name, to these arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pallasc.errors import ArgumentError, CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.lazy import cached_property
from pallasc.specs.spec import variant_id
from pallasc.specs.templates import Scalar

ArrayType = tuple[Any, ...]
"""What decides about an array: its dtype by short name and its shape. Its layout is third where it
is not row-major (`specs/arrays.py`)."""


def array_type(
    dtype: str, shape: Iterable[int], layout: tuple[int, ...] | None = None
) -> ArrayType:
    """Return what decides about an array."""
    return (dtype, tuple(shape)) if layout is None else (dtype, tuple(shape), layout)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where variants come from.

    Attributes:
        file: the bundle.
        provider: who brought it: a package, `mylib-sm90 1.0`, `PALLASC_BUNDLE_PATH`; empty for a
            bundle that was opened by its path.
        package: the package whose kernels they are; empty where none was asked for.
    """

    file: str
    provider: str = ""
    package: str = ""

    def __str__(self) -> str:
        return f"{self.provider} ({self.file})" if self.provider else self.file


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a variant before its artifact is read.

    Attributes:
        target: the model that it was compiled for.
        arch: its architecture.
        minimum_driver: `cuda` and `linux`, None where the artifact does not say.
        inputs, outputs: its arrays.
    """

    target: str
    arch: str
    minimum_driver: Mapping[str, object] | None
    inputs: Sequence[Array | Binding]
    outputs: Sequence[Array | Binding]


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


class Candidate:
    """A variant that may be launched.

    Args:
        name: the kernel.
        params: its point of the matrix.
        artifact: what was compiled.

    Attributes:
        name, params: as given.
        origin: where it comes from, None where it was in no bundle.
        origins: of all bundles that were opened together with that.
    """

    def __init__(self, name: str, params: Mapping[str, Scalar], artifact: Artifact | None) -> None:
        self.name = name
        self.params = params
        self.origin: Origin | None = None
        self.origins: tuple[Origin, ...] = ()
        if artifact is not None:
            vars(self)["artifact"] = artifact

    def __repr__(self) -> str:
        origin = f" from {self.origin}" if self.origin else ""
        return f"<Variant {self.id} ({self.arch}){origin}>"

    @cached_property
    def artifact(self) -> Artifact:
        """What was compiled."""
        raise NotImplementedError

    @cached_property
    def signature(self) -> Signature:
        """What it takes and gives; its artifact is read for that.

        Raises:
            CorruptError: as `Signature.of` does.
        """
        return Signature.of(self.artifact.plan)

    @cached_property
    def facts(self) -> Facts:
        """What is known of it before its artifact is read."""
        target, plan = self.artifact.target, self.artifact.plan
        driver = self.artifact.record.get("minimum_driver")
        driver = driver if isinstance(driver, Mapping) else None
        arch = str(target.get("arch"))
        return Facts(str(target["name"]), arch, driver, plan.inputs, plan.outputs)

    @property
    def target(self) -> str:
        """The model that it was compiled for."""
        return self.facts.target

    @property
    def arch(self) -> str:
        """Its architecture."""
        return self.facts.arch

    @cached_property
    def id(self) -> str:
        """What it is called: `matmul[m=1024,n=4096]@h100-sxm`."""
        return variant_id(self.name, self.params.items(), self.target)

    @cached_property
    def arrays(self) -> tuple[ArrayType, ...]:
        """Type of each input, in the order of the signature."""
        return tuple(
            array_type(array.dtype, array.shape, array.layout) for array in self.facts.inputs
        )

    @cached_property
    def types(self) -> tuple[tuple[ArrayType, ...], tuple[ArrayType, ...]]:
        """Type of each input and of each output."""
        return self.arrays, tuple(
            array_type(array.dtype, array.shape) for array in self.facts.outputs
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
