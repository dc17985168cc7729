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
    driver.break_context(700)                   # like an earlier kernel that failed (next sync)
    driver.kernel("rms_norm_body")(function)    # function(launch) is that kernel; "*" is any
    driver.calls("cuMemAlloc_v2")               # list of Call: name, code, device, stream, values
    driver.launches                             # list of Launch: grid, parameter bytes, maps …
    driver.adopt(array)                         # numpy or torch CPU memory is device memory
    driver.live()                               # (allocations, bytes) that the program holds
    driver.decode(map_bytes)                    # a TensorMap as it was encoded
    environment(devices="9.0,10.0", driver=12080)    # for a process of its own

Functions of the driver go by their full symbol names (`cuMemAlloc_v2`, `cuLaunchKernelEx`). A
binding looks all of them up at its first call and keeps what it got, so a function is missing, by
name or because the driver is older than it, in fresh processes only:
`environment(hide=["cuKernelGetParamInfo"], driver=12000)`.

A kernel function gets a `Launch`. `launch.array(i, dtype, shape)` is numpy's view of the memory
behind pointer parameter `i`; `launch.maps(i)` lists the tensor maps in a parameter passed by value,
and `map.array()` views what one describes. It returns None, or a result code for the device to
fail with. If it raises, the kernel fails with 719 and `driver.check()` raises its exception, as
does the end of a test that uses the fixture.

What is a model, not measured on hardware: see `driver/README.md`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "driver"
_BUILD = Path(__file__).parents[2] / "build" / "standin"
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
_LINK = ("-shared", "-Wl,-soname,libcuda.so.1", "-Wl,--no-undefined", "-lpthread")

LAUNCH_FAILED = 719
MAP_BYTES = 128


def compiler() -> str | None:
    """Return the C compiler at hand, or None."""
    return shutil.which("cc") or shutil.which("gcc")


@functools.cache
def build() -> Path:
    """Return the built library, compiling it where these sources were not compiled before."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: neither cc nor gcc is on the PATH")
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".c", ".h"))
    digest = hashlib.sha256(repr((_FLAGS, _LINK)).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    folder = _BUILD / digest.hexdigest()[:16]
    library = folder / "libcuda.so.1"
    if not library.exists():
        _BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_BUILD) as scratch:
            made = Path(scratch) / library.name
            files = [str(path) for path in sources if path.suffix == ".c"]
            subprocess.run([cc, *_FLAGS, *files, "-o", str(made), *_LINK], check=True)
            folder.mkdir(exist_ok=True)
            os.replace(made, library)
    return library


def environment(
    *,
    devices: str = "9.0",
    driver: int = 13000,
    init: int = 0,
    hide: Iterable[str] = (),
    faults: Iterable[tuple[str, int, int]] = (),
    log: bool = True,
    raw_speed: bool = False,
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
    """
    path = os.pathsep.join(filter(None, [str(build().parent), os.environ.get("LD_LIBRARY_PATH")]))
    return {
        **os.environ,
        "LD_LIBRARY_PATH": path,
        "STANDIN_DEVICES": devices,
        "STANDIN_DRIVER": str(driver),
        "STANDIN_INIT": str(init),
        "STANDIN_HIDE": ",".join(hide),
        "STANDIN_FAULTS": ",".join(f"{name}:{nth}:{code}" for name, nth, code in faults),
        "STANDIN_LOG": str(int(log)),
        "STANDIN_RAW_SPEED": str(int(raw_speed)),
    }


class _Device(ctypes.Structure):
    """`struct device` of control.h."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        *((name, ctypes.c_int) for name in ("major", "minor", "sms", "smem_optin_bytes")),
        *((name, ctypes.c_int) for name in ("smem_sm_bytes", "max_cluster", "clock_khz")),
        *((name, ctypes.c_int) for name in ("memory_clock_khz", "bus_bits", "l2_bytes")),
        ("reserved", ctypes.c_int),
        *((name, ctypes.c_uint64) for name in ("memory_bytes", "used_bytes", "clock_ns")),
    )


class Options(ctypes.Structure):
    """`struct options` of control.h, where each field is described."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in (
            "driver_version",
            "init_code",
            "log",
            "raw_speed",
            "check_pointers",
            "null_pointers",
            "pointer_alignment",
            "eager_loading",
            "poison",
            "kernel_ns",
            "deinitialized",
        )
    )


class _Launch(ctypes.Structure):
    """`struct launch` of control.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("sequence", "thread", "context", "stream")),
        ("kernel", ctypes.c_char_p),
        ("offsets", ctypes.POINTER(ctypes.c_uint32)),
        ("sizes", ctypes.POINTER(ctypes.c_uint32)),
        ("bytes", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("code", ctypes.c_int),
        *((name, ctypes.c_uint32 * 3) for name in ("grid", "block", "cluster")),
        *((name, ctypes.c_uint32) for name in ("smem_bytes", "parameter_count")),
        *((name, ctypes.c_uint32) for name in ("attribute_count", "byte_count", "replayed")),
        ("library", ctypes.c_void_p),
    )


class _Call(ctypes.Structure):
    """`struct call` of control.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("sequence", "thread", "stream")),
        *((name, ctypes.c_int) for name in ("function", "code", "device", "value_count")),
        ("values", ctypes.c_uint64 * 6),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))


@dataclass(frozen=True)
class Device:
    """A device to be found; 0 and "" mean: as the chip with this compute capability."""

    capability: str
    name: str = ""
    sms: int = 0
    smem_optin_bytes: int = 0
    memory_bytes: int = 0
    max_cluster: int = 0


@dataclass(frozen=True)
class Call:
    """One call as the driver saw it; `values` are the numbers among its arguments."""

    name: str
    code: int
    device: int
    stream: int
    thread: int
    values: tuple[int, ...]


_TYPES = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"),
    *("bfloat16", "float32_ftz", "tfloat32", "tfloat32_ftz", "16u4_align8b", "16u4_align16b"),
    "16u6_align16b",
)
_NUMPY = {"float32_ftz": "float32", "tfloat32": "float32", "tfloat32_ftz": "float32"}
_SWIZZLE_BYTES = (0, 32, 64, 128, 128, 128, 128)
_INTERLEAVE_BYTES = (0, 16, 32)
_L2_BYTES = (0, 64, 128, 256)


@dataclass(frozen=True)
class TensorMap:
    """The arguments that a map was encoded from; fields as in `pallasc.specs.plan.TensorMap`."""

    address: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int
    l2_promotion: int
    nan_fill: bool
    im2col: Mapping[str, Any] | None = None

    def array(self, dtype: str | None = None) -> Any:
        """View the described memory as a numpy array, major dimension first."""
        import numpy

        kind = _numpy_dtype(dtype or _NUMPY.get(self.dtype, self.dtype))
        shape = self.dims[::-1]
        strides = (*self.strides[::-1], kind.itemsize)
        last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        flat = numpy.frombuffer(_memory(self.address, last + kind.itemsize), dtype=numpy.uint8)
        return numpy.ndarray(shape, kind, buffer=flat, strides=strides)


def _numpy_dtype(name: str) -> Any:
    import numpy

    if name == "bfloat16":
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    return numpy.dtype(name)


def _memory(address: int, size_bytes: int) -> Any:
    return (ctypes.c_ubyte * size_bytes).from_address(address)


@dataclass(frozen=True)
class Launch:
    """One launch as the driver got it; `parameters` are the exact bytes of each argument."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    smem_bytes: int
    attributes: tuple[tuple[int, bytes], ...]
    parameters: tuple[bytes, ...]
    offsets: tuple[int, ...]
    device: int
    context: int
    stream: int
    thread: int
    sequence: int
    code: int = 0
    replayed: bool = False

    @property
    def pdl(self) -> bool:
        """Whether programmatic stream serialization (attribute 6) was asked for."""
        return any(id_ == 6 and value[:4] != bytes(4) for id_, value in self.attributes)

    def pointer(self, index: int) -> int:
        """Return parameter `index` as an address."""
        assert len(self.parameters[index]) == 8, f"parameter {index} is no pointer"
        return int.from_bytes(self.parameters[index], "little")

    def array(self, index: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """View the memory behind pointer parameter `index` as a row-major numpy array."""
        import numpy

        kind = _numpy_dtype(dtype)
        count = int(numpy.prod(shape, dtype=numpy.int64))
        if not count:
            return numpy.empty(shape, kind)
        memory = _memory(self.pointer(index), count * kind.itemsize)
        return numpy.frombuffer(memory, dtype=kind).reshape(shape)

    def maps(self, index: int) -> list[tuple[int, TensorMap]]:
        """Return the tensor maps in parameter `index`, each behind its offset."""
        data = self.parameters[index]
        found = [(at, decode_map(data[at:])) for at in range(0, len(data) - MAP_BYTES + 1, 64)]
        return [(at, map_) for at, map_ in found if map_ is not None]


def _read_launch(raw: _Launch) -> Launch:
    sizes = raw.sizes[: raw.parameter_count]
    data = ctypes.string_at(raw.bytes, raw.byte_count) if raw.byte_count else b""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    attributes = ctypes.string_at(raw.attributes, 72 * raw.attribute_count)
    rows = [attributes[at : at + 72] for at in range(0, len(attributes), 72)]
    return Launch(
        kernel=raw.kernel.decode(),
        grid=tuple(raw.grid),
        block=tuple(raw.block),
        cluster=tuple(raw.cluster) if raw.cluster[0] else None,
        smem_bytes=raw.smem_bytes,
        attributes=tuple((int.from_bytes(row[:4], "little"), row[8:]) for row in rows),
        parameters=tuple(
            data[at : at + size] for at, size in zip(starts, sizes, strict=True)
        ),
        offsets=tuple(raw.offsets[: raw.parameter_count]),
        device=raw.device,
        context=raw.context,
        stream=raw.stream,
        thread=raw.thread,
        sequence=raw.sequence,
        code=raw.code,
        replayed=bool(raw.replayed),
    )


def decode_map(data: bytes) -> TensorMap | None:
    """Return what the 128 bytes were encoded from, or None where they are no tensor map."""
    fields = (ctypes.c_uint64 * 32)()
    if load().library.standin_decode_map(data[:MAP_BYTES], fields):
        return None
    kind, rank, type_, interleave, swizzle, l2, fill, address = fields[:8]
    box = fields[17:22]
    lower, upper = (
        [ctypes.c_int64(value).value for value in fields[at : at + rank - 2]] for at in (27, 30)
    ) if kind else ((), ())
    im2col = {
        "lower": tuple(lower),
        "upper": tuple(upper),
        "channels": box[0],
        "pixels": box[1],
    }
    return TensorMap(
        address=address,
        dtype=_TYPES[type_],
        dims=tuple(fields[8 : 8 + rank]),
        strides=tuple(fields[13 : 13 + rank - 1]),
        box=() if kind else tuple(box[:rank]),
        element_strides=tuple(fields[22 : 22 + rank]),
        swizzle=_SWIZZLE_BYTES[swizzle],
        interleave=_INTERLEAVE_BYTES[interleave],
        l2_promotion=_L2_BYTES[l2],
        nan_fill=bool(fill),
        im2col=im2col if kind else None,
    )


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
        rows = (_Device * len(wanted))()
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

    def break_context(self, code: int, *, device: int = 0, sticky: bool = False) -> None:
        """Let the primary context have failed: the next call that waits says so, or every call."""
        assert not self.library.standin_break_context(device, code, sticky), "no primary context"

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
            launch = _read_launch(pointer.contents)
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

    def count(self, function: str) -> int:
        """Return how often a function was called; counted also without a log."""
        return int(self.library.standin_count(function.encode()))

    def calls(self, *names: str) -> list[Call]:
        """Return the calls of these functions, or all, in order."""
        raw = _Call()
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
        raw = _Launch()
        result = []
        for index in range(self.library.standin_launch_count()):
            self.library.standin_launch(index, ctypes.byref(raw))
            result.append(_read_launch(raw))
        return sorted(result, key=lambda launch: launch.sequence)

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

    def decode(self, data: bytes) -> TensorMap:
        """Return what a tensor map was encoded from."""
        found = decode_map(data)
        assert found is not None, "these bytes are no tensor map of the stand-in"
        return found


def _declare(library: ctypes.CDLL) -> None:
    u64, i32, text, pointer = ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p
    library.standin_options.restype = ctypes.POINTER(Options)
    library.standin_function_name.restype = text
    library.standin_function_name.argtypes = (i32,)
    for name in ("count", "call_count", "launch_count", "live"):
        getattr(library, f"standin_{name}").restype = u64
    library.standin_fault.argtypes = (text, i32, i32, i32)
    library.standin_break_context.argtypes = (i32, i32, i32)
    library.standin_adopt.argtypes = (u64, u64, i32)
    library.standin_allocation.argtypes = (u64, pointer, pointer, pointer)
    library.standin_live.argtypes = (i32, pointer)
    library.standin_call.argtypes = library.standin_launch.argtypes = (u64, pointer)
    library.standin_decode_map.argtypes = (text, pointer)
    library.standin_callback.argtypes = (pointer,)
    library.standin_cubin.argtypes = (text, pointer, ctypes.c_size_t)


@functools.cache
def load() -> Standin:
    """Build the stand-in and make it the driver of this process."""
    library = ctypes.CDLL(str(build()), ctypes.RTLD_GLOBAL)
    _declare(library)
    return Standin(library)
