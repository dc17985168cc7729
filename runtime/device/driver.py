"""The CUDA driver: opened on first use, every answer checked and put into words.

Codes are those of `CUresult` in cuda.h; the hints follow its comments.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from pallasc.errors import DeviceError, DriverError, OutOfMemoryError
from pallasc.runtime.device import process_state

OLDEST_DRIVER = 12000
"""The first driver API with `cuLibraryLoadData`: 12.0, as 1000 × major + 10 × minor."""

STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})
"""Codes after which a process can do nothing more on the GPU, whichever call brings them.

cuda.h says of all of them that the process is left in an inconsistent state, or that the context
can no longer be used; of 214 and 220 that memory or NVLink had an error that cannot be corrected.
"""

ODD_ANSWERS = (ValueError, RuntimeError)
"""What cuda-bindings raises for a code that it does not know, and for a missing function."""

_INIT_REASONS = {
    3: "it is shutting down, or this process was forked after it was opened",
    100: "it finds no GPU",
    101: "CUDA_VISIBLE_DEVICES names a GPU that does not exist",
    802: "the GPUs are not ready yet",
    803: "its library does not match the kernel module that is loaded",
    804: "a library for forward compatibility does not support this GPU",
    999: "it does not say why",
}
_INIT_HINTS = {
    3: 'Start processes with multiprocessing.get_context("spawn").',
    100: "Run nvidia-smi; in a container, start it with --gpus all.",
    101: "Set CUDA_VISIBLE_DEVICES to numbers that nvidia-smi lists, or unset it.",
    802: "Start nvidia-fabricmanager, or wait for it.",
    803: "Restart the machine, or load the kernel module of the installed driver.",
    804: "Remove the package cuda-compat, or install a newer driver.",
    999: "Run nvidia-smi; restarting the machine often helps.",
}
_INSTALL = (
    "Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for those "
    "built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus all."
)

_EARLIER = "It comes from an earlier asynchronous error: this process cannot use the GPU any more."
_HINTS = {
    1: "An argument is out of the driver's range.",
    2: "Free GPU memory, or use smaller arrays.",
    201: "Make a device current in this thread, or pass a stream of a device.",
    209: "The cubin is for another GPU: compile for this one.",
    708: "Set its flags before anything uses the GPU.",
    709: "The context was destroyed or reset: keep it for as long as kernels are called.",
    222: "The file was made by a newer toolkit: install a newer driver.",
    400: "The stream does not exist, or belongs to another device.",
    701: "The kernel takes more registers or threads than a block may have here.",
    900: "This cannot be done while a stream is captured: call preload() before.",
    906: "This cannot be done while a stream is captured: call preload() before.",
    912: "The cluster does not fit this GPU.",
}


class Driver:
    """The opened driver.

    Attributes:
        bindings: the module `cuda.bindings.driver`.
        version: the driver API, 13020 for 13.2.
        as_it_is: a context manager that gives the driver, and leaves the thread as it is.
    """

    def __init__(self, bindings: Any, version: int) -> None:
        self.bindings = bindings
        self.version = version
        self.success = bindings.CUresult.CUDA_SUCCESS
        self.as_it_is = nullcontext(self)

    def call(self, function: str, *arguments: Any, what: str) -> Any:
        """Call a function of the driver; return its result, a tuple where it has several.

        Args:
            function: its name, `cuLibraryLoadData`.
            arguments: what it takes.
            what: what an error says first: "the cubin cannot be loaded".

        Raises:
            DriverError: it answers with an error.
            DeviceError: the driver has no such function.
        """
        try:
            result = getattr(self.bindings, function)(*arguments)
        except ODD_ANSWERS as error:
            raise self.explain(error, function, what) from error
        if result[0] is not self.success:
            raise self.error(int(result[0]), function, what)
        return result[1] if len(result) == 2 else result[1:]

    def explain(self, error: Exception, function: str, what: str) -> DeviceError:
        """Return the error for what cuda-bindings raised, one of `ODD_ANSWERS`."""
        if isinstance(error, ValueError):
            return DeviceError(
                f"{what}: {function} answers what this cuda-bindings does not know: {error}.",
                hint="Run pip install --upgrade cuda-bindings.",
            )
        return DeviceError(
            f"{what}: the driver for CUDA {version_text(self.version)} has no {function}.",
            hint="Install a newer NVIDIA driver.",
        )

    def error(self, code: int, function: str, what: str, reason: str = "") -> DriverError:
        """Return the error for a code, with the driver's own name and text of it.

        Args:
            code: the driver's answer.
            function: the function that gave it.
            what: what the message says first.
            reason: what the message says last, "" for nothing.
        """
        name, text = (self._text(ask, code) for ask in ("cuGetErrorName", "cuGetErrorString"))
        end = f": {reason}." if reason else "."
        message = f"{what}: {function} answers {name} ({code}), {text}{end}"
        hint = _EARLIER if code in STICKY else _HINTS.get(code)
        kind = OutOfMemoryError if code == 2 else DriverError
        return kind(message, code=code, hint=hint)

    def _text(self, ask: str, code: int) -> str:
        try:
            status, text = getattr(self.bindings, ask)(self.bindings.CUresult(code))
        except (RuntimeError, ValueError):
            return "an error that it does not name"
        return text.decode() if status is self.success else "an error that it does not name"


def open_driver() -> Driver:
    """Return the driver, opened and initialised on the first call.

    Raises:
        DeviceError: there is no driver, it is too old or cannot start, or this process was forked
            from a process that had opened it.
    """
    state = process_state.now
    if state.is_forked:
        raise DeviceError(
            "this process was forked from one that uses the GPU; CUDA does not work in it.",
            hint=_INIT_HINTS[3],
        )
    driver: Driver = state.driver or _open_once()
    return driver


def is_driver_open() -> bool:
    """Tell whether the driver can be used, without opening it."""
    return process_state.now.driver is not None


def version_text(version: int) -> str:
    """Return `13.2` for 13020."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _open_once() -> Driver:
    state = process_state.now
    with state.lock:
        if state.driver is None:
            state.is_opening = True
            try:
                state.driver = _open()
            finally:
                state.is_opening = False
        driver: Driver = state.driver
    return driver


def _open() -> Driver:
    bindings = _bindings()
    driver = Driver(bindings, _version(bindings))
    if driver.version < OLDEST_DRIVER:
        raise DeviceError(
            f"the NVIDIA driver is for CUDA {version_text(driver.version)}, and kernels need 12.0.",
            hint=_INSTALL,
        )
    code = int(bindings.cuInit(0)[0])
    if code:
        what, reason = "the NVIDIA driver does not start", _INIT_REASONS.get(code, "")
        error = driver.error(code, "cuInit", what, reason)
        raise DriverError(error.message, code=code, hint=_INIT_HINTS.get(code))
    return driver


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"cuda-bindings cannot be imported: {error}.", hint="Run pip install cuda-bindings."
        ) from error
    return driver


def _version(bindings: Any) -> int:
    """Return the driver API; cuda-bindings looks for the library at this first call."""
    try:
        code, version = bindings.cuDriverGetVersion()
    except (RuntimeError, OSError) as error:
        raise DeviceError(
            "no NVIDIA driver here: libcuda.so.1 cannot be loaded.", hint=_INSTALL
        ) from error
    return int(version) if int(code) == 0 else 0
