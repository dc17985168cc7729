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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallasc.compiler.executable.host_stub import (
    MOST_SENTINELS,
    Argument,
    HostObject,
    Launcher,
    Recorded,
    TiledMap,
    locate,
    sentinel,
)
from pallasc.compiler.executable.serialized import message_type
from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import parse_cubin
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

_LAUNCHERS = {1: Launcher.PLAIN, 3: Launcher.PDL, 4: Launcher.SPEC}
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
    """How to read the traces of a profiled kernel (`ProfilerSpec` of JAX's mosaic/gpu).

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
    from google.protobuf.message import DecodeError

    try:
        proto = message_type("MosaicGpuKernelProto").FromString(state)
    except DecodeError as error:
        raise CompileError(f"a Mosaic GPU kernel is not readable: {error}") from error
    launcher = _LAUNCHERS.get(proto.version)
    if launcher is None:
        raise CompileError(
            f"Mosaic GPU kernel format version {proto.version} is unknown; tested are {_TESTED}",
            hint="Install a supported JAX version (`pallasc doctor` lists them).",
        )
    with HostObject(proto.object_file, launcher) as host:
        if proto.version == 1:
            name, cubin, smem = host.init(proto.init_func_name)
        else:
            name, cubin, smem = proto.kernel_name, proto.gpu_binary, proto.smem_bytes
        kernels = parse_cubin(cubin).kernels
        if name not in kernels:
            names = ", ".join(kernels) or "none"
            raise CompileError(f"the cubin has no kernel {name}, only {names}")
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
    if not len(sizes) == len(strides) or len(window) not in (0, len(sizes)):
        raise CompileError(f"tensor map of sizes {sizes} with strides {strides}, window {window}")
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
