"""Check whether a GPU can run a kernel, without creating a context; resolve a `device` argument."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any

from pallasc.errors import ArgumentError, DeviceError, SelectionError
from pallasc.runtime.device.devices import current_device, device_count, look_at_device
from pallasc.runtime.matching.tuned import Selector


@dataclass(frozen=True, slots=True)
class Availability:
    """Result of `kernel.available()`; true if the kernel can run.

    Attributes:
        devices: ordinals of the GPUs that can run at least one variant.
        reason: why no GPU can run it, as text; empty if a GPU can.
    """

    devices: tuple[int, ...]
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.devices)

    def __str__(self) -> str:
        return self.reason or f"runs on GPU {', '.join(map(str, self.devices))}"


def availability(selector: Selector, device: Any = None) -> Availability:
    """Return whether a GPU, or any GPU of this machine, can run one of a kernel's variants.

    Raises:
        ArgumentError: `device` is not a GPU.
        CorruptError: an artifact is damaged.
    """
    try:
        count = device_count()
        chosen = range(count) if device is None else [device_ordinal(device)]
        if device is not None and chosen[0] not in range(count):
            return Availability((), f"there is no GPU {chosen[0]}: the driver counts {count}.")
        return _on_any(selector, chosen)
    except DeviceError as error:
        return Availability((), str(error))


def _on_any(selector: Selector, ordinals: Iterable[int]) -> Availability:
    able, reasons = [], []
    for ordinal in ordinals:
        try:
            selector.fitting(look_at_device(ordinal))
        except SelectionError as error:
            reasons.append(str(error))
        else:
            able.append(ordinal)
    return Availability(tuple(able), "" if able else "\n".join(reasons) or "it finds no GPU.")


_NAME = re.compile(r"(?:cuda|gpu)(?::(\d{1,9}))?")


def device_ordinal(device: Any) -> int:
    """Return the ordinal of a device given as a number, `"cuda:1"`, or a device object.

    Accepts device objects of torch, cupy, cuda.core and JAX. None means the current device.

    Raises:
        ArgumentError: `device` is anything else.
    """
    if device is None:
        return current_device()
    if isinstance(device, str):
        match = _NAME.fullmatch(device)
        if match is not None:
            return current_device() if match[1] is None else int(match[1])
    elif getattr(device, "type", "cuda") == "cuda" and getattr(device, "platform", "gpu") == "gpu":
        for attribute in ("index", "local_hardware_id", "device_id", "id"):
            value = getattr(device, attribute, None)
            if type(value) is int:
                return value
        if getattr(device, "type", None) == "cuda":
            return current_device()
        with suppress(TypeError):
            return _index(device)
    raise ArgumentError(
        f"device must be a GPU, not {device!r}.", hint='Pass its number, or text like "cuda:0".'
    )


def _index(device: Any) -> int:
    if isinstance(device, bool):
        raise TypeError
    return index(device)
