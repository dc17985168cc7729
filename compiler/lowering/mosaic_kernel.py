"""A Mosaic kernel in an executable: its cubin, its name, and the launch made by its host code.

`MosaicGpuKernelProto` (jaxlib/mosaic/gpu/mosaic_gpu.proto) has a version. Tested versions are
supported, and others are rejected:

======= ============ ========================================================================
version JAX          location of the launch data
======= ============ ========================================================================
1       0.10         cubin in the host object; name, shared memory, cluster from the init call
3       0.11         cubin, name, shared memory, cluster in the proto; launch passes "uses PDL"
4       0.12         like 3, but the host function fills a kernel spec instead of launching
======= ============ ========================================================================

XLA launches a kernel by calling straight-line host code that builds tensor maps and calls a
few symbols of Mosaic's runtime (`jaxlib/mosaic/gpu/runtime.cc`, `launch_lowering.cc`,
`launch_context.py` in JAX's sources). This module loads the host code with LLVM's MCJIT and binds
the symbols to Python functions. It passes sentinel addresses, 2^40 bytes apart, instead of buffers,
so every pointer that reaches these functions identifies its buffer and offset.

A kernel on several devices reads the addresses of its peers' memory from a table
(`specs/artifacts/plan.py`), and its host function builds tensor maps for these addresses. The
function is run once for each rank, with a table of sentinel addresses, so that every address
identifies its array and rank.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from pallasc.compiler.lowering.serialized import message_type
from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import parse_cubin, parse_elf
from pallasc.specs.artifacts.plan import (
    ELEMENT_BYTES,
    MAP_BYTES,
    MULTICAST,
    PEER_HEAD_WORDS,
    Bytes,
    Im2col,
    Launch,
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
_LIBC = frozenset({"memcpy", "memset", "memmove", "malloc", "free"})
_PTR, _I32, _I64, _U64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint64
_LOCK = threading.RLock()
"""Symbols are global to the process, so only one host object is used at a time."""


def sentinel(index: int) -> int:
    """Return the address that represents array `index`."""
    return (index + 1) * _SPACING


def locate(address: int) -> tuple[int, int]:
    """Return the array number and byte offset of an address derived from a sentinel."""
    index, offset = divmod(address, _SPACING)
    if index == 0:
        raise CompileError(f"the host function passes {address:#x}, which is outside all buffers")
    return index - 1, offset


@dataclass(frozen=True, slots=True)
class Sentinels:
    """Sentinels for `arrays` arrays on each of `ranks` devices, as passed to device `rank`.

    The sentinels of the rank's own arrays come first, then the sentinel of the table on the device,
    of each array on each rank, and of each array's multicast address.
    """

    arrays: int
    ranks: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        if self.ranks > 1 and self.arrays * (self.ranks + 2) + 1 > MOST_SENTINELS:
            raise CompileError(
                f"a kernel of {self.arrays} arrays over {self.ranks} devices needs more than "
                f"{MOST_SENTINELS} addresses"
            )

    def words(self) -> list[int]:
        """Return the table of peers."""
        addresses = [
            sentinel(array if peer == self.rank else self._number(array, peer))
            for array in range(self.arrays)
            for peer in range(self.ranks)
        ]
        shared = [sentinel(self._number(self.arrays, array)) for array in range(self.arrays)]
        return [self.rank, *[0] * (PEER_HEAD_WORDS - 1), *addresses, *shared]

    def _number(self, array: int, peer: int) -> int:
        return self.arrays + 1 + array * self.ranks + peer

    def find(self, address: int) -> tuple[int, int, int]:
        """Return the array, byte offset, and rank of an address.

        Raises:
            CompileError: the address is in no array.
        """
        number, offset = locate(address)
        if number < self.arrays:
            return number, offset, self.rank
        array, peer = divmod(number - self.arrays - 1, self.ranks)
        if array >= self.arrays:
            array, peer = array * self.ranks + peer - self.arrays * self.ranks, MULTICAST
        if self.ranks == 1 or number == self.arrays or array >= self.arrays:
            raise CompileError(f"the host function uses {address:#x}, which is in no array")
        return array, offset, peer


class HostObject:
    """A loaded host object file; use it as a context manager, in one thread.

    Args:
        object_file: the relocatable ELF object, for the CPU of this process.
        version: the proto's version. In version 4, the host function takes `(spec, buffers)` and
            calls `mosaic_gpu_build_kernel_spec`. In versions 1 and 3, it takes
            `(function, stream, buffers)` and calls `mosaic_gpu_launch_kernel`; only version 3
            passes the argument "uses PDL".

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
        self._sentinels = Sentinels(0)
        self._maps: list[TensorMap] = []
        self._launches: list[Launch] = []
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

    def launch(self, name: str, *, parameter_sizes: Sequence[int], sentinels: Sentinels) -> Launch:
        """Run the host function `name` with sentinel buffers and return its one launch.

        The launch has no cubin and no kernel name. Its buffers are array numbers of the custom
        call: operands first, then results. Each tensor map has a single peer: its array's rank.

        Args:
            name: the function, `_mlir_ciface_…`.
            parameter_sizes: size of each kernel parameter in bytes, from the cubin.
            sentinels: the addresses of the arrays.

        Raises:
            CompileError: the function does not launch exactly once, or passes an unknown kind of
                argument.
        """
        self._parameter_sizes, self._sentinels = parameter_sizes, sentinels
        # After the arrays: the table of peers on the device, and the table on the host.
        words = sentinels.words() if sentinels.ranks > 1 else []
        table = (_U64 * len(words))(*words)
        tables = [sentinel(sentinels.arrays), ctypes.addressof(table)] if words else [None, None]
        own = [sentinel(array) for array in range(sentinels.arrays)]
        pointers = (_PTR * (len(own) + 2))(*own, *tables)
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
            # LLVM keeps only the address, which dangles if the callback is garbage-collected.
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

    def _tiled(self, *arguments: int) -> None:
        *array, window = arguments
        self._add_map(*array, window=_read(_I64, window, array[3]))

    def _im2col(self, *arguments: int) -> None:
        *array, lower, upper, channels, rows, steps = arguments
        low, high, step = (
            _read(ctypes.c_int32, at, array[3] - 2)[::-1] for at in (lower, upper, steps)
        )
        im2col = Im2col(
            lower=[*low], upper=[*high], channels_per_pixel=channels, pixels_per_column=rows
        )
        self._add_map(*array, im2col=im2col, steps=step)

    def _add_map(
        self, target: int, base: int, kind: int, rank: int, sizes: int, strides: int, swizzle: int,
        **window: Any,
    ) -> None:  # fmt: skip
        if target % 64:
            raise CompileError(f"a tensor map is built at {target:#x}, not aligned to 64 bytes")
        ctypes.memmove(target, _mark(len(self._maps)), MAP_BYTES)
        buffer, offset, peer = self._sentinels.find(base)
        shape = _read(_I64, sizes, rank), _read(_I64, strides, rank)
        made = from_mosaic(kind, *shape, swizzle, buffer=buffer, offset=offset, **window)
        self._maps.append(replace(made, peers=(peer,)))

    def _launch_kernel(self, _function: int, *rest: int) -> None:
        shape, smem, params = rest[:9], rest[9], rest[-1]
        pdl = self._version == 3 and bool(rest[10])
        sizes = self._parameter_sizes
        pointers = _read(_U64, params, len(sizes))
        self._record(shape, smem, pdl, [*map(self._parameter, pointers, sizes)])

    def _build_spec(self, _spec: int, *rest: int) -> None:
        shape, smem, pdl, count, params, sizes = rest[:9], *rest[9:]
        pointers, passed = _read(_U64, params, count), _read(ctypes.c_int32, sizes, count)
        # Size 0 marks a device address. For every size, `pointer` is the address of the value.
        parameters = [
            self._parameter(pointer, size) if size else self._address(pointer)
            for pointer, size in zip(pointers, passed, strict=True)
        ]
        self._record(shape, smem, bool(pdl), parameters)

    def _record(
        self, shape: Sequence[int], smem: int, pdl: bool, parameters: list[Parameter]
    ) -> None:
        grid, cluster, block = ((shape[i], shape[i + 1], shape[i + 2]) for i in (0, 3, 6))
        clusters = cluster if any(cluster) else None
        self._launches.append(Launch("", "", grid, clusters, block, smem, pdl, tuple(parameters)))

    def _address(self, pointer: int) -> Parameter:
        address = _U64.from_address(pointer).value
        if address == sentinel(self._sentinels.arrays):
            return Peers()
        array, offset, peer = self._sentinels.find(address)
        if peer != self._sentinels.rank:
            raise CompileError("the host function passes an array of another device")
        return Pointer(array, offset)

    def _parameter(self, pointer: int, size: int) -> Parameter:
        """Return the parameter at `pointer`: an address, or `size` bytes with tensor maps."""
        data = ctypes.string_at(pointer, size)
        by_value = self._version == 4 or size != 8
        if not by_value and int.from_bytes(data, "little") >= _SPACING:
            return self._address(pointer)
        maps = []
        for offset in range(0, size - MAP_BYTES + 1, MAP_BYTES):
            for index, tensor_map in enumerate(self._maps):
                if data[offset : offset + MAP_BYTES] == _mark(index):
                    maps.append((offset, tensor_map))
                    data = data[:offset] + bytes(MAP_BYTES) + data[offset + MAP_BYTES :]
        _refuse_addresses(data)
        return Bytes(size, data.hex() if any(data) or not maps else "", tuple(maps))

    def _module_load(self, cubin: int) -> int:
        # Only the cubin's address is passed; its bytes are in the object's read-only data.
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
    return (b"pallasc tensor map %08d " % index).ljust(MAP_BYTES, b"\xa5")


def _read(kind: Any, address: int, count: int) -> tuple[int, ...]:
    return tuple((kind * count).from_address(address)) if count else ()


def _refuse_addresses(data: bytes) -> None:
    for offset in range(0, len(data) - 7, 8):
        value = int.from_bytes(data[offset : offset + 8], "little")
        if value % _SPACING < _SPACING >> 1 and 0 < value // _SPACING <= MOST_SENTINELS:
            raise CompileError("a kernel argument passed by value contains an address")


# ---- kernels

_VERSIONS = (1, 3, 4)
_TESTED = "1 (JAX 0.10), 3 (JAX 0.11) and 4 (JAX 0.12)"

# The second name is from JAX 0.10, where only multicast needed the attribute.
_SYMMETRIC = ("symmetric_memory_parameters", "multimem_parameters")

# `_tma_dma_type` in jax/experimental/mosaic/gpu/launch_context.py: number -> (driver type, bits).
_ELEMENT_TYPES = {
    0: ("uint8", 4), 1: ("uint8", 8), 2: ("uint16", 16), 3: ("uint32", 32), 4: ("uint64", 64),
    5: ("float16", 16), 6: ("float32", 32), 7: ("bfloat16", 16), 8: ("uint8", 2),
    9: ("int32", 32), 10: ("int64", 64),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MosaicKernel:
    """A kernel that Mosaic compiled, with the launch made by its host function.

    The launch has no cubin, and its buffers are array numbers of the custom call: operands first,
    then results.
    """

    cubin: bytes
    launch: Launch
    uses_nvshmem: bool
    uses_multimem: bool


def read_mosaic_kernel(state: bytes, *, buffers: int, ranks: int = 1) -> MosaicKernel:
    """Read the serialized `MosaicGpuKernelProto` of a custom call.

    Args:
        state: the message.
        buffers: number of buffers in the call.
        ranks: number of devices that run the kernel together.

    Raises:
        CompileError: the proto's version is untested, or its parts contradict each other.
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
        sizes = kernels[name].parameter_bytes
        each_rank = [
            host.launch(
                proto.host_func_name,
                parameter_sizes=sizes,
                sentinels=Sentinels(buffers, ranks, rank),
            )
            for rank in range(ranks)
        ]
        launch = join_ranks(each_rank)
    if smem and launch.dynamic_smem_bytes != smem:
        raise CompileError(
            f"{name} declares {smem} bytes of shared memory but is launched with "
            f"{launch.dynamic_smem_bytes}"
        )
    return MosaicKernel(
        cubin=cubin,
        launch=replace(launch, kernel=name),
        uses_nvshmem=proto.is_nvshmem_used,
        uses_multimem=proto.is_multimem_used,
    )


# ---- parameters


def placed(parameter: Parameter, arrays: Sequence[Pointer]) -> Parameter:
    """Return a Mosaic kernel's parameter with array numbers replaced by the buffers of `arrays`.

    Args:
        parameter: the parameter.
        arrays: the arrays of the call: operands first, then results.
    """

    def place(tensor_map: TensorMap) -> TensorMap:
        array = arrays[tensor_map.buffer]
        return replace(tensor_map, buffer=array.buffer, offset=array.offset + tensor_map.offset)

    if isinstance(parameter, Pointer):
        array, offset = arrays[parameter.buffer], parameter.offset
        return Pointer(array.buffer, array.offset + offset, max(array.size - offset, 0))
    return _with_maps(parameter, place)


def _with_maps(parameter: Parameter, change: Callable[[TensorMap], TensorMap]) -> Parameter:
    """Return a parameter with each of its tensor maps changed."""
    if not isinstance(parameter, Bytes):
        return parameter
    maps = tuple((at, change(tensor_map)) for at, tensor_map in parameter.tensor_maps)
    return replace(parameter, tensor_maps=maps)


def from_mosaic(
    element_type: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    swizzle_bytes: int,
    *,
    buffer: int,
    offset: int,
    window: tuple[int, ...] = (),
    im2col: Im2col | None = None,
    steps: tuple[int, ...] = (),
) -> TensorMap:
    """Return the tensor map that Mosaic's runtime would encode.

    Types smaller than a byte are packed into bytes along the minor dimension, as in
    `mosaic_gpu_init_tma_desc`.

    Args:
        element_type: number of the element type.
        sizes: sizes of the dimensions, major first.
        strides: strides in elements, major first.
        swizzle_bytes: width of the swizzle; 16 for no swizzle.
        buffer: number of the array.
        offset: byte offset in the array.
        window: sizes of the box, major first.
        im2col: the window of a convolution instead of `window`.
        steps: element strides of the convolution's spatial dimensions, minor first.

    Raises:
        CompileError: the element type is unknown, or a driver's rule is broken.
    """
    if element_type not in _ELEMENT_TYPES:
        raise CompileError(f"tensor map with unknown element type {element_type}")
    dtype, bits = _ELEMENT_TYPES[element_type]
    packing = max(1, 8 // bits)
    if strides[-1:] != (1,):
        raise CompileError(f"tensor map whose minor stride is {[*strides[-1:]]} instead of 1")
    packed = [sizes[-1], *strides[:-1], *window[-1:]]
    if any(value % packing for value in packed):
        raise CompileError(f"tensor map of {bits}-bit elements does not fill whole bytes: {packed}")
    box = [size // packing for size in window[-1:]] + [*window[-2::-1]]
    result = TensorMap(
        buffer=buffer,
        offset=offset,
        dtype=dtype,
        dims=(sizes[-1] // packing, *sizes[-2::-1]),
        strides=tuple(each // packing * ELEMENT_BYTES[dtype] for each in strides[-2::-1]),
        box=tuple(box),
        element_strides=(1, *steps, 1) if im2col else (1,) * len(sizes),
        swizzle=0 if swizzle_bytes == 16 else swizzle_bytes,
        im2col=im2col,
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


def join_ranks(launches: Sequence[Launch]) -> Launch:
    """Return the launch that all ranks make, with the peers of each tensor map.

    Raises:
        CompileError: the launches of the ranks differ in more than peers of tensor maps.
    """
    first, *others = (_with_peers(launch, itertools.repeat(None)) for launch in launches)
    if any(other != first for other in others):
        raise CompileError("the host function makes different launches on different devices")
    own = tuple(range(len(launches)))
    by_map = zip(*map(_peers, launches), strict=True)
    return _with_peers(first, (None if peers == own else peers for peers in by_map))


def _peers(launch: Launch) -> list[int]:
    return [
        peer
        for parameter in launch.parameters
        if isinstance(parameter, Bytes)
        for _, tensor_map in parameter.tensor_maps
        for peer in tensor_map.peers or ()
    ]


def _with_peers(launch: Launch, peers: Iterator[tuple[int, ...] | None]) -> Launch:
    def change(tensor_map: TensorMap) -> TensorMap:
        return replace(tensor_map, peers=next(peers))

    return replace(launch, parameters=tuple(_with_maps(each, change) for each in launch.parameters))


def uses_peers(call: Any) -> bool:
    """Return True if a custom call reads the table of peers."""
    return _is_true(_attributes(call).get("uses_xla_collective_metadata"))


def peer_table(
    call: Any, arrays: Sequence[Pointer], *, multimem: bool, ranks: int
) -> PeerTable | None:
    """Return the peer table of a custom call, None if it uses none.

    Args:
        call: the custom call.
        arrays: the call's operands, then its results.
        multimem: whether the kernel uses multicast addresses.
        ranks: number of devices that run the kernel together.

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
    if len(flags) not in (0, len(arrays)):
        raise CompileError(
            f"a Mosaic kernel has symmetric-memory flags for {len(flags)} arrays, "
            f"expected {len(arrays)}"
        )
    symmetric = tuple(number for number, flag in enumerate(flags) if flag)
    barrier = not _is_true(attributes.get("skip_device_barrier"))
    places = tuple((array.buffer, array.offset) for array in arrays)
    return PeerTable(ranks, places, symmetric, multimem, barrier)


def _attributes(call: Any) -> Mapping[str, object]:
    return {entry.key: entry.value for entry in call.attributes.attrs}


def _is_true(attribute: Any) -> bool:
    return attribute is not None and bool(attribute.scalar.b)


def _numbers(attribute: Any) -> list[int]:
    if attribute is None:
        return []
    return [int(text) for text in bytes(attribute.str).decode().split(",") if text]
