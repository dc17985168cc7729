"""Whatever has `__dlpack__`."""

from __future__ import annotations

from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import ArrayView
from pallasc.runtime.adapters.capsules import CPU, CUDA, CUDA_MANAGED, read_capsule
from pallasc.runtime.adapters.device_arrays import OwnMemory


class DlpackAdapter(OwnMemory):
    """Arrays with `__dlpack__`; results come in device arrays of our own."""

    name = "an array with __dlpack__"

    def view(self, array: Any) -> ArrayView:
        """Return what DLPack says of an array.

        The producer is asked for no synchronisation: the launch goes into the stream that the
        caller names, or the default one, where the producer's work is as a rule.

        Raises:
            ArgumentError: it lies where no kernel reaches.
        """
        kind, ordinal = array.__dlpack_device__()
        if int(kind) not in (CPU, CUDA, CUDA_MANAGED):
            raise ArgumentError(f"an array lies on a DLPack device of kind {int(kind)}, no GPU.")
        on_gpu = int(kind) != CPU
        capsule = array.__dlpack__(stream=-1) if on_gpu else array.__dlpack__()
        return read_capsule(capsule, int(ordinal) if on_gpu else None)


def make_adapter() -> DlpackAdapter:
    """Return the adapter."""
    return DlpackAdapter()
