"""Runs a launch plan: buffers, fills, copies and launches, on as many devices as the plan requires.

A `Program` is a kernel with one function per instruction. `to_bytes` and `from_bytes` convert
arrays to device memory and back, in the plan's layout; elements of fewer than eight bits are
packed, the first in the low bits.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import ml_dtypes
import numpy as np
import numpy.typing as npt
from msgspec import structs

from pallasc.emulator.instructions.builder import CLOCKS, Builder, broadcast, storage
from pallasc.emulator.instructions.registry import build
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.machine import Launch as Running
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import PARAMETERS, RESERVED, GlobalMemory, Region
from pallasc.emulator.machine.warp import EXITED, LANES, Step, Warp
from pallasc.emulator.ptx.parse import parse
from pallasc.emulator.ptx.syntax import (
    Address,
    Instruction,
    Kernel,
    Module,
    Operand,
    Special,
    Variable,
    Vector,
    register_numbers,
)
from pallasc.errors import ArgumentError, UnsupportedError
from pallasc.specs.arrays import DTYPES
from pallasc.specs.artifacts.artifact import (
    REGISTERS_PER_SM,
    Artifact,
    KernelResources,
    blocks_per_sm,
)
from pallasc.specs.artifacts.plan import (
    MAP_BYTES,
    MULTICAST,
    PEER_HEAD_WORDS,
    Binding,
    Bytes,
    Launch,
    LaunchPlan,
    PeerTable,
    Pointer,
    TensorMap,
)

_LANES = np.arange(LANES, dtype=np.uint32)
_LOCAL_START = 16  # no variable has the address 0
_TICKS = 32  # clock ticks per instruction


@dataclass(frozen=True, slots=True)
class Program:
    """The code of a kernel, and the initial state of its warps."""

    kernel: Kernel
    code: Sequence[Step]
    template: tuple[np.ndarray, ...]
    specials: tuple[tuple[int, str], ...]
    symbols: tuple[tuple[int, str, int], ...]
    offsets: Mapping[str, int]  # by name: shared and local variables, parameters
    static_shared: int
    local_bytes: int
    globals: Mapping[str, Variable]
    module: Hashable  # programs of the same module share its variables in global memory

    def registers(self, block: Block, first: int) -> list[np.ndarray]:
        """Return the initial registers of a warp; `first` is the number of its first thread."""
        registers = list(self.template)
        for slot, name in self.specials:
            registers[slot] = _special(name, block, first)
        for slot, name, offset in self.symbols:
            address = self._address(name, block) + offset
            registers[slot] = broadcast(address, np.dtype("u8"))
        return registers

    def _address(self, name: str, block: Block) -> int:
        if name in self.globals:
            return _global(block, self.module, self.globals[name]).base
        offset = self.offsets[name]
        if name in {v.name for v in self.kernel.variables if v.space == "shared"}:
            return block.base + offset
        return offset

    def drain(self, warp: Warp) -> None:
        """Complete the pending operations of a warp that has ended."""
        groups = warp.groups.values()
        committed = [each for own in groups for _, group in own.committed for each in group]
        uncommitted = [each for own in groups for each in own.open]
        for operation in (*committed, *uncommitted, *warp.tensor_loads):
            warp.block.machine.finish(operation)
        warp.groups = {}
        warp.tensor_loads = []


def _global(block: Block, module: Hashable, variable: Variable) -> Region:
    """Return a module's variable in global memory; each device has a separate one.

    It belongs to the loaded module: all kernels and launches of the module share it, and variables
    with the same name in other modules are separate (PTX ISA 9.0, 5.1.4).
    """
    known: dict[object, Region] = block.machine.variables
    key = (module, block.device, variable.name)
    if key not in known:
        memory: GlobalMemory = block.machine.memory
        label = f"{variable.name} of device {block.device}"
        region = memory.allocate(variable.size, variable.alignment, label)
        region.data[: len(variable.data)] = bytearray(variable.data)
        known[key] = region
    return known[key]


def assemble(module: Module, name: str, *, identity: Hashable = None) -> Program:
    """Prepare the entry `name` of a module to run.

    Args:
        module: the parsed module.
        name: the entry.
        identity: identifies the module; None if no other program shares it.

    Raises:
        UnsupportedError: the emulator does not support one of its instructions.
    """
    kernel = module.kernel(name)
    builder = Builder(kernel)
    products = _product_registers(kernel)
    code = [_step(instruction, builder, products) for instruction in kernel.instructions]
    code.append(lambda w, place: EXITED)
    kernel = _with_shared(kernel, module, {symbol for symbol, _ in builder.symbols})
    offsets, shared, local = _layout(kernel)
    template: list[np.ndarray] = [_zero(r.type) for r in kernel.registers]
    template += [np.zeros(LANES, "u4")] * (builder.slots - len(template))
    for (bits, dtype), slot in builder.constants.items():
        template[slot] = broadcast(bits, np.dtype(dtype))
    module_variables = {v.name: v for v in module.variables if v.space != "shared"}
    for symbol, _ in builder.symbols:
        if symbol not in offsets and symbol not in module_variables:
            raise UnsupportedError(f"{name} uses {symbol}, which the PTX does not declare")
    return Program(
        kernel,
        tuple(code),
        tuple(template),
        tuple((slot, special) for special, slot in builder.specials.items()),
        tuple((slot, symbol, offset) for (symbol, offset), slot in builder.symbols.items()),
        offsets,
        shared,
        local,
        module_variables,
        object() if identity is None else identity,
    )


def _with_shared(kernel: Kernel, module: Module, used: set[str]) -> Kernel:
    """Add to a kernel the module's shared-memory variables that it uses."""
    own = {variable.name for variable in kernel.variables}
    shared = [v for v in module.variables if v.space == "shared" and v.name in used - own]
    return replace(kernel, variables=(*kernel.variables, *shared))


def _zero(register_type: str) -> np.ndarray:
    shape = (LANES, 2) if register_type == "b128" else (LANES,)
    value = np.zeros(shape, storage(register_type))
    value.flags.writeable = False
    return value


def _layout(kernel: Kernel) -> tuple[dict[str, int], int, int]:
    """Return the addresses of variables and parameters, and the bytes of shared and local memory.

    An array of size zero is the block's dynamic shared memory, which comes after all others.
    """
    offsets: dict[str, int] = {}
    sizes = {"shared": RESERVED, "local": _LOCAL_START}
    for variable in sorted(kernel.variables, key=lambda v: not v.size):
        size = sizes[variable.space]
        alignment = max(variable.alignment, 1024 if not variable.size else 1)
        offsets[variable.name] = -(-size // alignment) * alignment
        sizes[variable.space] = offsets[variable.name] + variable.size
    at = PARAMETERS
    for parameter in kernel.parameters:
        at = -(-at // parameter.alignment) * parameter.alignment
        offsets[parameter.name] = at
        at += parameter.size
    return offsets, sizes["shared"] - RESERVED, -(-sizes["local"] // 16) * 16


def _step(instruction: Instruction, builder: Builder, products: frozenset[int]) -> Step:
    run = build(instruction, builder)
    if products and instruction.parts[0] != "wgmma":
        run = _watched(run, instruction, products)
    clocks = [name for name in CLOCKS if _mentions(instruction.operands, name)]
    if clocks:
        run = _with_clocks(run, [(builder.slot(Special(n), np.dtype("u4"))[0], n) for n in clocks])
    if instruction.guard is None or instruction.parts[0] in ("bra", "ret", "exit"):
        return run
    return _guarded(run, instruction.guard.number, instruction.guard.negated)


def _product_registers(kernel: Kernel) -> frozenset[int]:
    return frozenset(
        number
        for instruction in kernel.instructions
        if instruction.parts[:2] == ("wgmma", "mma_async")
        for operand in instruction.operands
        if isinstance(operand, Vector)
        for number in register_numbers(operand)
    )


def _watched(run: Step, instruction: Instruction, products: frozenset[int]) -> Step:
    """Extend a step: report its uses of wgmma registers to the observer."""
    writes = [n for o in instruction.results for n in register_numbers(o) if n in products]
    reads = [n for o in instruction.sources for n in register_numbers(o) if n in products]
    if not reads and not writes:
        return run

    def watched(w: Warp, place: int) -> int:
        w.observer.registers_used(w, place, reads, writes)
        return run(w, place)

    return watched


def _mentions(operands: tuple[Operand, ...], name: str) -> bool:
    for operand in operands:
        inner = operand.elements if isinstance(operand, Vector) else ()
        if isinstance(operand, Address):
            inner = (operand.base,)
        if (isinstance(operand, Special) and operand.name == name) or _mentions(inner, name):
            return True
    return False


def _with_clocks(run: Step, clocks: list[tuple[int, str]]) -> Step:
    def ticking(w: Warp, place: int) -> int:
        w.clock += 1
        for slot, name in clocks:
            wide = name in ("%clock64", "%globaltimer")
            value = w.clock * _TICKS >> (32 if name.endswith("_hi") else 0)
            w.registers[slot] = broadcast(value, np.dtype("u8" if wide else "u4"))
        return run(w, place)

    return ticking


def _guarded(run: Step, number: int, negated: bool) -> Step:
    def guarded(w: Warp, place: int) -> int:
        mask, full = w.mask, w.full
        chosen = w.registers[number]
        if negated:
            chosen = ~chosen
        if not full:
            chosen = chosen & mask
        count = np.count_nonzero(chosen)
        if not count:
            return place + 1
        if count == LANES:
            return run(w, place)
        w.mask, w.full = chosen, False
        try:
            return run(w, place)
        finally:
            w.mask, w.full = mask, full

    return guarded


def _special(name: str, block: Block, first: int) -> np.ndarray:
    """Return a special register of a warp (PTX ISA 9.0, chapter 10)."""
    launch = block.launch
    base, _, axis = name.partition(".")
    if axis:
        at = "xyz".index(axis)
        if base == "%tid":
            x, y, _ = launch.block
            thread = _LANES + np.uint32(first)
            of_axis: np.ndarray = (thread % x, thread // x % y, thread // (x * y))[at]
            return of_axis.astype("u4")
        return broadcast(_sizes(base, block)[at], np.dtype("u4"))
    x, y, z = launch.cluster
    value = {
        "%warpid": first // LANES,
        "%nwarpid": -(-launch.threads // LANES),
        "%smid": block.index[0]
        + launch.grid[0] * (block.index[1] + launch.grid[1] * block.index[2]),
        "%nsmid": 132,
        "%gridid": 1,
        "%cluster_ctarank": block.rank,
        "%cluster_nctarank": x * y * z,
        "%is_explicit_cluster": int(x * y * z > 1),
        "%dynamic_smem_size": launch.dynamic_shared,
        "%total_smem_size": launch.dynamic_shared + launch.static_shared,
        "%aggr_smem_size": launch.dynamic_shared + launch.static_shared + RESERVED,
    }.get(name)
    if value is not None:
        return broadcast(value, np.dtype("u4"))
    if name in CLOCKS:
        wide = name in ("%clock64", "%globaltimer")
        return broadcast(0, np.dtype("u8" if wide else "u4"))
    lanes = _LANES.astype("u8")
    one = np.uint64(1)
    masks = {
        "%laneid": lanes,
        "%lanemask_eq": one << lanes,
        "%lanemask_lt": (one << lanes) - one,
        "%lanemask_le": (one << (lanes + one)) - one,
        "%lanemask_gt": ~((one << (lanes + one)) - one),
        "%lanemask_ge": ~((one << lanes) - one),
    }
    if name not in masks:
        raise UnsupportedError(f"the emulator does not support the special register {name}")
    return masks[name].astype("u4")


def _sizes(base: str, block: Block) -> tuple[int, int, int]:
    launch = block.launch
    clusters = tuple(-(-g // c) for g, c in zip(launch.grid, launch.cluster, strict=True))
    of_cluster = tuple(i // c for i, c in zip(block.index, launch.cluster, strict=True))
    inside = tuple(i % c for i, c in zip(block.index, launch.cluster, strict=True))
    sizes: dict[str, tuple[int, ...]] = {
        "%ntid": launch.block,
        "%ctaid": block.index,
        "%nctaid": launch.grid,
        "%clusterid": of_cluster,
        "%nclusterid": clusters,
        "%cluster_ctaid": inside,
        "%cluster_nctaid": launch.cluster,
    }
    x, y, z = sizes[base]
    return x, y, z


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """Return NumPy's dtype for a dtype of a plan; small dtypes come from ml_dtypes."""
    known = DTYPES[name].jax_name.rstrip("_")
    return np.dtype(getattr(ml_dtypes, known) if hasattr(ml_dtypes, known) else known)


def to_bytes(array: npt.ArrayLike, binding: Binding) -> npt.NDArray[np.uint8]:
    """Convert an array to the bytes passed to a kernel.

    Raises:
        ArgumentError: the array's dtype or shape differs from the binding's.
    """
    values = np.asarray(array)
    dtype = numpy_dtype(binding.dtype)
    if values.dtype != dtype or values.shape != binding.shape:
        raise ArgumentError(
            f"{binding.path}: got {values.dtype}{list(values.shape)}, "
            f"needs {dtype}{list(binding.shape)}"
        )
    if binding.layout is not None:
        values = values.transpose(binding.layout[::-1])
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    bits = DTYPES[binding.dtype].bits
    return flat if bits >= 8 else _packed(flat, bits)


def from_bytes(data: npt.NDArray[np.uint8], binding: Binding) -> npt.NDArray[np.generic]:
    """Return the array stored in these bytes, as a copy."""
    dtype = numpy_dtype(binding.dtype)
    count = math.prod(binding.shape)
    bits = DTYPES[binding.dtype].bits
    if bits >= 8:
        values = data[: count * dtype.itemsize].copy().view(dtype)
    else:
        values = _unpacked(data, bits, count).view(dtype)
    if binding.layout is None:
        return values.reshape(binding.shape)
    stored = tuple(binding.shape[d] for d in binding.layout[::-1])
    back = np.argsort(binding.layout[::-1])
    return np.ascontiguousarray(values.reshape(stored).transpose(back))


def of_devices(binding: Binding, count: int) -> Binding:
    """Return a binding for the joined arrays of all devices, with the device as first dimension."""
    if count <= 1:
        return binding
    layout = None if binding.layout is None else (*(d + 1 for d in binding.layout), 0)
    return structs.replace(binding, shape=(count, *binding.shape), layout=layout)


def split(array: npt.NDArray[np.generic], count: int) -> list[npt.NDArray[np.generic]]:
    """Split an array that holds the arrays of all devices."""
    return list(array) if count > 1 else [array]


def joined(arrays: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    """Join the arrays of all devices; the array of a single device is returned unchanged."""
    return np.stack(arrays) if len(arrays) > 1 else arrays[0]


def join_bytes(parts: Sequence[bytes], binding: Binding) -> bytes:
    """Join the bytes of each device's array into the bytes of one array; see `of_devices`."""
    arrays = [from_bytes(np.frombuffer(part, np.uint8), binding) for part in parts]
    return to_bytes(joined(arrays), of_devices(binding, len(parts))).tobytes()


def _packed(flat: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    if 8 % bits:
        raise ArgumentError(f"elements of {bits} bits cannot be packed")
    per_byte = 8 // bits
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
    padded[: flat.size] = flat & ((1 << bits) - 1)
    parts = padded.reshape(-1, per_byte) << (bits * np.arange(per_byte, dtype=np.uint8))
    packed: npt.NDArray[np.uint8] = np.bitwise_or.reduce(parts, axis=1).astype(np.uint8)
    return packed


def _unpacked(data: npt.NDArray[np.uint8], bits: int, count: int) -> npt.NDArray[np.uint8]:
    shifts = bits * np.arange(8 // bits, dtype=np.uint8)
    return ((data[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)


Array = npt.NDArray[np.generic]
_POISON = 0xFF  # NaN in every floating-point format


_INCREASE = re.compile(r"setmaxnreg\.inc\S*\s+(\d+)")
_MOST_REGISTERS = 255


def _registers(resources: KernelResources, step: Launch, ptx: str) -> int:
    """Return the initial number of registers per thread, 0 if it never changes.

    ptxas gives a kernel as many registers as `setmaxnreg.inc` requests, or as its number of threads
    allows. If a kernel has fewer, ptxas has dropped its `setmaxnreg` instructions: ptxas 13 does so
    on sm_120a if they request 256.
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
        """Run the plan on the inputs of each device, and return each device's outputs.

        Raises:
            ArgumentError: the numbers of devices or arrays, the dtypes, or the shapes differ from
                the plan's.
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
                    step.run([buffer.data.data for buffer in buffers])
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
            region.device = device
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
        room, capacity = (None, "") if resources is None else self._room(step, resources)
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
                    capacity=capacity,
                    registers=registers,
                )
            )
        self.machine.run(launches)
        self.machine.memory.unmap_parts()

    def _room(self, step: Launch, resources: KernelResources) -> tuple[int, str]:
        """Return how many clusters run on the artifact's GPU at once, and text that explains it."""
        target = self.artifact.target
        count, each = target.sm_count, blocks_per_sm(step, resources, target)
        blocks = "1 block" if each == 1 else f"{each} blocks"
        reason = f"{target.name}: {count} multiprocessors x {blocks}"
        return max(1, count * each // math.prod(step.cluster or (1,))), reason

    def ptx_of(self, step: Launch) -> str:
        """Return the PTX that a launch runs.

        Raises:
            UnsupportedError: the kernel has no PTX.
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
                address = self._peers(step.peer_table, device)
            data += address.to_bytes(8, "little")
        return bytes(data)

    def _array_address(self, array: Pointer, device: int, table: PeerTable | None) -> int:
        """Return an address for an array, mapped so that accesses cannot reach other arrays.

        A kernel with a table of peers gets the array's own address instead, because it compares
        this address with addresses in the table.
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

    def _peers(self, table: PeerTable | None, device: int) -> int:
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
