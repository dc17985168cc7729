"""A program of the driver, for tests of the stand-in: cubins made by ptxas, calls, a launch."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

_CUDA_MAJOR = int(version("cuda-bindings").partition(".")[0])
NO_PARAMETERS = (None,) if _CUDA_MAJOR >= 13 else ()
"""First argument of `cuCtxCreate`, which it has since CUDA 13."""

# Parameters of 8, 128 and 4 bytes, 512 bytes of shared memory, variables; limits on threads.
_PLAIN = """
.visible .const .align 4 .b8 table[64] = {9, 8, 7};
.visible .global .align 8 .b8 flag[24] = {1, 2, 3};
.visible .entry plain(.param .u64 p0, .param .align 64 .b8 p1[128], .param .u32 p2)
{
    .reg .b64 %r<3>;
    .reg .b32 %a<3>;
    .shared .align 4 .b8 memory[512];
    ld.param.u64 %r1, [p0];
    ld.param.u32 %a1, [p2];
    st.shared.u32 [memory], %a1;
    bar.sync 0;
    ld.shared.u32 %a2, [memory];
    st.global.u32 [%r1], %a2;
    ret;
}
.visible .entry four(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3) { ret; }
.visible .entry maps(.param .align 64 .b8 p0[256], .param .u64 p1) { ret; }
.visible .entry none() { ret; }
.visible .entry bounded() .maxntid 128, 2, 1 { ret; }
.visible .entry exact() .reqntid 64, 1, 1 { ret; }
"""

_CLUSTERS = """
.visible .entry clustered() .explicitcluster .reqnctapercluster 4, 2, 1 { ret; }
.visible .entry ranked() .explicitcluster .maxclusterrank 4 { ret; }
"""

_MANY = 220


def _hungry() -> str:
    """Return a kernel that keeps 220 registers alive."""
    loads = "".join(f"ld.volatile.global.u32 %a{i}, [%r1+{4 * i}];" for i in range(_MANY))
    stores = "".join(
        f"st.volatile.global.u32 [%r1+{4 * i}], %a{i};" for i in reversed(range(_MANY))
    )
    return (
        ".visible .entry hungry(.param .u64 p0) {"
        f".reg .b64 %r<2>; .reg .b32 %a<{_MANY}>; ld.param.u64 %r1, [p0]; {loads} {stores} ret; }}"
    )


@functools.cache
def ptxas() -> Path:
    from pallasc.compiler.toolchain.toolchain import find_toolchain
    from pallasc.errors import PallascError

    try:
        return find_toolchain().ptxas
    except PallascError as error:
        pytest.skip(f"no ptxas to make cubins with: {error.message}")


def assemble(entries: str, arch: str) -> bytes:
    """Return a cubin for `arch` ("sm_90a") with these entries."""
    number = int(arch.removeprefix("sm_").rstrip("af"))
    version = "9.0" if number >= 100 else "8.8" if number >= 90 else "8.0"
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(f".version {version}\n.target {arch}\n.address_size 64\n{entries}")
        subprocess.run([ptxas(), "-arch", arch, source, "-o", made], check=True)
        return made.read_bytes()


@functools.cache
def cubin(arch: str) -> bytes:
    """Return a cubin for `arch` with the kernels above."""
    has_clusters = int(arch.removeprefix("sm_").rstrip("af")) >= 90
    return assemble("\n".join([_PLAIN, _hungry(), _CLUSTERS if has_clusters else ""]), arch)


def code_of(result: Any) -> int:
    """Return the result code of a call through cuda.bindings."""
    return int(result[0])


def value_of(result: Any) -> Any:
    """Return the value of a call through cuda.bindings; the test fails where there is none."""
    assert int(result[0]) == 0, f"{result[0]!r}"
    return result[1] if len(result) == 2 else result[1:]


def load(image: bytes) -> tuple[Any, ...]:
    """Call `cuLibraryLoadData` without options."""
    from cuda.bindings import driver

    result: tuple[Any, ...] = driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)
    return result


def attribute(id_: int, *numbers: int) -> Any:
    """Return a `CUlaunchAttribute`: a cluster (three numbers) or one number."""
    from cuda.bindings import driver

    made = driver.CUlaunchAttribute()
    made.id = driver.CUlaunchAttributeID(id_)
    if len(numbers) == 3:
        made.value.clusterDim.x, made.value.clusterDim.y, made.value.clusterDim.z = numbers
    elif id_ == 2:
        made.value.cooperative = numbers[0]
    else:
        made.value.programmaticStreamSerializationAllowed = numbers[0]
    return made


def config_of(
    *,
    grid: Sequence[int] = (1, 1, 1),
    block: Sequence[int] = (32, 1, 1),
    smem_bytes: int = 0,
    stream: Any = 0,
    attributes: Sequence[Any] = (),
) -> Any:
    """Return a `CUlaunchConfig`."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes = smem_bytes
    config.hStream = driver.CUstream(int(stream))
    config.attrs = list(attributes)
    config.numAttrs = len(attributes)
    return config


def pack(parameters: Sequence[Any]) -> Any:
    """Return `kernelParams` for parameters given as bytes; keep the result while it is used."""
    blocks = [ctypes.create_string_buffer(data, len(data)) for data in parameters]
    array = (ctypes.c_void_p * max(1, len(blocks)))(*map(ctypes.addressof, blocks))
    array.blocks = blocks  # type: ignore[attr-defined]
    return array


def pointer(address: Any) -> bytes:
    """Return an address as the bytes of a parameter."""
    return int(address).to_bytes(8, "little")


def in_thread(work: Callable[[], Any]) -> Any:
    """Return what something returns in a thread of its own, or raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


@dataclass
class Rig:
    """A process with device 0's primary context current and the kernels loaded."""

    standin: Any
    image: bytes
    library: Any = None
    kernels: dict[str, Any] = field(default_factory=dict)

    @property
    def driver(self) -> Any:
        """The module `cuda.bindings.driver`."""
        from cuda.bindings import driver

        return driver

    def start(self, device: int = 0) -> Rig:
        """Call cuInit, make the primary context of a device current, load the library."""
        value_of((*self.driver.cuInit(0), None))
        self.use(device)
        self.library = value_of(load(self.image))
        return self

    def use(self, device: int) -> Any:
        """Make the primary context of a device current in this thread."""
        context = value_of(self.driver.cuDevicePrimaryCtxRetain(device))
        value_of((*self.driver.cuCtxSetCurrent(context), None))
        return context

    def kernel(self, name: str) -> Any:
        """Return a kernel of the library."""
        if name not in self.kernels:
            found = self.driver.cuLibraryGetKernel(self.library, name.encode())
            self.kernels[name] = value_of(found)
        return self.kernels[name]

    def allocate(self, size_bytes: int = 4096) -> int:
        """Return the address of fresh device memory."""
        return int(value_of(self.driver.cuMemAlloc(size_bytes)))

    def launch(self, target: Any, parameters: Sequence[bytes] = (), **config: Any) -> int:
        """Launch a kernel, by name or handle, and return the result code."""
        handle = self.kernel(target) if isinstance(target, str) else target
        packed = pack(parameters)
        function = self.driver.CUfunction(int(handle))
        made = config_of(**config)
        return code_of(self.driver.cuLaunchKernelEx(made, function, ctypes.addressof(packed), 0))

    def synchronize(self) -> int:
        """Wait for the current context and return the result code."""
        return code_of(self.driver.cuCtxSynchronize())
