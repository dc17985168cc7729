"""Whether this machine can run a kernel, and why not; found out without making a context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pallasc.errors import DeviceError, SelectionError
from pallasc.runtime.device.devices import device_count, device_ordinal, look_at_device
from pallasc.runtime.matching.candidates import Candidate
from pallasc.runtime.matching.selection import fitting_candidates


@dataclass(frozen=True, slots=True)
class Availability:
    """What `kernel.available()` returns; it is true where the kernel can run.

    Attributes:
        devices: numbers of the GPUs that can run at least one variant.
        reason: why no GPU can, in words; empty where a GPU can.
    """

    devices: tuple[int, ...]
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.devices)

    def __str__(self) -> str:
        return self.reason or f"runs on GPU {', '.join(map(str, self.devices))}"


def availability(candidates: Sequence[Candidate], device: Any = None) -> Availability:
    """Return whether any of these variants can run on a GPU, or on any GPU of this machine.

    Raises:
        ArgumentError: `device` is not a GPU.
        CorruptError: an artifact is damaged.
    """
    try:
        count = device_count()
        chosen = range(count) if device is None else [device_ordinal(device)]
        if device is not None and chosen[0] not in range(count):
            return Availability((), f"there is no GPU {chosen[0]}: the driver counts {count}.")
        return _on_any(candidates, chosen)
    except DeviceError as error:
        return Availability((), str(error))


def _on_any(candidates: Sequence[Candidate], ordinals: Iterable[int]) -> Availability:
    able, reasons = [], []
    for ordinal in ordinals:
        try:
            fitting_candidates(candidates, look_at_device(ordinal))
        except SelectionError as error:
            reasons.append(str(error))
        else:
            able.append(ordinal)
    return Availability(tuple(able), "" if able else "\n".join(reasons) or "it finds no GPU.")
