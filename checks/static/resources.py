"""What kernels ask for against what the device has; tensor maps against the driver's rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found
from pallasc.checks.static.machine_code import LocalAccess
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.occupancy import REGISTERS_PER_SM, blocks_by_limit, registers_of_block
from pallasc.specs.artifacts.plan import Bytes, Launch, LaunchPlan, TensorMap
from pallasc.specs.artifacts.tensor_maps import ELEMENT_BYTES, broken_rule
from pallasc.specs.gpus import Target

_TENSOR_COLUMNS = 512
_MOST_LINES = 4
"""Lines that are shown with spills."""


def check_maps(plan: LaunchPlan, launch: Launch) -> Iterator[Found]:
    """Yield the tensor maps of a launch that break a rule or exceed their buffer."""
    for index, parameter in enumerate(launch.parameters):
        for offset, tensor in parameter.tensor_maps if isinstance(parameter, Bytes) else ():
            which = f"the tensor map at byte {offset} of parameter {index}"
            if (rule := broken_rule(tensor)) is not None:
                yield Found("tensor-map", f"{which}: {rule}")
            elif tensor.peers is None and tensor.interleave == 0:
                end, size = _end(tensor), plan.buffers[tensor.buffer].size
                if end > size:
                    yield Found(
                        "tensor-map", f"{which} ends at byte {end} of a buffer of {size} bytes"
                    )


def _end(tensor: TensorMap) -> int:
    element = ELEMENT_BYTES[tensor.dtype]
    steps = (element, *tensor.strides)
    last = sum((size - 1) * step for size, step in zip(tensor.dims, steps, strict=True))
    return tensor.offset + last + element


def check_memory(kernel: KernelResources, launch: Launch, target: Target) -> Iterator[Found]:
    """Yield the limits of the device that a kernel exceeds."""
    if kernel.smem_bytes > target.smem_optin_bytes:
        yield Found(
            "memory-limit",
            f"a block needs {kernel.smem_bytes} bytes of shared memory; {target.name} has "
            f"{target.smem_optin_bytes} for a block",
        )
    if (registers := registers_of_block(launch, kernel)) > REGISTERS_PER_SM:
        yield Found(
            "memory-limit",
            f"a block of {math.prod(launch.block)} threads with {kernel.registers} registers each "
            f"needs {registers} registers; a multiprocessor has {REGISTERS_PER_SM}",
        )


def check_tensor_memory(facts: Facts) -> Iterator[Found]:
    """Yield the allocations of tensor memory that fail on the device."""
    columns = 0
    for step in facts.evaluation.steps:
        if not step.instruction.opcode.startswith(("tcgen05.alloc", "tcgen05.dealloc")):
            continue
        if (count := step.operands[-1].number) is None:
            return
        if "dealloc" in step.instruction.opcode:
            columns -= count
            continue
        columns += count
        is_size = 32 <= count <= _TENSOR_COLUMNS and count & (count - 1) == 0
        if not is_size or columns > _TENSOR_COLUMNS:
            yield Found(
                "memory-limit",
                f"{columns} columns of tensor memory are allocated; there are {_TENSOR_COLUMNS}"
                if is_size
                else f"an allocation of {count} columns of tensor memory; the number must be 32, "
                f"64, 128, 256 or {_TENSOR_COLUMNS}",
                step.instruction,
            )


def check_spills(
    kernel: KernelResources,
    lines: Sequence[LocalAccess] | None,
    instructions: Sequence[Instruction],
) -> Iterator[Found]:
    """Yield what a kernel spills, at the instruction where it accesses local memory most.

    Args:
        kernel: what the assembler says of it.
        lines: the lines of its PTX that access local memory, most accesses first; None where the
            machine code does not tell.
        instructions: those of its PTX.
    """
    if not kernel.spill_bytes:
        return
    at = [(each, found) for each in lines or () if (found := _at(each.ptx_line, instructions))]
    unknown = "" if at else "; the lines are unknown"
    yield Found(
        "spills",
        f"each thread spills registers: {kernel.spill_store_bytes} bytes stored to local memory, "
        f"{kernel.spill_load_bytes} bytes loaded{unknown}",
        at[0][1] if at else None,
        tuple((_spill_text(each), instruction) for each, instruction in at[:_MOST_LINES]),
        severity="note",
    )


def _at(line: int, instructions: Sequence[Instruction]) -> Instruction | None:
    return next((each for each in instructions if each.line == line), None)


def _spill_text(access: LocalAccess) -> str:
    counts = ((access.stores, "store", "to"), (access.loads, "load", "from"))
    parts = [f"{n} {word if n == 1 else f'{word}s'} {where}" for n, word, where in counts if n]
    return f"{' and '.join(parts)} local memory"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How a launch fills a device.

    Attributes:
        blocks: of one multiprocessor.
        limit: the limiting resource: "registers", "shared memory", "threads" or "blocks".
        waves: how often all multiprocessors are filled; the last may be part of one.
    """

    blocks: int
    limit: str
    waves: float

    def __str__(self) -> str:
        blocks = "1 block" if self.blocks == 1 else f"{self.blocks} blocks"
        whole = math.ceil(self.waves)
        waves = "1 wave" if whole == 1 else f"{whole} waves"
        last = self.waves - (whole - 1)
        share = f"{last:.0%}" if last >= 0.005 else "under 1%"
        return (
            f"{blocks} per multiprocessor (limited by {self.limit}), {waves}, "
            f"{'' if whole == 1 else 'the last '}{share} full"
        )


def occupancy(kernel: KernelResources, launch: Launch, target: Target) -> Occupancy | None:
    """Return how a launch fills a device; None if a block does not fit."""
    limits = blocks_by_limit(
        launch,
        kernel,
        arch=target.arch,
        threads_per_sm=target.threads_per_sm,
        smem_per_sm_bytes=target.smem_per_sm_bytes,
    )
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    if blocks < 1:
        return None
    return Occupancy(blocks, limit, math.prod(launch.grid) / (blocks * target.sm_count))
