"""Errors that only a GPU and its driver raise, compared with errors under the stand-in driver."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from arrays import device_arrays, result_of
from desk import Desk, describe, wait
from part_calls import capture, make_pair, open_add
from schedule import Unit

TITLE = "errors"
SHARE = 0.05
AT_ONCE = 1

_NOWHERE = 1 << 46
"""An address without memory."""

Steps = Mapping[str, tuple[str | None, Callable[[], object]]]
"""For each step: the name of the error class that it must raise (or None), and the step."""


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each mistake."""
    none = {"CUDA_VISIBLE_DEVICES": ""}
    return [
        Unit("errors", name, 60, 4, environment=none if name == "no GPU is visible" else {})
        for name in MISTAKES
    ]


def run(desk: Desk) -> None:
    """Make one mistake, and compare what each step raises."""
    for step, (expected, work) in MISTAKES[desk.name](desk).items():
        desk.ask(step, lambda work=work, expected=expected: _judged(expected, work))


def _judged(expected: str | None, work: Callable[[], object]) -> dict[str, Any]:
    raised = None
    try:
        work()
    except Exception as error:  # noqa: BLE001 - it is the result
        raised = describe(error)
    return {"right": (raised and raised["type"]) == expected, "raised": raised}


def wrong_memory(desk: Desk) -> Steps:
    """Pass memory that is not valid."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    kernel, a = open_add(desk), DeviceArray((1024, 4096), "f32")
    route = kernel.route(0, kernel.variants[0].arrays)
    shifted = [a.pointer, a.pointer + 16, a.pointer]
    return {
        "a misaligned array": ("ArgumentError", lambda: route.enqueue(0, 0, shifted)),
        "too much memory": ("OutOfMemoryError", lambda: DeviceArray((1 << 44,), "u8")),
    }


def unloaded_capture(desk: Desk) -> Steps:
    """Capture a kernel that is not loaded."""
    from pallasc.runtime.device.devices import active, get_device

    kernel = open_add(desk)
    held, out = device_arrays(dict(zip("xy", make_pair(), strict=True))), result_of(kernel)

    def work() -> None:
        with active(get_device(0)) as driver:
            capture(driver, lambda stream: kernel.into(**held, out=out, stream=stream))

    return {"a launch": ("DeviceError", work)}


def illegal_address(desk: Desk) -> Steps:
    """Let a kernel write to an address without memory, and continue."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    kernel, a = open_add(desk), DeviceArray((1024, 4096), "f32")
    route = kernel.route(0, kernel.variants[0].arrays)
    return {
        "the launch": (None, lambda: route.enqueue(0, 0, [a.pointer, a.pointer, _NOWHERE])),
        "waiting for it": ("DriverError", wait),
        "the next call": ("DriverError", lambda: kernel(*make_pair())),
        "reading an array": ("DriverError", a.to_bytes),
        "loading another kernel": ("DriverError", lambda: open_add(desk).preload()),
    }


def no_gpu(desk: Desk) -> Steps:
    """Call where no GPU is visible."""
    kernel = open_add(desk)
    return {
        "preload": ("DriverError", kernel.preload),
        "a call": ("DriverError", lambda: kernel(*make_pair())),
    }


MISTAKES: Mapping[str, Callable[[Desk], Steps]] = {
    "memory that is not valid": wrong_memory,
    "a capture of what is not loaded": unloaded_capture,
    "an illegal address": illegal_address,
    "no GPU is visible": no_gpu,
}
