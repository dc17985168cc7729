"""Build, load and steer the stand-in driver.

`load()` compiles the C sources in `driver/` once (cached by their digest under `build/standin`) and
opens the result as `libcuda.so.1` of this process, so it must run before the first driver call.
It returns the one `Standin`; `reset()` gives a driver as after process start: one device of
compute capability 9.0 ("Stand-in H100"), driver 13.0, `cuInit` not called, empty log.

    driver = standin.load()
    driver.devices("9.0", Device("10.0", memory_bytes=1 << 20))   # what cuDeviceGet… finds
    driver.configure(driver_version=12080)      # any field of `Options`
    driver.fault("cuMemAlloc_v2", 2, nth=3)     # the third call from now on answers 2
    driver.fault("cuStreamSynchronize", 719, nth=0, sticky=True)  # every call; context is broken
    driver.kernel("rms_norm_body")(function)    # function(launch) is that kernel; "*" is any
    driver.calls("cuMemAlloc_v2")               # list of Call: name, code, device, stream, values
    driver.launches                             # list of Launch: grid, parameter bytes, maps …
    driver.adopt(array)                         # numpy or torch CPU memory is device memory
    driver.live()                               # (allocations, bytes) that the program holds
    environment(devices="9.0,10.0", driver=12080)    # for a process of its own

Functions of the driver go by their full symbol names (`cuMemAlloc_v2`, `cuLaunchKernelEx`). A
binding looks all of them up at its first call and keeps what it got, so a function is missing, by
name or because the driver is older than it, in fresh processes only:
`environment(hide=["cuKernelGetParamInfo"], driver=12000)`.

A kernel function gets a `Launch`. `launch.array(i, dtype, shape)` is numpy's view of the memory
behind pointer parameter `i`; `launch.maps(i)` lists the tensor maps in a parameter passed by value,
each with its offset. It returns None, or a result code for the device to fail with. If it raises,
the kernel fails with 719 and `driver.check()` raises its exception, as does the end of a test that
uses the fixture.

What of this is a model and not measured on hardware: `driver/README.md`.
"""

import ctypes
import functools
import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compiled import compiled, compiler
from standin_records import (
    Call,
    Device,
    Launch,
    Options,
    RawCall,
    RawDevice,
    RawLaunch,
    TensorMap,
    read_launch,
)

SOURCES = Path(__file__).parent / "driver"
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
_LINK = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,--no-undefined", "-lpthread")

__all__ = ["Call", "Device", "Launch", "Options", "Standin", "TensorMap", "build", "compiler"]
__all__ += ["environment", "load"]

LAUNCH_FAILED = 719


def why_not() -> str:
    """Return why there is no stand-in here, "" where it is built already or can be."""
    if compiler() is not None or os.environ.get("STANDIN_LIBRARY"):
        return ""
    return "no C compiler (cc or gcc), so the stand-in driver cannot be built"


@functools.cache
def build() -> Path:
    """Return the built library.

    The variable STANDIN_LIBRARY names one that was built otherwise.
    """
    if made_elsewhere := os.environ.get("STANDIN_LIBRARY"):
        return Path(made_elsewhere)
    sources = [path for path in SOURCES.iterdir() if path.suffix == ".c"]
    headers = SOURCES.glob("*.h")
    return compiled("libcuda.so.1", _FLAGS, sources, link=_LINK, watched=headers, folder="standin")


def environment(
    *,
    devices: str = "9.0",
    driver: int = 13000,
    init: int = 0,
    hide: Iterable[str] = (),
    faults: Iterable[tuple[str, int, int]] = (),
    log: bool = True,
    raw_speed: bool = False,
    visible: str | None = None,
    loading: str | None = None,
) -> dict[str, str]:
    """Return this process's environment, changed so that a new process gets the stand-in.

    Args:
        devices: compute capabilities, "9.0,10.0"; "" for no device.
        driver: version of the driver API, 1000 × major + 10 × minor.
        init: what `cuInit` answers.
        hide: functions that this driver does not have.
        faults: function, which call (0 is every one), result code.
        log: keep calls and launches.
        raw_speed: `cuLaunchKernelEx` returns at once.
        visible, loading: CUDA_VISIBLE_DEVICES and CUDA_MODULE_LOADING, whatever they are here.
    """
    path = os.pathsep.join(filter(None, [str(build().parent), os.environ.get("LD_LIBRARY_PATH")]))
    settings = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_MODULE_LOADING": loading}
    return {
        **{name: value for name, value in os.environ.items() if name not in settings},
        **{name: value for name, value in settings.items() if value is not None},
        "LD_LIBRARY_PATH": path,
        "STANDIN_DEVICES": devices,
        "STANDIN_DRIVER": str(driver),
        "STANDIN_INIT": str(init),
        "STANDIN_HIDE": ",".join(hide),
        "STANDIN_FAULTS": ",".join(f"{name}:{nth}:{code}" for name, nth, code in faults),
        "STANDIN_LOG": str(int(log)),
        "STANDIN_RAW_SPEED": str(int(raw_speed)),
    }


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(RawLaunch))

KernelFunction = Callable[[Launch], int | None]


@dataclass
class Standin:
    """The driver of this process."""

    library: ctypes.CDLL
    functions: dict[str, KernelFunction] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)
    _callback: Any = None

    def reset(self) -> None:
        """Make the driver as after process start; every handle given before is invalid."""
        self.functions.clear()
        self.failures.clear()
        self.library.standin_reset()
        self._kept.clear()

    def devices(self, *wanted: str | Device) -> None:
        """Let there be these devices, each a compute capability ("9.0") or a `Device`."""
        rows = (RawDevice * len(wanted))()
        for row, device in zip(rows, wanted, strict=True):
            asked = Device(device) if isinstance(device, str) else device
            row.major, row.minor = map(int, asked.capability.split("."))
            row.name = asked.name.encode()
            for name in ("sms", "smem_optin_bytes", "memory_bytes", "max_cluster"):
                setattr(row, name, getattr(asked, name))
        self.library.standin_set_devices(rows, len(wanted))

    @property
    def options(self) -> Options:
        """The options, to read or to set."""
        pointer: Any = self.library.standin_options()
        options: Options = pointer.contents
        return options

    def configure(self, **values: int) -> None:
        """Set options by name."""
        known = {name for name, _ in Options._fields_}
        for name, value in values.items():
            assert name in known, f"no option {name}"
            setattr(self.options, name, int(value))

    def fault(self, function: str, code: int, *, nth: int = 1, sticky: bool = False) -> None:
        """Let the `nth` call from now on answer `code`; 0 means every call.

        `sticky` makes every later call in the current context answer it too.
        """
        assert not self.library.standin_fault(function.encode(), nth, code, sticky), (
            f"the stand-in has no function {function}"
        )

    def clear_faults(self) -> None:
        """Forget all faults."""
        self.library.standin_clear_faults()

    def kernel(self, name: str = "*") -> Callable[[KernelFunction], KernelFunction]:
        """Decorate the function that is kernel `name`; "*" is every kernel without its own."""

        def register(function: KernelFunction) -> KernelFunction:
            self.functions[name] = function
            if self._callback is None:
                self._callback = _CALLBACK(self._run)
            self.library.standin_callback(self._callback)
            return function

        return register

    def _run(self, pointer: Any) -> int:
        try:
            launch = read_launch(pointer.contents)
            function = self.functions.get(launch.kernel) or self.functions.get("*")
            return (function(launch) or 0) if function else 0
        except BaseException as error:  # an exception cannot cross the C frames above
            traceback.clear_frames(error.__traceback__)
            self.failures.append(error)
            return LAUNCH_FAILED

    def check(self) -> None:
        """Raise what a kernel function raised."""
        if self.failures:
            raise self.failures.pop(0)

    def expect(self, data: bytes, shape: Sequence[int], device: int = 0) -> None:
        """Compare every launch from now on, in C: one whose parameters begin with the same pointer
        as `data` must have these bytes, this shape (grid, block, cluster, bytes of shared memory,
        number of attributes) and run on the device."""
        numbers = (ctypes.c_uint32 * 11)(*shape)
        code = self.library.standin_expect(data, len(data), numbers, device)
        assert not code, "too many expectations"

    def seen(self, first: int) -> int:
        """Return how many launches with this first pointer were as expected."""
        return int(self.library.standin_seen(first))

    @property
    def unexpected(self) -> int:
        """How many launches were not as expected."""
        return int(self.library.standin_unexpected())

    def count(self, function: str) -> int:
        """Return how often a function was called; counted also without a log."""
        return int(self.library.standin_count(function.encode()))

    def calls(self, *names: str) -> list[Call]:
        """Return the calls of these functions, or all, in order."""
        raw = RawCall()
        result = []
        for index in range(self.library.standin_call_count()):
            self.library.standin_call(index, ctypes.byref(raw))
            name = self.library.standin_function_name(raw.function).decode()
            if not names or name in names:
                values = tuple(raw.values[: raw.value_count])
                result.append(Call(name, raw.code, raw.device, raw.stream, raw.thread, values))
        return result

    @property
    def launches(self) -> list[Launch]:
        """All launches that ran, in order; those of a graph appear when it runs."""
        raw = RawLaunch()
        result = []
        for index in range(self.library.standin_launch_count()):
            self.library.standin_launch(index, ctypes.byref(raw))
            result.append(read_launch(raw))
        return sorted(result, key=lambda launch: launch.sequence)

    def image(self, launch: Launch) -> bytes:
        """Return the cubin that a kernel was launched from."""
        size = ctypes.c_uint64()
        start = self.library.standin_image(launch.library, ctypes.byref(size))
        return ctypes.string_at(start, size.value)

    def clear_log(self) -> None:
        """Forget calls and launches."""
        self.library.standin_clear_log()

    def adopt(self, array: Any, device: int = 0) -> int:
        """Let the memory of a numpy array or CPU tensor be device memory; return its address.

        The array is kept alive until `reset`. `device` -1 means: usable by all devices.
        """
        if hasattr(array, "untyped_storage"):
            storage = array.untyped_storage()
            start, size, address = storage.data_ptr(), storage.nbytes(), array.data_ptr()
        else:
            start = address = array.__array_interface__["data"][0]
            size = array.nbytes
        self._kept.append(array)
        assert not size or not self.library.standin_adopt(start, size, device), (
            f"{size} bytes at {start:#x} overlap memory of the driver"
        )
        return int(address)

    def allocation(self, address: int) -> tuple[int, int, int] | None:
        """Return start, size and device of the live allocation around an address."""
        start, size, device = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int()
        found = [ctypes.byref(value) for value in (start, size, device)]
        if self.library.standin_allocation(address, *found):
            return None
        return start.value, size.value, device.value

    def live(self, device: int = 0) -> tuple[int, int]:
        """Return how many allocations the program holds on a device, and their bytes."""
        size = ctypes.c_uint64()
        count = self.library.standin_live(device, ctypes.byref(size))
        return int(count), size.value


def _declare(library: ctypes.CDLL) -> None:
    u64, i32, text, pointer = ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
    library.standin_options.restype = ctypes.POINTER(Options)
    library.standin_function_name.restype = text
    library.standin_function_name.argtypes = (i32,)
    for name in ("count", "call_count", "launch_count", "live", "seen", "unexpected"):
        getattr(library, f"standin_{name}").restype = u64
    library.standin_fault.argtypes = (text, i32, i32, i32)
    library.standin_expect.argtypes = (text, ctypes.c_uint32, pointer, i32)
    library.standin_seen.argtypes = (u64,)
    library.standin_adopt.argtypes = (u64, u64, i32)
    library.standin_allocation.argtypes = (u64, pointer, pointer, pointer)
    library.standin_live.argtypes = (i32, pointer)
    library.standin_call.argtypes = library.standin_launch.argtypes = (u64, pointer)
    library.standin_callback.argtypes = (pointer,)
    library.standin_image.argtypes, library.standin_image.restype = (pointer, pointer), pointer


@functools.cache
def load() -> Standin:
    """Build the stand-in and make it the driver of this process."""
    library = ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)
    _declare(library)
    return Standin(library)
