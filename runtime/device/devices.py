"""The CUDA driver, opened on first use, with every result checked; GPUs and their contexts."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from pallasc.errors import ArgumentError, DeviceError, DriverError, OutOfMemoryError

INSTALL = (
    "Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for those "
    "built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus all."
)
"""Remedy if the driver is missing or too old."""

_EARLIER = "It comes from an earlier asynchronous error: this process cannot use the GPU any more."
_NOT_INITIALIZED = 3


@cache
def rows(macro: str) -> list[tuple[Any, ...]]:
    """Return the rows with this macro in `runtime/native/driver_results.h`."""
    from ast import literal_eval

    file = Path(__file__).parents[1] / "native" / "driver_results.h"
    text = file.read_text(encoding="ascii")
    return [literal_eval(row) for row in re.findall(rf"^{macro}(\(.*\))$", text, re.MULTILINE)]


def _hint(code: int) -> str | None:
    return _EARLIER if code in rows("STICKY")[0] else dict(rows("RESULT")).get(code)


def _start_words(code: int) -> tuple[str, str | None]:
    """Return the reason and the hint for a result of `cuInit`."""
    return {row[0]: row[1:] for row in rows("START")}.get(code, ("", None))


def version_text(version: int) -> str:
    """Return a version such as 13020 as text: `13.2`."""
    return f"{version // 1000}.{version % 1000 // 10}"


# ---- the state of the process


class Forgetful(Protocol):
    """An object that users keep across a fork, and that holds driver handles."""

    def forget(self) -> None:
        """Drop everything that was created before a fork."""


class ProcessState:
    """Tables and lock of one process; a forked child starts with new ones.

    CUDA does not work in the child of a process that has opened the driver, and a lock that another
    thread holds at the time of the fork is never released there. So nothing is repaired: `reset`
    replaces everything.

    Attributes:
        is_forked: True if this process was forked from a process that had opened the driver.
        is_opening: True while a thread is opening the driver.
        driver: the `Driver`; None before it is opened.
        lock: held while creating anything that exists once per process; reentrant, since creating
            a program creates libraries, streams and constants.
        devices: each `Device` by ordinal.
        models: a `Device` of each GPU model, None until first requested.
        streams: the handle of pallasc's own stream by ordinal.
        tails: each `streams.Tail` by ordinal and stream ID.
        default_tails: the `streams.Tail` of the default stream by ordinal.
        spare_events: events that no tail refers to any more, by ordinal.
        constants: addresses by ordinal and digest.
        libraries: loaded cubins by digest; see `calls.plain`.
        programs: by artifact and ordinal; see `calls.launch`.
        routes: the routes (`calls.launch`), which drop their programs after a fork.
    """

    def __init__(self) -> None:
        self.routes: WeakSet[Forgetful] = WeakSet()
        self.reset(is_forked=False)

    def reset(self, *, is_forked: bool) -> None:
        """Forget everything, as in a process that has used nothing yet."""
        self.is_forked = is_forked
        self.is_opening = False
        self.driver: Driver | None = None
        self.lock = threading.RLock()
        self.devices: dict[int, Device] = {}
        self.models: tuple[Device, ...] | None = None
        self.streams: dict[int, int] = {}
        self.tails: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()
        self.default_tails: dict[int, Any] = {}
        self.spare_events: dict[int, list[Any]] = {}
        self.constants: dict[tuple[int, str], int] = {}
        self.libraries: dict[str, Any] = {}
        self.programs: WeakKeyDictionary[Any, dict[int, Any]] = WeakKeyDictionary()
        for route in list(self.routes):
            route.forget()


state = ProcessState()
"""The state of this process."""


def _after_fork() -> None:
    # A thread that was opening the driver does not exist in the child: the driver is half open.
    state.reset(is_forked=state.is_forked or state.is_opening or state.driver is not None)


# Registered on import, before anything can hold the lock.
os.register_at_fork(after_in_child=_after_fork)


OLDEST_DRIVER = 12000
"""The first driver API with `cuLibraryLoadData`: 12.0, as 1000 × major + 10 × minor."""


# ---- the driver


class Driver:
    """The opened driver.

    Attributes:
        bindings: the module `cuda.bindings.driver`.
        version: the driver API, 13020 for 13.2.
        as_it_is: a context manager that yields the driver and does not change the current context.
        memory_device: the attribute to query for the ordinal of an address's device.
    """

    def __init__(self, bindings: Any, version: int) -> None:
        self.bindings = bindings
        self.version = version
        self.success = bindings.CUresult.CUDA_SUCCESS
        self.as_it_is = nullcontext(self)
        self.memory_device = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL

    def call(self, function: str, *arguments: Any, what: str) -> Any:
        """Call a driver function; return its result, a tuple if there are several.

        Args:
            function: its name, `cuLibraryLoadData`.
            arguments: its arguments.
            what: start of the error message: "the cubin cannot be loaded".

        Raises:
            DriverError: the function returns an error.
            DeviceError: the driver has no such function.
        """
        try:
            result = getattr(self.bindings, function)(*arguments)
        except ValueError as error:
            raise DeviceError(
                f"{what}: {function} answers a value that this cuda-bindings does not know: "
                f"{error}.",
                hint="Run pip install --upgrade cuda-bindings.",
            ) from error
        except RuntimeError as error:
            raise DeviceError(
                f"{what}: the driver for CUDA {version_text(self.version)} has no {function}.",
                hint="Install a newer NVIDIA driver.",
            ) from error
        if result[0] is not self.success:
            raise self.error(int(result[0]), function, what)
        return result[1] if len(result) == 2 else result[1:]

    def error(self, code: int, function: str, what: str, reason: str = "") -> DriverError:
        """Return the error for a code, with the driver's own name and description.

        Args:
            code: the driver's result.
            function: the function that returned it.
            what: start of the message.
            reason: end of the message, "" for none.
        """
        name, text = (self._text(ask, code) for ask in ("cuGetErrorName", "cuGetErrorString"))
        end = f": {reason}." if reason else "."
        message = f"{what}: {function} answers {name} ({code}), {text}{end}"
        kind = OutOfMemoryError if code == 2 else DriverError
        return kind(message, code=code, hint=_hint(code))

    def _text(self, ask: str, code: int) -> str:
        try:
            status, text = getattr(self.bindings, ask)(self.bindings.CUresult(code))
        except (RuntimeError, ValueError):
            return "an error that it does not name"
        return text.decode() if status is self.success else "an error that it does not name"


def open_driver() -> Driver:
    """Return the driver, opened and initialized on the first call.

    Raises:
        DeviceError: there is no driver, it is too old or cannot start, or this process was forked
            from a process that had opened it.
    """
    if state.is_forked:
        raise DeviceError(
            "this process was forked from one that uses the GPU; CUDA does not work in it.",
            hint=_start_words(_NOT_INITIALIZED)[1],
        )
    return state.driver or _open_once()


def _open_once() -> Driver:
    with state.lock:
        if state.driver is None:
            state.is_opening = True
            try:
                state.driver = _open()
            finally:
                state.is_opening = False
        return state.driver


def _open() -> Driver:
    bindings = _bindings()
    driver = Driver(bindings, _version(bindings))
    if driver.version < OLDEST_DRIVER:
        raise DeviceError(
            f"the NVIDIA driver is for CUDA {version_text(driver.version)}, and kernels need 12.0.",
            hint=INSTALL,
        )
    code = int(bindings.cuInit(0)[0])
    if code:
        reason, hint = _start_words(code)
        error = driver.error(code, "cuInit", "the NVIDIA driver does not start", reason)
        raise DriverError(error.message, code=code, hint=hint)
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
    """Return the driver API version; this first call makes cuda-bindings load the library."""
    try:
        code, version = bindings.cuDriverGetVersion()
    except (RuntimeError, OSError) as error:
        raise DeviceError(
            "no NVIDIA driver here: libcuda.so.1 cannot be loaded.", hint=INSTALL
        ) from error
    return int(version) if int(code) == 0 else 0


# ---- GPUs


class Device(Struct, frozen=True):
    """A GPU; memory in bytes.

    Attributes:
        ordinal: its number, as in frameworks.
        name: `NVIDIA H100 80GB HBM3`.
        major, minor: compute capability.
        sm_count: streaming multiprocessors.
        smem_optin_bytes: maximum shared memory that one block can request.
        has_pools: True if `cuMemAllocAsync` works.
        driver_version: the driver API, 13020 for 13.2.
        context: its primary context, which frameworks share.
    """

    ordinal: int
    name: str
    major: int
    minor: int
    sm_count: int
    smem_optin_bytes: int
    has_pools: bool = True
    driver_version: int = 0
    context: Any = None

    def __str__(self) -> str:
        return f"GPU {self.ordinal} ({self.name}, sm_{self.major}{self.minor})"


def device_count() -> int:
    """Return the number of GPUs that this process sees."""
    return int(open_driver().call("cuDeviceGetCount", what="the GPUs cannot be counted"))


def get_device(ordinal: int) -> Device:
    """Return a GPU, with its primary context retained from then on.

    Raises:
        ArgumentError: there is no GPU with that number.
        DeviceError: the driver cannot be used.
    """
    driver = open_driver()
    device = state.devices.get(ordinal)
    if device is None:
        with state.lock:
            device = state.devices.get(ordinal)
            if device is None:
                device = _read(driver, ordinal)
                what = f"GPU {ordinal} cannot be read"
                context = driver.call("cuDevicePrimaryCtxRetain", ordinal, what=what)
                device = state.devices[ordinal] = replace(device, context=context)
    return device


def look_at_device(ordinal: int) -> Device:
    """Return a GPU without creating its context, which is None unless already retained.

    Raises:
        ArgumentError, DeviceError: as for `get_device`.
    """
    driver = open_driver()
    return state.devices.get(ordinal) or _read(driver, ordinal)


def capabilities() -> set[tuple[int, int]]:
    """Return the compute capabilities of this process's GPUs, without creating a context."""
    return {(device.major, device.minor) for device in device_models()}


def device_models() -> tuple[Device, ...]:
    """Return one GPU of each model in this process, without creating a context."""
    if state.models is None:
        models: dict[Device, Device] = {}
        for number in range(device_count()):
            device = look_at_device(number)
            models.setdefault(replace(device, ordinal=0, context=None), device)
        state.models = tuple(models.values())
    return state.models


def current_device() -> int:
    """Return the device of the thread's current context, or 0 if there is none."""
    code, device = open_driver().bindings.cuCtxGetDevice()
    return int(device) if int(code) == 0 else 0


def device_of(pointer: int) -> int | None:
    """Return the ordinal of the GPU that owns the memory at an address, None if no GPU does.

    For 0, it is the current GPU.
    """
    if pointer == 0:
        return current_device()
    driver = open_driver()
    code, ordinal = driver.bindings.cuPointerGetAttribute(driver.memory_device, pointer)
    return None if code else int(ordinal)


def is_open(device: Device) -> bool:
    """Return True if a device belongs to this process; in a forked child, none does."""
    return state.devices.get(device.ordinal) is device


def active(device: Device) -> AbstractContextManager[Driver]:
    """Make a device's primary context current in this thread within a `with` block.

    Raises:
        DriverError: the context cannot be made current.
    """
    driver = open_driver()
    if driver.bindings.cuCtxGetCurrent()[1] == device.context:
        return driver.as_it_is
    return _Pushed(driver, device)


class _Pushed:
    """Makes a context current within a block; a generator would take as long as a launch."""

    __slots__ = ("_device", "_driver")

    def __init__(self, driver: Driver, device: Device) -> None:
        self._driver = driver
        self._device = device

    def __enter__(self) -> Driver:
        what = f"GPU {self._device.ordinal} cannot be made current"
        self._driver.call("cuCtxPushCurrent", self._device.context, what=what)
        return self._driver

    def __exit__(self, *_: object) -> None:
        self._driver.bindings.cuCtxPopCurrent()


def current_context() -> int:
    """Return the handle of the context that is current in this thread, 0 if there is none."""
    driver = open_driver()
    code, context = driver.bindings.cuCtxGetCurrent()
    return int(context) if code is driver.success else 0


@contextmanager
def outside_captures(driver: Driver) -> Iterator[None]:
    """Keep stream captures, of this thread and others, valid during work that is not part of them.

    Outside of this context manager, allocating, freeing and loading would invalidate captures.
    """
    modes = driver.bindings.CUstreamCaptureMode
    what = "stream captures cannot be protected"
    relaxed = modes.CU_STREAM_CAPTURE_MODE_RELAXED
    before = driver.call("cuThreadExchangeStreamCaptureMode", relaxed, what=what)
    try:
        yield
    finally:
        driver.bindings.cuThreadExchangeStreamCaptureMode(before)


def is_capturing(device: Device, stream: int) -> bool:
    """Return True if a stream is being captured into a graph."""
    with active(device) as driver:
        code, status = driver.bindings.cuStreamIsCapturing(driver.bindings.CUstream(stream))
    return int(code) == 0 and int(status) != 0


def is_legacy_blocked(driver: Driver) -> bool:
    """Return True if the current context's default stream waits for a stream under capture.

    Enqueueing work in it would then fail and invalidate that capture; this query does not.
    """
    code, _ = driver.bindings.cuStreamIsCapturing(driver.bindings.CUstream(0))
    return int(code) == _CAPTURE_IMPLICIT


_CAPTURE_IMPLICIT = 906


def _read(driver: Driver, ordinal: int) -> Device:
    count = device_count()
    if not 0 <= ordinal < count:
        raise ArgumentError(
            f"there is no GPU {ordinal}: the driver counts {count}.",
            hint="nvidia-smi lists them; CUDA_VISIBLE_DEVICES may hide some.",
        )
    what = f"GPU {ordinal} cannot be read"
    handle = driver.call("cuDeviceGet", ordinal, what=what)
    names = driver.bindings.CUdevice_attribute

    def figure(name: str) -> int:
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.call("cuDeviceGetAttribute", attribute, handle, what=what))

    name = driver.call("cuDeviceGetName", 256, handle, what=what)
    return Device(
        ordinal=ordinal,
        name=name.partition(b"\0")[0].decode(),
        major=figure("COMPUTE_CAPABILITY_MAJOR"),
        minor=figure("COMPUTE_CAPABILITY_MINOR"),
        sm_count=figure("MULTIPROCESSOR_COUNT"),
        smem_optin_bytes=figure("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        has_pools=bool(figure("MEMORY_POOLS_SUPPORTED")),
        driver_version=driver.version,
    )
