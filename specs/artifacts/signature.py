"""The caller's view of a plan: its arrays, their order, and rules for their addresses.

Binds the arguments of a call, given by position or by name, in lists and dicts, to the arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pallasc.errors import ArgumentError, CorruptError
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.plan import Binding, LaunchPlan, tree_leaves
from pallasc.specs.artifacts.trees import flatten
from pallasc.specs.spelling import suggestion

Source = tuple[Literal["input", "result"], int]
"""Origin of an output: the input with this number, or the memory passed for this result."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a plan as the caller sees them.

    Attributes:
        inputs: the arrays that the caller passes, in order.
        outputs: the arrays that the caller gets.
        sources: origin of each output: an input, or an entry of `results`.
        results: the arrays that need memory: outputs that are neither an input nor another output.
        updated: numbers of the inputs that are updated in place.
        buffers: numbers of the buffers of inputs and results, in that order.
        alignments, sizes_bytes: required alignment and size of each of them, in bytes.
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
            CorruptError: an array is smaller than its buffer, or the origin of an output is
                unknown.
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
            tuple(binding.size_bytes for binding in passed),
            plan.input_tree,
            plan.output_tree,
            plan.parameters,
        )

    @property
    def passed(self) -> tuple[Binding, ...]:
        """Inputs, then results: all arrays that have an address."""
        return (*self.inputs, *self.results)

    def check_addresses(self, name: str, pointers: Sequence[int]) -> None:
        """Check alignment and overlap of the arrays.

        Raises:
            ArgumentError: an array is misaligned or overlaps another one.
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
    """Return a message about a misaligned array."""
    return (
        f"{path} starts at {address:#x}, misaligned by {address % alignment} bytes: the kernel "
        f"requires multiples of {alignment}"
    )


def _check_buffers(plan: LaunchPlan, passed: Sequence[Binding]) -> None:
    for binding in passed:
        buffer = plan.buffers[binding.buffer]
        if buffer.role not in ("input", "output"):
            raise CorruptError(f"array {binding.path} lies in a {buffer.role} buffer")
        size_bytes = binding.size_bytes
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


class Missing:
    """Marks an argument that was not given."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()


class Arguments:
    """The parameters of a kernel.

    Args:
        name: the kernel.
        signature: its signature.
        params: names of matrix parameters that are also accepted.
        others: other names that are accepted, for suggestions.
    """

    def __init__(
        self,
        name: str,
        signature: Signature | LaunchPlan,
        params: Iterable[str],
        others: Sequence[str] = ("out", "stream"),
    ) -> None:
        self._name = name
        self._others = others
        self._signature = signature
        self._trees = input_names(signature)
        self._params = list(params)

    def takes(self, name: str) -> bool:
        """Return True if the kernel accepts an argument with this name."""
        return name in self._params or any(name == own for own, _ in self._trees)

    def bind(
        self, positional: Sequence[Any], named: Mapping[str, object]
    ) -> tuple[list[Any], dict[str, object]]:
        """Return the arrays, and the other arguments: parameters of the matrix.

        Raises:
            ArgumentError: there are too many or too few, one is given twice, or a name is unknown.
        """
        values = list(positional)
        if len(values) > len(self._trees):
            raise self._error(f"was given {len(values)} arguments by position")
        values += [MISSING] * (len(self._trees) - len(values))
        rest = dict(named)
        for number, (name, _) in enumerate(self._trees):
            if name is not None and name in rest:
                if values[number] is not MISSING:
                    raise self._error(f"was given {name} twice")
                values[number] = rest.pop(name)
        for name in rest:
            if name not in self._params:
                raise self._unknown(name)
        return self._flat(values), rest

    def _flat(self, values: Sequence[Any]) -> list[Any]:
        leaves: dict[int, Any] = {}
        for number, ((name, tree), value) in enumerate(zip(self._trees, values, strict=True)):
            if type(tree) is int and value is not MISSING:  # the common case, without a generator
                leaves[tree] = value
                continue
            label = name or f"argument {number}"
            if value is not MISSING:
                leaves.update(flatten(tree, value, f"{self._name}: {label}"))
            elif tree is not None:
                raise self._error(f"was not given {label}")
        return [leaves[number] for number in range(len(leaves))]

    def _error(self, what: str) -> ArgumentError:
        arrays = ", ".join(
            f"{array.path}: {array_text(array.dtype, array.shape, array.layout)}"
            for array in self._signature.inputs
        )
        return ArgumentError(f"{self._name} {what}.", hint=f"It takes {arrays or 'no arrays'}.")

    def _unknown(self, name: str) -> ArgumentError:
        names = [*(own for own, _ in self._trees if own), *self._params, *self._others]
        return ArgumentError(
            f"{self._name} has no argument {name!r}.",
            hint=suggestion(name, names, otherwise="Its arguments"),
        )


def input_names(signature: Signature | LaunchPlan) -> list[tuple[str | None, Any]]:
    """Return the parameters of the function: name, and the tree of array numbers below it.

    Names are None if the function takes its arrays by position. JSON does not preserve the order of
    names, so they are sorted by their arrays, which are in the function's order. Names without
    arrays come last, unless the plan has another order.
    """
    tree = signature.input_tree
    if not isinstance(tree, Mapping):
        return [(None, item) for item in (tree if isinstance(tree, list) else [tree])]
    if signature.parameters:
        return [(name, tree[name]) for name in signature.parameters]
    return sorted(tree.items(), key=lambda item: min(tree_leaves(item[1]), default=math.inf))
