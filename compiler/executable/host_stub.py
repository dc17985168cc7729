"""Run the host function of a Mosaic kernel with recorders and read back the exact launch.

XLA launches a Mosaic kernel by calling straight-line host code that builds tensor maps and calls a
few symbols of Mosaic's runtime (`jaxlib/mosaic/gpu/runtime.cc`, `launch_lowering.cc`,
`launch_context.py` in JAX's sources). This module loads that code with LLVM's MCJIT and binds the
symbols to Python functions. The buffers are sentinel addresses 2^40 bytes apart, so every pointer
that is passed back shows its buffer and offset.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import parse_elf

MOST_SENTINELS = 4095
"""Maximum number of sentinels that `_refuse_addresses` can distinguish from other data."""

_SPACING = 1 << 40
_MAP_BYTES = 128
_LIBC = frozenset({"memcpy", "memset", "memmove", "malloc", "free"})
_PTR, _I32, _I64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64
_LOCK = threading.RLock()
"""Symbols are global to the process, so only one host object is used at a time."""


@dataclass(frozen=True, slots=True)
class TiledMap:
    """The arguments of `mosaic_gpu_init_tma_desc`; dimensions major first, strides in elements.

    `peers` is set if the map is for an array of another device (`mosaic_kernel`).
    """

    address: int
    element_type: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle_bytes: int
    window: tuple[int, ...] = ()
    im2col: tuple[Any, ...] | None = None
    peers: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument: an address, or `data` passed by value with its tensor maps."""

    address: int | None = None
    data: bytes = b""
    maps: tuple[tuple[int, TiledMap], ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """The launch that one run of a host function made."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int
    pdl: bool
    arguments: tuple[Argument, ...]


class Launcher(Enum):
    """The launch interface of the host function, which differs between Mosaic versions.

    `SPEC`: `(spec, buffers)` calls `mosaic_gpu_build_kernel_spec` (version 4). `PDL` and `PLAIN`:
    `(function, stream, buffers)` calls `mosaic_gpu_launch_kernel` with (version 3) and without
    (version 1) the argument "uses PDL".
    """

    SPEC = "spec"
    PDL = "pdl"
    PLAIN = "plain"


def sentinel(index: int) -> int:
    """Return the address that represents buffer `index`."""
    return (index + 1) * _SPACING


def locate(address: int) -> tuple[int, int]:
    """Return the buffer index and byte offset of an address derived from a sentinel."""
    index, offset = divmod(address, _SPACING)
    if index == 0:
        raise CompileError(f"the host function passes {address:#x}, which lies in no buffer")
    return index - 1, offset


class HostObject:
    """A loaded host object file; use it as a context manager, in one thread.

    Args:
        object_file: the relocatable ELF object, for the CPU of this process.
        launcher: the launch interface of its host function.

    Raises:
        CompileError: the object needs an unknown symbol.
    """

    def __init__(self, object_file: bytes, launcher: Launcher) -> None:
        self._object_file = object_file
        self._launcher = launcher
        symbols = {s.name for s in parse_elf(object_file).symbols() if s.name and not s.section}
        unknown = sorted(symbols - self._recorders().keys() - _LIBC)
        if unknown:
            names = ", ".join(unknown)
            raise CompileError(f"the kernel's host code calls unknown functions: {names}")
        self._parameter_sizes: Sequence[int] = ()
        self._maps: list[TiledMap] = []
        self._launches: list[Recorded] = []
        self._cubins: list[bytes] = []
        self._functions: list[tuple[str, int]] = []
        self._errors: list[BaseException] = []

    def __enter__(self) -> HostObject:
        _LOCK.acquire()
        try:
            self._callbacks = self._bind()
            self._engine = _load(self._object_file)
        except BaseException:
            _LOCK.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        del self._engine, self._callbacks
        _LOCK.release()

    def init(self, name: str) -> tuple[str, bytes, int]:
        """Run the init function `(module**, function**)` of a version 1 kernel.

        Returns:
            The kernel's name, its cubin, and the bytes of dynamic shared memory.
        """
        slots = [(ctypes.c_void_p * 1)() for _ in range(2)]
        self._call(name, [ctypes.addressof(slot) for slot in slots])
        if len(self._cubins) != 1 or len(self._functions) != 1:
            raise CompileError(
                f"{name} loads {len(self._cubins)} modules and {len(self._functions)} functions"
            )
        kernel, smem_bytes = self._functions[0]
        return kernel, self._cubins[0], smem_bytes

    def launch(
        self,
        name: str,
        *,
        buffers: int,
        parameter_sizes: Sequence[int],
        peer_table: Sequence[int] = (),
    ) -> Recorded:
        """Run the host function `name` with sentinel buffers and return its one launch.

        Args:
            name: the function, `_mlir_ciface_…`.
            buffers: number of buffers of the custom call: operands first, then results.
            parameter_sizes: size of each kernel parameter in bytes, from the cubin.
            peer_table: the words of the table in which a kernel on several devices finds its peers;
                its copy on the device is sentinel number `buffers`.

        Raises:
            CompileError: it does not launch exactly once, or passes an unknown kind of argument.
        """
        self._parameter_sizes = parameter_sizes
        # After the buffers: the table of peers on the device, and the table on the host.
        table = (ctypes.c_uint64 * len(peer_table))(*peer_table)
        tables = [sentinel(buffers), ctypes.addressof(table)] if peer_table else [None, None]
        pointers = (_PTR * (buffers + 2))(*[sentinel(i) for i in range(buffers)], *tables)
        self._maps, self._launches = [], []
        scratch = ctypes.create_string_buffer(4096)
        lead = 1 if self._launcher is Launcher.SPEC else 2
        self._call(name, [ctypes.addressof(scratch)] * lead + [ctypes.addressof(pointers)])
        if len(self._launches) != 1:
            raise CompileError(f"{name} launches {len(self._launches)} kernels instead of one")
        return self._launches[0]

    def _call(self, name: str, arguments: list[int]) -> None:
        address = self._engine.get_function_address(name)
        if not address:
            raise CompileError(f"the host object does not define {name}")
        ctypes.CFUNCTYPE(None, *[_PTR] * len(arguments))(address)(*arguments)
        if self._errors:
            raise self._errors[0]

    def _recorders(self) -> dict[str, tuple[Callable[..., Any], Any, list[Any]]]:
        """Return recorder, result type, and argument types for each symbol of Mosaic's runtime."""
        pdl = [] if self._launcher is Launcher.PLAIN else [_I32]
        map_args = [_PTR, _PTR, _I64, _I64, _PTR, _PTR, _I64, _PTR]
        return {
            "mosaic_gpu_init_tma_desc": (self._tiled, None, map_args),
            "mosaic_gpu_init_tma_im2col_desc": (
                self._im2col, None, [*map_args, _PTR, _I64, _I64, _PTR]),
            "mosaic_gpu_launch_kernel": (
                self._launch_kernel, None, [_PTR, *[_I32] * 10, *pdl, _PTR, _PTR]),
            "mosaic_gpu_build_kernel_spec": (
                self._build_spec, None, [_PTR, *[_I32] * 12, _PTR, _PTR]),
            "mosaic_gpu_module_load": (self._module_load, _PTR, [_PTR]),
            "mosaic_gpu_get_function": (self._get_function, _PTR, [_PTR, _PTR, _I32, _I32]),
        }  # fmt: skip

    def _bind(self) -> list[Any]:
        """Bind the symbols to the recorders; return the callbacks, which must be kept alive."""
        import llvmlite.binding as llvm

        alive = []
        for name, (recorder, result, arguments) in self._recorders().items():
            # LLVM keeps only the address; garbage collection of the callback would leave it
            # dangling.
            callback = ctypes.CFUNCTYPE(result, *arguments)(self._guarded(recorder))
            llvm.add_symbol(name, ctypes.cast(callback, _PTR).value)
            alive.append(callback)
        return alive

    def _guarded(self, recorder: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            try:
                return recorder(*arguments)
            except BaseException as error:  # noqa: BLE001 - none may cross the C frames below
                self._errors.append(error)
                return None

        return call

    def _tiled(
        self, target: int, base: int, kind: int, rank: int, sizes: int, strides: int, swizzle: int,
        window: int,
    ) -> None:  # fmt: skip
        shape = _read64(sizes, rank), _read64(strides, rank)
        self._add_map(target, TiledMap(base, kind, *shape, swizzle, _read64(window, rank)))

    def _im2col(
        self, target: int, base: int, kind: int, rank: int, sizes: int, strides: int, swizzle: int,
        lower: int, upper: int, channels: int, rows: int, steps: int,
    ) -> None:  # fmt: skip
        shape = _read64(sizes, rank), _read64(strides, rank)
        low, high, step = (_read32(at, rank - 2) for at in (lower, upper, steps))
        windows = (low, high, channels, rows, step)
        self._add_map(target, TiledMap(base, kind, *shape, swizzle, im2col=windows))

    def _add_map(self, target: int, tensor_map: TiledMap) -> None:
        if target % 64:
            raise CompileError(f"a tensor map is built at {target:#x}, not aligned to 64 bytes")
        ctypes.memmove(target, _mark(len(self._maps)), _MAP_BYTES)
        self._maps.append(tensor_map)

    def _launch_kernel(self, _function: int, *rest: int) -> None:
        shape, smem, params = rest[:9], rest[9], rest[-1]
        pdl = bool(rest[10]) if self._launcher is Launcher.PDL else False
        pointers = _read_pointers(params, len(self._parameter_sizes))
        arguments = [
            self._argument(pointer, size)
            for pointer, size in zip(pointers, self._parameter_sizes, strict=True)
        ]
        self._record(shape, smem, pdl, arguments)

    def _build_spec(self, _spec: int, *rest: int) -> None:
        shape, smem, pdl, count, params, sizes = rest[:9], *rest[9:]
        if count != len(self._parameter_sizes):
            raise CompileError(
                f"the host function passes {count} arguments, "
                f"the kernel takes {len(self._parameter_sizes)}"
            )
        passed = _read32(sizes, count)
        arguments = []
        for pointer, size, declared in zip(
            _read_pointers(params, count), passed, self._parameter_sizes, strict=True
        ):
            if size not in (0, declared):
                raise CompileError(
                    f"the host function passes {size} bytes for a parameter of {declared}"
                )
            # Size 0 marks a device address; `pointer` points to it in both cases.
            arguments.append(self._argument(pointer, size) if size else _address(pointer))
        self._record(shape, smem, bool(pdl), arguments)

    def _record(
        self, shape: Sequence[int], smem: int, pdl: bool, arguments: list[Argument]
    ) -> None:
        grid, cluster, block = ((shape[i], shape[i + 1], shape[i + 2]) for i in (0, 3, 6))
        self._launches.append(Recorded(grid, cluster, block, smem, pdl, tuple(arguments)))

    def _argument(self, pointer: int, size: int) -> Argument:
        """Return the argument of `size` bytes at `pointer`: an address, or bytes with maps."""
        data = ctypes.string_at(pointer, size)
        by_value = self._launcher is Launcher.SPEC or size != 8
        if not by_value and int.from_bytes(data, "little") >= _SPACING:
            return _address(pointer)
        maps = []
        for offset in range(0, size - _MAP_BYTES + 1, _MAP_BYTES):
            for index, tensor_map in enumerate(self._maps):
                if data[offset : offset + _MAP_BYTES] == _mark(index):
                    maps.append((offset, tensor_map))
                    data = data[:offset] + bytes(_MAP_BYTES) + data[offset + _MAP_BYTES :]
        _refuse_addresses(data)
        return Argument(data=data, maps=tuple(maps))

    def _module_load(self, cubin: int) -> int:
        # Only the address is passed; the cubin is in the object's read-only data.
        start = self._object_file.find(ctypes.string_at(cubin, 64))
        if start < 0:
            raise CompileError("the host object loads a cubin that it does not contain")
        embedded = self._object_file[start:]
        self._cubins.append(embedded[: parse_elf(embedded).size])
        return 1

    def _get_function(self, _module: int, name: int, smem_bytes: int, _cluster: int) -> int:
        self._functions.append((ctypes.string_at(name).decode(), smem_bytes))
        return 2


def _load(object_file: bytes) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_file))
    engine.finalize_object()
    return engine


def _mark(index: int) -> bytes:
    """Return the 128 bytes that represent tensor map `index`."""
    return (b"pallasc tensor map %08d " % index).ljust(_MAP_BYTES, b"\xa5")


def _read64(address: int, count: int) -> tuple[int, ...]:
    return tuple((_I64 * count).from_address(address)) if count else ()


def _read32(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int32 * count).from_address(address)) if count else ()


def _address(pointer: int) -> Argument:
    return Argument(address=ctypes.c_uint64.from_address(pointer).value)


def _read_pointers(address: int, count: int) -> list[int]:
    return [value or 0 for value in (_PTR * count).from_address(address)] if count else []


def _refuse_addresses(data: bytes) -> None:
    for offset in range(0, len(data) - 7, 8):
        value = int.from_bytes(data[offset : offset + 8], "little")
        if value % _SPACING < _SPACING >> 1 and 0 < value // _SPACING <= MOST_SENTINELS:
            raise CompileError("a kernel argument passed by value contains an address")
