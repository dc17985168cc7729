"""Whatever has `__dlpack__`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import ArrayView
from pallasc.runtime.adapters.capsules import CPU, CUDA, CUDA_MANAGED, read_capsule
from pallasc.runtime.adapters.device_arrays import OwnMemory

_NO_SYNCHRONISATION, _DEFAULT_STREAM = -1, 1


class DlpackAdapter(OwnMemory):
    """Arrays with `__dlpack__`; results come in device arrays of our own."""

    name = "an array with __dlpack__"

    def view(self, array: Any) -> ArrayView:
        """Return what DLPack says of an array; the producer is asked for no synchronisation.

        Raises:
            ArgumentError: it lies where no kernel reaches.
        """
        return _view(array, _NO_SYNCHRONISATION)

    def view_in_order(self, array: Any) -> ArrayView:
        """Return what DLPack says of an array; the default stream waits for the producer's work.

        Raises:
            ArgumentError: it lies where no kernel reaches.
        """
        view = _view(array, _DEFAULT_STREAM)
        return view if view.device is None else replace(view, stream=_DEFAULT_STREAM)


def _view(array: Any, stream: int) -> ArrayView:
    kind, ordinal = array.__dlpack_device__()
    if int(kind) not in (CPU, CUDA, CUDA_MANAGED):
        raise ArgumentError(f"an array lies on a DLPack device of kind {int(kind)}, no GPU.")
    on_gpu = int(kind) != CPU
    capsule = array.__dlpack__(stream=stream) if on_gpu else array.__dlpack__()
    return read_capsule(capsule, int(ordinal) if on_gpu else None)


def make_adapter() -> DlpackAdapter:
    """Return the adapter."""
    return DlpackAdapter()
