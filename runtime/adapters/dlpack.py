"""Arrays with `__dlpack__`."""

from __future__ import annotations

from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.capsules import CPU, CUDA, CUDA_MANAGED, read_capsule
from pallasc.runtime.adapters.device_arrays import OwnMemory
from pallasc.runtime.matching.arrays import FOREIGN_ERRORS, ArrayView

_NO_SYNCHRONISATION, _DEFAULT_STREAM = -1, 1

# From this version on, a capsule states whether its array is writable.
_VERSION = (1, 0)


class DlpackAdapter(OwnMemory):
    """Arrays with `__dlpack__`; results are pallasc device arrays."""

    name = "an array with __dlpack__"

    def __init__(self) -> None:
        self._unversioned: set[type] = set()

    def view(self, array: Any) -> ArrayView:
        """Return a view of an array through DLPack, without asking the producer to synchronize.

        Raises:
            ArgumentError: it cannot be exported, or is in memory that kernels cannot reach.
        """
        return self._view(array, None)

    def view_in_order(self, array: Any) -> ArrayView:
        """Return a view of an array through DLPack; the default stream waits for its producer.

        Raises:
            ArgumentError: it cannot be exported, or is in memory that kernels cannot reach.
        """
        return self._view(array, _DEFAULT_STREAM)

    def _view(self, array: Any, stream: int | None) -> ArrayView:
        try:
            kind, ordinal = array.__dlpack_device__()
            where = int(kind), int(ordinal)
        except FOREIGN_ERRORS as error:
            raise ArgumentError(f"__dlpack_device__() failed: {_text(error)}.") from error
        if where[0] not in (CPU, CUDA, CUDA_MANAGED):
            raise ArgumentError(f"an array lies on a DLPack device of kind {where[0]}, no GPU.")
        if where[0] == CPU:
            return read_capsule(self._export(array), None)
        capsule = self._export(array, stream=stream or _NO_SYNCHRONISATION)
        return read_capsule(capsule, where[1], stream)

    def _export(self, array: Any, **options: Any) -> Any:
        """Return a capsule, a versioned one if the producer supports it."""
        try:
            if type(array) not in self._unversioned:
                try:
                    return array.__dlpack__(max_version=_VERSION, **options)
                except TypeError:
                    capsule = array.__dlpack__(**options)
                    self._unversioned.add(type(array))
                    return capsule
            return array.__dlpack__(**options)
        except FOREIGN_ERRORS as error:
            raise ArgumentError(
                f"__dlpack__() failed: {_text(error)}.",
                hint="DLPack takes neither sparse arrays nor arrays that require gradients.",
            ) from error


def _text(error: Exception) -> str:
    """Return an error's class and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"


def make_adapter() -> DlpackAdapter:
    """Return the adapter."""
    return DlpackAdapter()
