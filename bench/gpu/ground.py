"""The driver with as little as possible in front of it, for the cases of `error_codes.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
"""What `pack.py` assembles the kernels of the cases for."""

_OWN = {name.rstrip("a"): name for name in ARCHITECTURES}
_CLUSTER, _PDL = 4, 6


def code_of(result: Any) -> int:
    """Return the code of a call through cuda.bindings."""
    return int(result[0])


def value_of(result: Any) -> Any:
    """Return the value of a call that must succeed."""
    if code_of(result):
        raise RuntimeError(f"a call that a case relies on answers {result[0]!r}")
    return result[1] if len(result) == 2 else result[1:]


class Ground:
    """A process that talks to the driver.

    Args:
        folder: where `pack.py` put the cubins.
    """

    def __init__(self, folder: Path) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self._folder = folder
        self._library: Any = None

    def start(self) -> Ground:
        """Call `cuInit` and make the primary context of device 0 current."""
        value_of((*self.driver.cuInit(0), None))
        self.context = value_of(self.driver.cuDevicePrimaryCtxRetain(0))
        value_of((*self.driver.cuCtxSetCurrent(self.context), None))
        return self

    def capability(self) -> tuple[int, int]:
        """Return the compute capability of device 0."""
        names = self.driver.CUdevice_attribute
        major, minor = (
            getattr(names, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}")
            for part in ("MAJOR", "MINOR")
        )
        ask = self.driver.cuDeviceGetAttribute
        return int(value_of(ask(major, 0))), int(value_of(ask(minor, 0)))

    def image(self, arch: str | None = None) -> bytes:
        """Return the cubin for an architecture, for that of device 0 where none is named."""
        bare = f"sm_{''.join(map(str, self.capability()))}"
        name = arch or _OWN.get(bare, bare)
        return (self._folder / f"{name}.cubin").read_bytes()

    def load(self, image: bytes) -> Any:
        """Call `cuLibraryLoadData`."""
        return self.driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)

    def kernel(self, name: str) -> Any:
        """Return a kernel of the library for device 0."""
        if self._library is None:
            self._library = value_of(self.load(self.image()))
        return value_of(self.driver.cuLibraryGetKernel(self._library, name.encode()))

    def function(self, name: str) -> Any:
        """Return a kernel's function in the current context."""
        return value_of(self.driver.cuKernelGetFunction(self.kernel(name)))

    def memory(self, size_bytes: int = 1 << 20) -> int:
        """Return fresh memory of the device."""
        return int(value_of(self.driver.cuMemAlloc(size_bytes)))

    def stream(self) -> Any:
        """Return a new stream that does not wait for the default one."""
        return value_of(self.driver.cuStreamCreate(1))

    def launch(self, target: Any, parameters: Sequence[bytes] = (), **config: Any) -> int:
        """Launch a kernel, by name or by handle; return the code."""
        handle = self.kernel(target) if isinstance(target, str) else target
        blocks = [ctypes.create_string_buffer(data, len(data)) for data in parameters]
        packed = (ctypes.c_void_p * max(1, len(blocks)))(*map(ctypes.addressof, blocks))
        function = self.driver.CUfunction(int(handle))
        made = self.config(**config)
        address = ctypes.addressof(packed)
        return code_of(self.driver.cuLaunchKernelEx(made, function, address, 0))

    def config(
        self,
        *,
        grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (32, 1, 1),
        smem_bytes: int = 0,
        stream: Any = 0,
        cluster: Sequence[int] | None = None,
        pdl: bool = False,
    ) -> Any:
        """Return a `CUlaunchConfig`."""
        config = self.driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.sharedMemBytes = smem_bytes
        config.hStream = self.driver.CUstream(int(stream))
        attributes = []
        if cluster is not None:
            attributes.append(self._attribute(_CLUSTER))
            dim = attributes[-1].value.clusterDim
            dim.x, dim.y, dim.z = cluster
        if pdl:
            attributes.append(self._attribute(_PDL))
            attributes[-1].value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def _attribute(self, number: int) -> Any:
        made = self.driver.CUlaunchAttribute()
        made.id = self.driver.CUlaunchAttributeID(number)
        return made

    def allow(self, name: str, attribute: str, value: int) -> int:
        """Set an attribute of a kernel on device 0; return the code."""
        number = getattr(self.driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{attribute}")
        return code_of(self.driver.cuKernelSetAttribute(number, value, self.kernel(name), 0))

    def attribute(self, name: str) -> int:
        """Return an attribute of device 0, or -1 where there is none."""
        number = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        result = self.driver.cuDeviceGetAttribute(number, 0)
        return -1 if code_of(result) else int(result[1])

    def synchronize(self) -> int:
        """Wait for the current context; return the code."""
        return code_of(self.driver.cuCtxSynchronize())


def pointer(address: int) -> bytes:
    """Return an address as the bytes of a parameter."""
    return int(address).to_bytes(8, "little")


def write(ground: Ground, address: int, **config: Any) -> int:
    """Launch the kernel that writes a number to an address; return the code."""
    return ground.launch("plain", [pointer(address), bytes(128), bytes(4)], **config)
