"""The CUDA driver, opened on first use, with every result checked; GPUs and their contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from pallasc.errors import ArgumentError, DeviceError, DriverError, OutOfMemoryError
from pallasc.runtime.device import process_state
from pallasc.runtime.device.answers import (
    HINTS,
    INIT_HINTS,
    INIT_REASONS,
    INSTALL,
    ODD_ANSWERS,
    version_text,
)

OLDEST_DRIVER = 12000
"""The first driver API with `cuLibraryLoadData`: 12.0, as 1000 × major + 10 × minor."""


class Driver:
    """The opened driver.

    Attributes:
        bindings: the module `cuda.bindings.driver`.
        version: the driver API, 13020 for 13.2.
        as_it_is: a context manager that yields the driver and does not change the current context.
    """

    def __init__(self, bindings: Any, version: int) -> None:
        self.bindings = bindings
        self.version = version
        self.success = bindings.CUresult.CUDA_SUCCESS
        self.as_it_is = nullcontext(self)

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
        except ODD_ANSWERS as error:
            raise self.explain(error, function, what) from error
        if result[0] is not self.success:
            raise self.error(int(result[0]), function, what)
        return result[1] if len(result) == 2 else result[1:]

    def explain(self, error: Exception, function: str, what: str) -> DeviceError:
        """Return the error for an exception from cuda-bindings, one of `ODD_ANSWERS`."""
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
        return kind(message, code=code, hint=HINTS.get(code))

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
    state = process_state.now
    if state.is_forked:
        raise DeviceError(
            "this process was forked from one that uses the GPU; CUDA does not work in it.",
            hint=INIT_HINTS[3],
        )
    driver: Driver = state.driver or _open_once()
    return driver


def is_driver_open() -> bool:
    """Return True if the driver is open, without opening it."""
    return process_state.now.driver is not None


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
            hint=INSTALL,
        )
    code = int(bindings.cuInit(0)[0])
    if code:
        what, reason = "the NVIDIA driver does not start", INIT_REASONS.get(code, "")
        error = driver.error(code, "cuInit", what, reason)
        raise DriverError(error.message, code=code, hint=INIT_HINTS.get(code))
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
    """Return the driver API version. This first call makes cuda-bindings look for the library."""
    try:
        code, version = bindings.cuDriverGetVersion()
    except (RuntimeError, OSError) as error:
        raise DeviceError(
            "no NVIDIA driver here: libcuda.so.1 cannot be loaded.", hint=INSTALL
        ) from error
    return int(version) if int(code) == 0 else 0


# ---- GPUs


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU; memory in bytes.

    Attributes:
        ordinal: its number, as frameworks count.
        name: `NVIDIA H100 80GB HBM3`.
        major, minor: compute capability.
        sm_count: streaming multiprocessors.
        smem_optin_bytes: maximum shared memory that one block can request.
        has_pools: `cuMemAllocAsync` works.
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
    devices: dict[int, Device] = process_state.now.devices
    device = devices.get(ordinal)
    if device is None:
        with process_state.now.lock:
            device = devices.get(ordinal)
            if device is None:
                device = _read(driver, ordinal)
                what = f"GPU {ordinal} cannot be read"
                context = driver.call("cuDevicePrimaryCtxRetain", ordinal, what=what)
                device = devices[ordinal] = replace(device, context=context)
    return device


def look_at_device(ordinal: int) -> Device:
    """Return a GPU without creating its context, which is None unless already retained.

    Raises:
        ArgumentError, DeviceError: as for `get_device`.
    """
    driver = open_driver()
    device: Device = process_state.now.devices.get(ordinal) or _read(driver, ordinal)
    return device


def capabilities() -> frozenset[tuple[int, int]]:
    """Return the compute capabilities of this process's GPUs, without creating a context."""
    driver, state = open_driver(), process_state.now
    if state.capabilities is None:
        state.capabilities = frozenset(
            (_figure(driver, number, "MAJOR"), _figure(driver, number, "MINOR"))
            for number in range(device_count())
        )
    return state.capabilities


def device_models() -> tuple[Device, ...]:
    """Return one GPU of each model in this process, without creating a context."""
    state = process_state.now
    if state.models is None:
        models: dict[Device, Device] = {}
        for number in range(device_count()):
            device = look_at_device(number)
            models.setdefault(replace(device, ordinal=0, context=None), device)
        state.models = tuple(models.values())
    return state.models


def _figure(driver: Driver, ordinal: int, which: str) -> int:
    names = driver.bindings.CUdevice_attribute
    attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{which}")
    what = f"GPU {ordinal} cannot be read"
    handle = driver.call("cuDeviceGet", ordinal, what=what)
    return int(driver.call("cuDeviceGetAttribute", attribute, handle, what=what))


def current_device() -> int:
    """Return the device of the thread's current context, or 0 if there is none."""
    code, device = open_driver().bindings.cuCtxGetDevice()
    return int(device) if int(code) == 0 else 0


def device_of(pointer: int) -> int:
    """Return the ordinal of the GPU that owns the memory at an address; for 0, the current GPU.

    Raises:
        DriverError: no GPU has memory there.
    """
    driver = open_driver()
    if pointer == 0:
        return current_device()
    attribute = driver.bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    what = f"no GPU has memory at {pointer:#x}"
    return int(driver.call("cuPointerGetAttribute", attribute, pointer, what=what))


def context_of(pointer: int) -> int:
    """Return the handle of the context that memory belongs to, 0 if the driver knows of none."""
    bindings = open_driver().bindings
    attribute = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT
    code, context = bindings.cuPointerGetAttribute(attribute, pointer)
    return int(context) if int(code) == 0 else 0


def is_open(device: Device) -> bool:
    """Return True if a device belongs to this process; in a forked child, none does."""
    return process_state.now.devices.get(device.ordinal) is device


def active(device: Device) -> AbstractContextManager[Driver]:
    """Make a device's primary context current in this thread within a `with` block.

    Raises:
        DriverError: it cannot be made current.
    """
    driver = open_driver()
    if driver.bindings.cuCtxGetCurrent()[1] == device.context:
        return driver.as_it_is
    return _Pushed(driver, device)


class _Pushed:
    """A context that is current within a block; a generator would cost as much as a launch."""

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

    Without it, allocating, freeing and loading would invalidate them.
    """
    modes = driver.bindings.CUstreamCaptureMode
    what = "captures of streams cannot be left alone"
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
