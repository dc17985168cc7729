"""Kernels of the stand-in driver that run: their PTX is executed on the memory of the host.

    gpu = emulated.install(driver)       # every kernel without a function of its own
    gpu.know(artifact)                   # the PTX of this cubin

A launch of a cubin that the GPU does not know fails; so does one in which the emulator finds a
fault, which `driver.check()` raises.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from standin import Standin
from standin_records import MAP_BYTES, Launch, TensorMap

from pallasc.emulator.machine.machine import Launch as Running
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import PARAMETERS, UNSIGNED, GlobalMemory, Region, Window
from pallasc.emulator.program import program
from pallasc.specs.artifacts import plan
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import digest


@dataclass
class Gpu:
    """What executes launches.

    Attributes:
        driver: whose memory they reach.
        texts: PTX by the digest of the cubin and the kernel's name.
        launched: how many kernels ran to their end.
    """

    driver: Standin
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    launched: int = 0

    def know(self, artifact: Artifact, ptx: Mapping[str, str] | None = None) -> None:
        """Take the PTX of an artifact's kernels; `ptx` has that of others, by their cubins."""
        for kernel in artifact.kernels:
            if kernel.ptx is not None:
                text = artifact.blob(kernel.ptx).decode()
            elif kernel.cubin in (ptx or {}):
                text = (ptx or {})[kernel.cubin]
            else:
                continue
            self.texts[kernel.cubin, kernel.name] = text

    def run(self, launch: Launch) -> None:
        """Execute a launch."""
        code = program(self.texts[digest(self.driver.image(launch)), launch.kernel], launch.kernel)
        machine = Machine()
        machine.memory = _DriverMemory(self.driver)
        data = bytearray()
        for number, declared in enumerate(code.kernel.parameters):
            # In PTX parameters begin at 0, in constant memory where the cubin says.
            data = data.ljust(code.offsets[declared.name] - PARAMETERS, b"\0")
            value = bytearray(launch.parameters[number])
            for at, encoded in launch.maps(number):
                described = machine.tensor_maps.encode(_map(encoded), encoded.address)
                value[at : at + MAP_BYTES] = described
            data += value
        running = Running(
            code,
            launch.grid,
            launch.block,
            launch.cluster or (1, 1, 1),
            launch.smem_bytes,
            machine.parameters(bytes(data)),
        )
        machine.run([running])
        self.launched += 1


class _DriverMemory(GlobalMemory):
    """Memory in which the allocations of the driver lie, too."""

    def __init__(self, driver: Standin) -> None:
        super().__init__()
        self._driver = driver

    def window(self, address: int, size: int = 1) -> Window:
        """Return the window that these bytes lie in."""
        found = self._driver.allocation(address)
        if found is not None and found[0] not in self.bases:
            start, length, _ = found
            self.insert(Window(start, _region_over(start, length), 0, length))
        return super().window(address, size)


def _region_over(start: int, size: int) -> Region:
    """Return a region whose bytes are those of the driver, not a copy of them."""
    region = Region(start, 0, f"the memory at {start:#x}")
    region.size = size
    region.data = np.frombuffer((ctypes.c_ubyte * size).from_address(start), np.uint8)
    for width, dtype in UNSIGNED.items():
        region.views[width] = region.data[: size // width * width].view(dtype)
    return region


def _map(encoded: TensorMap) -> plan.TensorMap:
    """Return a map as a plan has it."""
    fields = {name: value for name, value in asdict(encoded).items() if name != "address"}
    assert encoded.im2col is None, "no kernel of JAX has such a map"
    return plan.TensorMap(buffer=0, offset=0, **fields)


def install(driver: Standin) -> Gpu:
    """Let every kernel without a function of its own be executed."""
    gpu = Gpu(driver)
    driver.kernel("*")(gpu.run)
    return gpu
