"""A Mosaic kernel in an executable: its cubin, its name and the launch that its host code makes.

`MosaicGpuKernelProto` (jaxlib/mosaic/gpu/mosaic_gpu.proto) has a version; each tested version has
an adapter, and any other is refused:

======= ============ ========================================================================
version JAX          where things are
======= ============ ========================================================================
1       0.10         cubin in the host object; name, shared memory, cluster from the init call
3       0.11         cubin, name, shared memory, cluster in the proto; launch says "uses PDL"
4       0.12         as 3; the host function fills a kernel spec instead of launching
======= ============ ========================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pallasc.compiler.executable.host_stub import HostObject, Launcher, Recorded
from pallasc.compiler.executable.peer_tables import PeerSentinels, join_ranks
from pallasc.compiler.executable.xla_schema import message_type
from pallasc.errors import CompileError
from pallasc.specs.artifacts.cubin import Kernel, parse_cubin

_LAUNCHERS = {1: Launcher.PLAIN, 3: Launcher.PDL, 4: Launcher.SPEC}
_TESTED = "1 (JAX 0.10), 3 (JAX 0.11) and 4 (JAX 0.12)"


@dataclass(frozen=True, slots=True)
class Regions:
    """How the traces of a profiled kernel are read (`ProfilerSpec` of JAX's mosaic/gpu).

    Attributes:
        kernel: the hash of the kernel, hexadecimal.
        words: 32-bit words of a trace.
        traces: traces of a block.
        names: the regions by their numbers.
    """

    kernel: str
    words: int
    traces: int
    names: tuple[str, ...]

    def buffer_bytes(self, grid: tuple[int, ...]) -> int:
        """Return the size of the traces of a launch."""
        return 4 * self.words * self.traces * math.prod(grid)


@dataclass(frozen=True, slots=True)
class MosaicKernel:
    """A kernel as Mosaic compiled it, with the launch its host function asked for."""

    hash: str
    name: str
    cubin: bytes
    launch: Recorded
    cluster_size: int
    uses_nvshmem: bool
    uses_multimem: bool


def read_mosaic_kernel(state: bytes, *, buffers: int, ranks: int = 1) -> MosaicKernel:
    """Read the serialised `MosaicGpuKernelProto` of a custom call.

    Args:
        state: the message.
        buffers: how many buffers the call has.
        ranks: how many devices run it together.

    Raises:
        CompileError: its version was not tested, or its parts contradict each other.
    """
    from google.protobuf.message import DecodeError

    try:
        proto = message_type("MosaicGpuKernelProto").FromString(state)
    except DecodeError as error:
        raise CompileError(
            f"a Mosaic GPU kernel in the executable is not readable: {error}"
        ) from error
    launcher = _LAUNCHERS.get(proto.version)
    if launcher is None:
        raise CompileError(
            f"Mosaic GPU kernel format version {proto.version} is unknown; tested are {_TESTED}",
            hint="Install a supported JAX version (`pallasc doctor` lists them).",
        )
    with HostObject(proto.object_file, launcher) as host:
        name, cubin, smem, cluster = _code(proto, host)
        kernel = _entry(name, cubin)
        launch = _launch(host, proto.host_func_name, kernel, buffers, ranks)
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
        cluster_size=max(1, cluster),
        uses_nvshmem=proto.is_nvshmem_used,
        uses_multimem=proto.is_multimem_used,
    )


def _launch(host: HostObject, name: str, kernel: Kernel, buffers: int, ranks: int) -> Recorded:
    sizes = [parameter.size for parameter in kernel.parameters]
    if ranks == 1:
        return host.launch(name, buffers=buffers, parameter_sizes=sizes)
    sentinels = PeerSentinels(buffers, ranks)
    recorded = [
        host.launch(name, buffers=buffers, parameter_sizes=sizes, peer_table=sentinels.words(rank))
        for rank in range(ranks)
    ]
    return join_ranks(recorded, sentinels)


def _code(proto: Any, host: HostObject) -> tuple[str, bytes, int, int]:
    if proto.version == 1:
        module = host.init(proto.init_func_name)
        return module.kernel, module.cubin, module.dynamic_smem_bytes, module.cluster_size
    return proto.kernel_name, proto.gpu_binary, proto.smem_bytes, proto.cluster_size


def _entry(name: str, cubin: bytes) -> Kernel:
    kernels = parse_cubin(cubin).kernels
    if name not in kernels:
        raise CompileError(f"the cubin has no kernel {name}, only {', '.join(kernels) or 'none'}")
    return kernels[name]
