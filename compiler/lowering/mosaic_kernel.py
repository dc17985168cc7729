"""A Mosaic kernel in an executable: its cubin, its name, and the launch made by its host code.

`MosaicGpuKernelProto` (jaxlib/mosaic/gpu/mosaic_gpu.proto) has a version. Each tested version has
an adapter, and any other is rejected:

======= ============ ========================================================================
version JAX          where things are
======= ============ ========================================================================
1       0.10         cubin in the host object; name, shared memory, cluster from the init call
3       0.11         cubin, name, shared memory, cluster in the proto; launch passes "uses PDL"
4       0.12         as 3; the host function fills a kernel spec instead of launching
======= ============ ========================================================================

A kernel on several devices reads the addresses of its peers' memory from a table
(`specs/artifacts/plan.py`), and its host function builds tensor maps on these addresses. The
function is run once for each rank, with a table of sentinel addresses, so that every address shows
the array and the rank that it belongs to.

XLA launches a kernel by calling straight-line host code that builds tensor maps and calls a
few symbols of Mosaic's runtime (`jaxlib/mosaic/gpu/runtime.cc`, `launch_lowering.cc`,
`launch_context.py` in JAX's sources). This module loads that code with LLVM's MCJIT and binds the
symbols to Python functions. The buffers are sentinel addresses 2^40 bytes apart, so every pointer
that is passed back shows its buffer and offset.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallasc.compiler.lowering.serialized import message_type
from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import parse_cubin, parse_elf
from pallasc.specs.artifacts.plan import (
    ELEMENT_BYTES,
    MULTICAST,
    PEER_HEAD_WORDS,
    Bytes,
    Im2col,
    Parameter,
    Peers,
    PeerTable,
    Pointer,
    TensorMap,
    broken_rule,
)

# ---- running the host function

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


def sentinel(index: int) -> int:
    """Return the address that represents buffer `index`."""
    return (index + 1) * _SPACING


def locate(address: int) -> tuple[int, int]:
    """Return the buffer index and byte offset of an address derived from a sentinel."""
    index, offset = divmod(address, _SPACING)
    if index == 0:
        raise CompileError(f"the host function passes {address:#x}, which is outside all buffers")
    return index - 1, offset


class HostObject:
    """A loaded host object file; use it as a context manager, in one thread.

    Args:
        object_file: the relocatable ELF object, for the CPU of this process.
        version: Mosaic's version, which decides the launch interface of the host function. In
            version 4, `(spec, buffers)` calls `mosaic_gpu_build_kernel_spec`. In versions 3 and 1,
            `(function, stream, buffers)` calls `mosaic_gpu_launch_kernel`, with and without the
            argument "uses PDL".

    Raises:
        CompileError: the object needs an unknown symbol.
    """

    def __init__(self, object_file: bytes, version: int) -> None:
        self._object_file = object_file
        self._version = version
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
        ((kernel, smem_bytes),), (cubin,) = self._functions, self._cubins
        return kernel, cubin, smem_bytes

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
        lead = 1 if self._version == 4 else 2
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
        pdl = [] if self._version == 1 else [_I32]
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
        pdl = self._version == 3 and bool(rest[10])
        sizes = self._parameter_sizes
        pointers = _read_pointers(params, len(sizes))
        arguments = [*map(self._argument, pointers, sizes)]
        self._record(shape, smem, pdl, arguments)

    def _build_spec(self, _spec: int, *rest: int) -> None:
        shape, smem, pdl, count, params, sizes = rest[:9], *rest[9:]
        pointers, passed = _read_pointers(params, count), _read32(sizes, count)
        # Size 0 marks a device address; the pointer points to it in both cases.
        arguments = [
            self._argument(pointer, size) if size else _address(pointer)
            for pointer, size in zip(pointers, passed, strict=True)
        ]
        self._record(shape, smem, bool(pdl), arguments)

    def _record(
        self, shape: Sequence[int], smem: int, pdl: bool, arguments: list[Argument]
    ) -> None:
        grid, cluster, block = ((shape[i], shape[i + 1], shape[i + 2]) for i in (0, 3, 6))
        self._launches.append(Recorded(grid, cluster, block, smem, pdl, tuple(arguments)))

    def _argument(self, pointer: int, size: int) -> Argument:
        """Return the argument of `size` bytes at `pointer`: an address, or bytes with maps."""
        data = ctypes.string_at(pointer, size)
        by_value = self._version == 4 or size != 8
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


# ---- kernels

_VERSIONS = (1, 3, 4)
_TESTED = "1 (JAX 0.10), 3 (JAX 0.11) and 4 (JAX 0.12)"

# The second name is from JAX 0.10, where only multicast needed it.
_SYMMETRIC = ("symmetric_memory_parameters", "multimem_parameters")

# `_tma_dma_type` in jax/experimental/mosaic/gpu/launch_context.py: number -> (driver type, bits).
_ELEMENT_TYPES = {
    0: ("uint8", 4), 1: ("uint8", 8), 2: ("uint16", 16), 3: ("uint32", 32), 4: ("uint64", 64),
    5: ("float16", 16), 6: ("float32", 32), 7: ("bfloat16", 16), 8: ("uint8", 2),
    9: ("int32", 32), 10: ("int64", 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Regions:
    """The layout of the traces of a profiled kernel (`ProfilerSpec` of JAX's mosaic/gpu).

    Attributes:
        kernel: the hash of the kernel, hexadecimal.
        words: number of 32-bit words per trace.
        traces: number of traces per block.
        names: the regions by their numbers.
    """

    kernel: str
    words: int
    traces: int
    names: tuple[str, ...]

    def buffer_bytes(self, grid: tuple[int, ...]) -> int:
        """Return the size in bytes of the traces of a launch."""
        return 4 * self.words * self.traces * math.prod(grid)


@dataclass(frozen=True, slots=True)
class MosaicKernel:
    """A kernel that Mosaic compiled, with the launch made by its host function."""

    hash: str
    name: str
    cubin: bytes
    launch: Recorded
    uses_nvshmem: bool
    uses_multimem: bool


def read_mosaic_kernel(state: bytes, *, buffers: int, ranks: int = 1) -> MosaicKernel:
    """Read the serialized `MosaicGpuKernelProto` of a custom call.

    Args:
        state: the message.
        buffers: number of buffers in the call.
        ranks: number of devices that run it together.

    Raises:
        CompileError: its version was not tested, or its parts contradict each other.
    """
    proto = message_type("MosaicGpuKernelProto").FromString(state)
    if proto.version not in _VERSIONS:
        raise CompileError(
            f"Mosaic GPU kernel format version {proto.version} is unknown; tested are {_TESTED}",
            hint="Install a supported JAX version (`pallasc doctor` lists them).",
        )
    with HostObject(proto.object_file, proto.version) as host:
        if proto.version == 1:
            name, cubin, smem = host.init(proto.init_func_name)
        else:
            name, cubin, smem = proto.kernel_name, proto.gpu_binary, proto.smem_bytes
        kernels = parse_cubin(cubin).kernels
        sizes = [parameter.size for parameter in kernels[name].parameters]
        launch = _launch(host, proto.host_func_name, buffers, sizes, ranks)
    if smem and launch.dynamic_smem_bytes != smem:
        raise CompileError(
            f"{name} declares {smem} bytes of shared memory and is launched with "
            f"{launch.dynamic_smem_bytes}"
        )
    return MosaicKernel(
        hash=proto.kernel_hash.hex(),
        name=name,
        cubin=cubin,
        launch=launch,
        uses_nvshmem=proto.is_nvshmem_used,
        uses_multimem=proto.is_multimem_used,
    )


def _launch(
    host: HostObject, name: str, buffers: int, sizes: Sequence[int], ranks: int
) -> Recorded:
    if ranks == 1:
        return host.launch(name, buffers=buffers, parameter_sizes=sizes)
    sentinels = PeerSentinels(buffers, ranks)
    recorded = [
        host.launch(name, buffers=buffers, parameter_sizes=sizes, peer_table=sentinels.words(rank))
        for rank in range(ranks)
    ]
    return join_ranks(recorded, sentinels)


# ---- parameters


def mosaic_parameter(
    argument: Argument, positions: list[tuple[int, int]], sizes: Sequence[int]
) -> Parameter:
    """Turn an argument from the host function into a parameter of the plan.

    Args:
        argument: the argument.
        positions: (buffer, byte offset) of each operand of the call, then of each result.
        sizes: the size of each, as in `Pointer`.

    Raises:
        CompileError: it does not point to a buffer of the call, or a tensor map breaks a rule.
    """
    if argument.address is not None:
        index, inner = locate(argument.address)
        if (index, inner) == (len(positions), 0):
            return Peers()
        buffer, offset = _resolve(argument.address, positions)
        return Pointer(buffer, offset, max(sizes[index] - inner, 0))
    maps = []
    for at, tensor_map in argument.maps:
        buffer, offset = _resolve(tensor_map.address, positions)
        maps.append((at, from_mosaic(tensor_map, buffer=buffer, offset=offset)))
    data = argument.data.hex() if any(argument.data) or not maps else ""
    return Bytes(len(argument.data), data, tuple(maps))


def _resolve(address: int, positions: list[tuple[int, int]]) -> tuple[int, int]:
    index, inner = locate(address)
    if index >= len(positions):
        raise CompileError(f"the host function uses buffer {index} of {len(positions)}")
    buffer, offset = positions[index]
    return buffer, offset + inner


def from_mosaic(recorded: TiledMap, *, buffer: int, offset: int) -> TensorMap:
    """Return the tensor map that Mosaic's runtime would encode for `recorded`.

    Types smaller than a byte are packed into bytes along the minor dimension, as in
    `mosaic_gpu_init_tma_desc`.

    Raises:
        CompileError: an unknown element type or a broken rule.
    """
    if recorded.element_type not in _ELEMENT_TYPES:
        raise CompileError(f"tensor map with unknown element type {recorded.element_type}")
    dtype, bits = _ELEMENT_TYPES[recorded.element_type]
    packing = max(1, 8 // bits)
    sizes, strides, window = list(recorded.sizes), list(recorded.strides), list(recorded.window)
    if strides[-1:] != [1]:
        raise CompileError(f"tensor map whose minor stride is {strides[-1:]} instead of 1")
    packed = [sizes[-1], *strides[:-1], *window[-1:]]
    if any(value % packing for value in packed):
        raise CompileError(f"tensor map of {bits}-bit elements that does not fill bytes: {packed}")
    sizes[-1] //= packing
    strides = [stride // packing for stride in strides[:-1]]
    if window:
        window[-1] //= packing
    element_strides, im2col = (1,) * len(sizes), None
    if recorded.im2col is not None:
        lower, upper, channels, rows, steps = recorded.im2col
        element_strides = (1, *reversed(steps), 1)
        im2col = Im2col(
            lower=list(reversed(lower)),
            upper=list(reversed(upper)),
            channels_per_pixel=channels,
            pixels_per_column=rows,
        )
    result = TensorMap(
        buffer=buffer,
        offset=offset,
        dtype=dtype,
        dims=tuple(reversed(sizes)),
        strides=tuple(stride * ELEMENT_BYTES[dtype] for stride in reversed(strides)),
        box=tuple(reversed(window)),
        element_strides=element_strides,
        swizzle=0 if recorded.swizzle_bytes == 16 else recorded.swizzle_bytes,
        im2col=im2col,
        peers=recorded.peers,
    )
    check_tensor_map(result)
    return result


def check_tensor_map(tensor_map: TensorMap) -> None:
    """Check the driver's rules for tensor maps.

    Raises:
        CompileError: a rule is broken; the message has the rule and the value.
    """
    broken = broken_rule(tensor_map)
    if broken is not None:
        raise CompileError(f"the driver would refuse a tensor map of this kernel: {broken}")


# ---- several devices


@dataclass(frozen=True, slots=True)
class PeerSentinels:
    """Sentinels for `arrays` arrays on `ranks` devices.

    The rank's own arrays come first, then the table on the device, then each array on each rank,
    then the multicast address of each array.
    """

    arrays: int
    ranks: int

    def __post_init__(self) -> None:
        if self.arrays * (self.ranks + 2) + 1 > MOST_SENTINELS:
            raise CompileError(f"a kernel of {self.arrays} arrays over {self.ranks} devices")

    def words(self, rank: int) -> list[int]:
        """Return the table for `rank`."""
        addresses = [
            sentinel(array if peer == rank else self._number(array, peer))
            for array in range(self.arrays)
            for peer in range(self.ranks)
        ]
        shared = [sentinel(self._number(self.arrays, array)) for array in range(self.arrays)]
        return [rank, *[0] * (PEER_HEAD_WORDS - 1), *addresses, *shared]

    def _number(self, array: int, peer: int) -> int:
        return self.arrays + 1 + array * self.ranks + peer

    def own(self, address: int, rank: int) -> tuple[int, int]:
        """Return the address in the rank's own copy of the array, and the rank that it belongs to.

        Raises:
            CompileError: it is not in any array.
        """
        number, offset = locate(address)
        if number < self.arrays:
            return address, rank
        array, peer = divmod(number - self.arrays - 1, self.ranks)
        if array >= self.arrays:
            array, peer = array * self.ranks + peer - self.arrays * self.ranks, MULTICAST
        if number <= self.arrays or array >= self.arrays:
            raise CompileError(f"the host function builds a tensor map on address {address:#x}")
        return sentinel(array) + offset, peer


def join_ranks(recorded: Sequence[Recorded], sentinels: PeerSentinels) -> Recorded:
    """Return the launch that all ranks make, with the peers of each tensor map.

    Raises:
        CompileError: the launches differ between ranks in more than the owners of tensor maps.
    """
    launches: list[Recorded] = []
    peers: list[list[int]] = []
    for rank, launch in enumerate(recorded):
        own = [sentinels.own(address, rank) for address in _map_addresses(launch)]
        launches.append(_with_maps(launch, [{"address": address} for address, _ in own]))
        peers.append([peer for _, peer in own])
    first, *others = launches
    if any(other != first for other in others):
        raise CompileError("the host function launches something different on each device")
    own_ranks = tuple(range(len(recorded)))
    by_map = [None if ranks == own_ranks else ranks for ranks in zip(*peers, strict=True)]
    return _with_maps(first, [{"peers": ranks} for ranks in by_map])


def _map_addresses(launch: Recorded) -> list[int]:
    return [tensor_map.address for argument in launch.arguments for _, tensor_map in argument.maps]


def _with_maps(launch: Recorded, changes: Iterable[Mapping[str, Any]]) -> Recorded:
    remaining = iter(changes)
    arguments = [
        replace(
            argument, maps=tuple((at, replace(m, **next(remaining))) for at, m in argument.maps)
        )
        for argument in launch.arguments
    ]
    return replace(launch, arguments=tuple(arguments))


def uses_peers(call: Any) -> bool:
    """Return True if a custom call reads the table of peers."""
    return _is_true(_attributes(call).get("uses_xla_collective_metadata"))


def peer_table(
    call: Any, places: Sequence[tuple[int, int]], *, multimem: bool, ranks: int
) -> PeerTable | None:
    """Return the table that a custom call needs, None if it needs none.

    Args:
        call: the custom call.
        places: buffer and offset of its operands, then of its results.
        multimem: whether the kernel uses multicast addresses.
        ranks: number of devices that run it together.

    Raises:
        CompileError: the call refers to other devices or other arrays.
    """
    if not uses_peers(call):
        return None
    attributes = _attributes(call)
    devices = _numbers(attributes.get("xla_replica_ids"))
    if devices != list(range(ranks)):
        raise CompileError(f"a Mosaic kernel for {ranks} devices names devices {devices}")
    flags = next((_numbers(attributes[name]) for name in _SYMMETRIC if name in attributes), [])
    if len(flags) not in (0, len(places)):
        raise CompileError(
            f"a Mosaic kernel has symmetric-memory flags for {len(flags)} arrays, "
            f"expected {len(places)}"
        )
    symmetric = tuple(number for number, flag in enumerate(flags) if flag)
    barrier = not _is_true(attributes.get("skip_device_barrier"))
    return PeerTable(ranks, tuple(places), symmetric, multimem, barrier)


def _attributes(call: Any) -> Mapping[str, object]:
    return {entry.key: entry.value for entry in call.attributes.attrs}


def _is_true(attribute: Any) -> bool:
    return attribute is not None and bool(attribute.scalar.b)


def _numbers(attribute: Any) -> list[int]:
    if attribute is None:
        return []
    return [int(text) for text in bytes(attribute.str).decode().split(",") if text]
