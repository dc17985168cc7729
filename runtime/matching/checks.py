"""Checks of the arrays of one call on the slow path, each with its message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.matching.arrays import Adapter, ArrayView
from pallasc.runtime.matching.candidates import ArrayType, array_type
from pallasc.runtime.matching.signature import Signature
from pallasc.specs.arrays import array_text, strides_of
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.bundle.manifest import Array


@dataclass(frozen=True, slots=True)
class Passed:
    """An array of a call, the framework it is of, and what that says of it."""

    array: Any
    adapter: Adapter
    view: ArrayView


def common_device(name: str, signature: Signature, inputs: Sequence[Passed]) -> int | None:
    """Return the GPU that all inputs lie on, None where all are on the host.

    Raises:
        ArgumentError: they lie in different places.
    """
    devices: dict[int | None, str] = {}
    for binding, one in zip(signature.inputs, inputs, strict=True):
        devices.setdefault(one.view.device, binding.path)
    if len(devices) > 1:
        (place, first), (other, second) = list(devices.items())[:2]
        raise ArgumentError(
            f"{name}: {first} lies on {_place(place)}, and {second} on {_place(other)}.",
            hint="Move one of them.",
        )
    return next(iter(devices))


def check_types(
    name: str, bindings: Sequence[Array | Binding], arrays: Sequence[ArrayType]
) -> None:
    """Check arrays against the only types that there are, for the plainest message.

    Raises:
        ArgumentError: one has another dtype, shape or layout.
    """
    for binding, (dtype, shape, *more) in zip(bindings, arrays, strict=True):
        taken = array_text(binding.dtype, binding.shape, binding.layout)
        if dtype != binding.dtype:
            raise ArgumentError(
                f"{name}: {binding.path} has dtype {dtype}, and the kernel takes {taken}.",
                hint="Convert the array, or compile a variant for its dtype.",
            )
        if tuple(shape) != tuple(binding.shape):
            raise ArgumentError(
                f"{name}: {binding.path} has shape {list(shape)}, and the kernel takes {taken}.",
                hint="Compile a variant for this shape.",
            )
        own = array_type(binding.dtype, binding.shape, binding.layout)
        if array_type(dtype, shape, *more) != own:
            raise wrong_layout(name, binding, strides_of(shape, *more))


def check_copied(name: str, bindings: Sequence[Binding], arrays: Sequence[Passed]) -> None:
    """Check that arrays on the host are such that are copied.

    Raises:
        ArgumentError: one is not.
    """
    for binding, one in zip(bindings, arrays, strict=True):
        if not one.adapter.is_copied:
            raise ArgumentError(
                f"{name}: {binding.path} is {one.adapter.name} on the host.",
                hint="Move it to a GPU; only arrays of numpy are copied there and back.",
            )


def check_inputs(name: str, signature: Signature, inputs: Sequence[Passed]) -> None:
    """Check that inputs have no gaps, and may be written where the kernel updates them.

    Raises:
        ArgumentError: one has, or may not.
    """
    for number, (binding, one) in enumerate(zip(signature.inputs, inputs, strict=True)):
        if not one.view.is_contiguous and one.view.layout != binding.layout:
            raise _not_contiguous(name, binding)
        if not one.view.is_contiguous and one.view.layout is None:
            raise _not_contiguous(name, binding)
        if number in signature.updated and not one.view.is_writable:
            raise _read_only(name, binding)


def check_result(name: str, binding: Binding, view: ArrayView, ordinal: int | None) -> None:
    """Check an array that results are written into.

    Raises:
        ArgumentError: it does not fit.
    """
    if (view.dtype, view.shape) != (binding.dtype, binding.shape):
        raise ArgumentError(
            f"{name}: {binding.path} is {array_text(view.dtype, view.shape)}, and the kernel "
            f"writes {array_text(binding.dtype, binding.shape)}."
        )
    if view.device != ordinal:
        raise ArgumentError(
            f"{name}: {binding.path} lies on {_place(view.device)}, and the inputs on "
            f"{_place(ordinal)}.",
            hint="Allocate it where they are.",
        )
    if not view.is_contiguous:
        raise _not_contiguous(name, binding)
    if not view.is_writable:
        raise _read_only(name, binding)


def listed(bindings: Iterable[Binding]) -> str:
    """Return `out: f32[4, 64]`, of several with commas between."""
    return ", ".join(f"{one.path}: {array_text(one.dtype, one.shape)}" for one in bindings)


def _read_only(name: str, binding: Binding) -> ArgumentError:
    return ArgumentError(f"{name}: {binding.path} may not be written, it is read-only.")


def _not_contiguous(name: str, binding: Binding) -> ArgumentError:
    return ArgumentError(
        f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
        hint="Pass a contiguous copy.",
    )


def wrong_layout(name: str, binding: Binding | Array, given: Sequence[int]) -> ArgumentError:
    """Return the error for an array whose elements lie in another order."""
    wanted = strides_of(binding.shape, binding.layout)
    taken = array_text(binding.dtype, binding.shape, binding.layout)
    if binding.layout is None:
        return ArgumentError(
            f"{name}: {binding.path} is not contiguous: its elements have gaps or another order.",
            hint=f"It has strides {list(given)}, and {taken} has {list(wanted)}: pass a contiguous "
            "copy, or compile a variant for its layout.",
        )
    return ArgumentError(
        f"{name}: {binding.path} has strides {list(given)}, and the kernel takes {taken} with "
        f"strides {list(wanted)}.",
        hint="Pass an array whose elements lie in that order, or compile a variant for this one.",
    )


def _place(device: int | None) -> str:
    return "the host" if device is None else f"GPU {device}"
