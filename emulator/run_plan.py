"""Runs a launch plan: buffers, fills, copies and launches, on as many devices as it requires."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pallasc.emulator.arrays import from_bytes, to_bytes
from pallasc.emulator.machine.machine import Launch as Running
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import PARAMETERS, Region
from pallasc.emulator.program import Program, assemble
from pallasc.emulator.ptx.parse import parse
from pallasc.errors import ArgumentError, UnsupportedError
from pallasc.specs.artifacts.artifact import Artifact, KernelResources
from pallasc.specs.artifacts.plan import (
    MAP_BYTES,
    MULTICAST,
    PEER_HEAD_WORDS,
    Bytes,
    Launch,
    LaunchPlan,
    Peers,
    PeerTable,
    Pointer,
    TensorMap,
)
from pallasc.specs.artifacts.resources import REGISTERS_PER_SM, blocks_per_sm, model_figure

Array = npt.NDArray[np.generic]
_POISON = 0xFF  # NaN in every floating-point format


_INCREASE = re.compile(r"setmaxnreg\.inc\S*\s+(\d+)")
_MOST_REGISTERS = 255


def _registers(resources: KernelResources, step: Launch, ptx: str) -> int:
    """Return the initial number of registers per thread, 0 if it never changes.

    ptxas gives a kernel as many registers as `setmaxnreg.inc` requests, or as many as its number of
    threads allows. If it gave fewer, it dropped these instructions, as ptxas 13 does on sm_120a if
    they request 256.
    """
    asked = max(map(int, _INCREASE.findall(ptx)), default=0)
    left = REGISTERS_PER_SM // math.prod(step.block) // 8 * 8
    if resources.registers < min(asked, left, _MOST_REGISTERS):
        return 0
    return -(-resources.registers // 8) * 8


@lru_cache(maxsize=64)
def program(ptx: str, kernel: str) -> Program:
    """Return the entry `kernel` of a PTX text, ready to run."""
    identity = hashlib.sha256(ptx.encode()).digest()
    return assemble(parse(ptx), kernel, identity=identity)


@dataclass(slots=True)
class PlanRun:
    """One execution of an artifact's plan.

    Args:
        artifact: the artifact to run.
        machine: the machine to run it on.
        ptx: PTX of kernels that have none in the artifact, by digest of their cubin.
        poison: initial value of each byte of results and temporaries.
    """

    artifact: Artifact
    machine: Machine
    ptx: Mapping[str, str] = field(default_factory=dict)
    poison: int = field(default=_POISON, kw_only=True)
    buffers: list[list[Region]] = field(default_factory=list)  # of each device

    @property
    def plan(self) -> LaunchPlan:
        """The plan that runs."""
        return self.artifact.plan

    def run(self, inputs: Sequence[Sequence[npt.ArrayLike]]) -> list[list[Array]]:
        """Run the plan on the inputs of each device, and return the outputs of each.

        Raises:
            ArgumentError: devices, arrays, dtypes or shapes differ from the plan's.
            Fault: a kernel executed an invalid operation.
            UnsupportedError: the plan has a step that is not supported here.
        """
        devices = max(self.plan.device_count, 1)
        if len(inputs) != devices:
            raise ArgumentError(f"the plan runs on {devices} devices; got arrays for {len(inputs)}")
        for device, arrays in enumerate(inputs):
            self.buffers.append(self._allocate(device, arrays))
        for step in self.plan.steps:
            if isinstance(step, Launch):
                self._launch(step)
            else:
                for buffers in self.buffers:
                    step.run(_Memory(buffers))
        return [
            [from_bytes(buffers[b.buffer].data, b) for b in self.plan.outputs]
            for buffers in self.buffers
        ]

    def _allocate(self, device: int, arrays: Sequence[npt.ArrayLike]) -> list[Region]:
        plan = self.plan
        if len(arrays) != len(plan.inputs):
            raise ArgumentError(f"the plan has {len(plan.inputs)} inputs; got {len(arrays)}")
        labels = {b.buffer: b.path for b in (*plan.outputs, *plan.inputs)}
        regions = []
        for number, buffer in enumerate(plan.buffers):
            label = labels.get(number, f"the {buffer.role} buffer {number}")
            memory = self.machine.memory
            region = memory.allocate(buffer.size, buffer.alignment, label, self.poison)
            region.device, region.is_scratch = device, number not in labels
            if buffer.digest is not None:
                region.adopt(np.frombuffer(self.artifact.blob(buffer.digest), np.uint8))
            regions.append(region)
        for binding, array in zip(plan.inputs, arrays, strict=True):
            regions[binding.buffer].adopt(to_bytes(array, binding))
        return regions

    def _launch(self, step: Launch) -> None:
        ptx = self.ptx_of(step)
        code = program(ptx, step.kernel)
        running = (step.cubin, step.kernel)
        resources = next((k for k in self.artifact.kernels if (k.cubin, k.name) == running), None)
        room = None if resources is None else self._room(step, resources)
        registers = 0 if resources is None else _registers(resources, step, ptx)
        launches = []
        for device in range(len(self.buffers)):
            data = self._parameters(step, code, device)
            launches.append(
                Running(
                    code,
                    step.grid,
                    step.block,
                    step.cluster or (1, 1, 1),
                    step.dynamic_smem_bytes,
                    self.machine.parameters(data),
                    device,
                    cubin=step.cubin,
                    room=room,
                    registers=registers,
                )
            )
        self.machine.run(launches)
        self.machine.memory.unmap_parts()

    def _room(self, step: Launch, resources: KernelResources) -> int:
        """Return the number of clusters of a launch that the artifact's GPU holds at once."""
        target = self.artifact.target
        blocks = blocks_per_sm(step, resources, target) * model_figure(target, "sm_count")
        return max(1, blocks // math.prod(step.cluster or (1,)))

    def ptx_of(self, step: Launch) -> str:
        """Return the PTX that a launch runs.

        Raises:
            UnsupportedError: there is none.
        """
        if step.cubin in self.ptx:
            return self.ptx[step.cubin]
        for kernel in self.artifact.kernels:
            if kernel.cubin == step.cubin and kernel.name == step.kernel and kernel.ptx is not None:
                return self.artifact.blob(kernel.ptx).decode()
        raise UnsupportedError(f"there is no PTX of the kernel {step.kernel}")

    def _parameters(self, step: Launch, code: Program, device: int) -> bytes:
        data = bytearray()
        for declared, parameter in zip(code.kernel.parameters, step.parameters, strict=True):
            data = data.ljust(code.offsets[declared.name] - PARAMETERS, b"\0")
            if isinstance(parameter, Bytes):
                data += self._value(parameter, device)
                continue
            if isinstance(parameter, Pointer):
                address = self._array_address(parameter, device, step.peer_table)
            else:
                address = self._peers(parameter, step.peer_table, device)
            data += address.to_bytes(8, "little")
        return bytes(data)

    def _array_address(self, array: Pointer, device: int, table: PeerTable | None) -> int:
        """Return an address from which no other array of the buffer can be reached.

        A kernel with a table of peers gets the plain address instead, because it compares addresses
        with those in the table.
        """
        region = self.buffers[device][array.buffer]
        size = array.size or region.size - array.offset
        if size == region.size or table is not None:
            return region.base + array.offset
        return self.machine.memory.map_part(region, array.offset, size)

    def _value(self, parameter: Bytes, device: int) -> bytes:
        value = bytearray(bytes.fromhex(parameter.data).ljust(parameter.size, b"\0"))
        for offset, tensor_map in parameter.tensor_maps:
            address = self._map_address(tensor_map, device)
            encoded = self.machine.tensor_maps.encode(tensor_map, address)
            value[offset : offset + MAP_BYTES] = encoded
        return bytes(value)

    def _map_address(self, tensor_map: TensorMap, device: int) -> int:
        rank = device if tensor_map.peers is None else tensor_map.peers[device]
        if rank == MULTICAST:
            return self._multicast(tensor_map.buffer) + tensor_map.offset
        return self.buffers[rank][tensor_map.buffer].base + tensor_map.offset

    def _multicast(self, buffer: int) -> int:
        members = tuple(buffers[buffer].base for buffers in self.buffers)
        for base, (*others, _) in self.machine.memory.multicast.items():
            if tuple(others) == members:
                return base
        return self.machine.memory.map_multicast(members, self.buffers[0][buffer].size)

    def _peers(self, parameter: Peers, table: PeerTable | None, device: int) -> int:
        if table is None:
            raise UnsupportedError("the plan has no table of peers for a kernel on several devices")
        words = np.zeros(table.words, np.uint64)
        words[0] = device
        for number, (buffer, offset) in enumerate(table.arrays):
            for rank in range(table.ranks):
                address = self.buffers[rank][buffer].base + offset
                words[PEER_HEAD_WORDS + table.ranks * number + rank] = address
            if table.multicast:
                at = PEER_HEAD_WORDS + table.ranks * len(table.arrays) + number
                words[at] = self._multicast(buffer) + offset
        region = self.machine.memory.allocate(words.nbytes, label="the table of peers")
        region.adopt(words.view(np.uint8))
        return region.base


class _Memory:
    """The buffers of one device, as fills and copies use them."""

    def __init__(self, buffers: Sequence[Region]) -> None:
        self._buffers = buffers

    def read(self, buffer: int, offset: int, size: int) -> bytes:
        return self._buffers[buffer].data[offset:][:size].tobytes()

    def write(self, buffer: int, offset: int, data: bytes) -> None:
        target = self._buffers[buffer].data[offset:][: len(data)]
        target[:] = np.frombuffer(data, np.uint8)
