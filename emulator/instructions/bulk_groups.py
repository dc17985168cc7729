"""Common parts of bulk copies: their groups, and the deferred read of their source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pallasc.emulator.instructions.builder import refusal
from pallasc.emulator.machine.block import Asynchronous, Block
from pallasc.emulator.machine.memory import Fault, Region
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.ptx.syntax import Immediate, Instruction


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that lanes committed together."""

    mask: np.ndarray  # bool[32]
    operations: tuple[Asynchronous, ...]


def commit(w: Warp, place: int) -> int:
    """`cp.async.bulk.commit_group`: put the operations issued by the active lanes into a group."""
    mine = tuple(o for o in w.bulk_open if w.mask[o.lane])
    w.bulk_open = [o for o in w.bulk_open if o not in mine]
    w.bulk_groups.append(Group(w.mask, mine))
    return place + 1


def wait(instruction: Instruction, *, reads_only: bool) -> Step:
    """`cp.async.bulk.wait_group`: all groups but the last ones are complete, or have been read."""
    (count,) = instruction.operands
    if not isinstance(count, Immediate):
        raise refusal(instruction)
    left = count.bits

    def run(w: Warp, place: int) -> int:
        groups: list[Group] = [g for g in w.bulk_groups if (g.mask & w.mask).any()]
        done = groups[: len(groups) - left] if left else groups
        for group in done:
            for operation in group.operations:
                if reads_only and operation.read is not None:
                    operation.read()
                else:
                    w.block.machine.finish(operation)
            if not reads_only:
                w.bulk_groups.remove(group)
        observer = w.block.machine.observer
        if observer is not None:
            operations = [operation for group in done for operation in group.operations]
            observer.waited(w, place, operations, reads_only=reads_only)
        return place + 1

    return run


def announce(w: Warp, place: int, operation: Asynchronous) -> None:
    """Notify the observer that an operation was issued."""
    observer = w.block.machine.observer
    if observer is not None:
        observer.issued(w, place, operation)


def put(shared: Region, offset: int, data: np.ndarray) -> None:
    """Write bytes to shared memory.

    Raises:
        Fault: they are out of bounds.
    """
    if offset < 0 or offset + data.size > shared.size:
        raise Fault(
            "out-of-bounds",
            f"a write of {data.size} bytes at offset {offset} of shared memory, "
            f"which has {shared.size} bytes",
        )
    shared.data[offset : offset + data.size] = data


def instruction_at(w: Warp, place: int) -> Instruction:
    """Return the instruction at a place in the kernel that a warp runs."""
    instruction: Instruction = w.block.launch.program.kernel.instructions[place]
    return instruction


def add_to_group(w: Warp, place: int, operation: Asynchronous) -> None:
    """Issue an operation that is later committed to a group."""
    announce(w, place, operation)
    if w.block.machine.policy.eagerness >= 1:
        w.block.machine.finish(operation)
    w.bulk_open.append(operation)


def store_operation(
    w: Warp,
    place: int,
    lane: int,
    block: Block,
    offset: int,
    size: int,
    write: Callable[[np.ndarray], None],
) -> Asynchronous:
    """Return a copy out of shared memory; a wait for reads makes it read its source."""
    kept: list[np.ndarray] = []

    def read() -> None:
        if not kept:
            if offset < 0 or offset + size > block.shared.size:
                raise Fault(
                    "out-of-bounds",
                    f"an asynchronous copy of {size} bytes at offset {offset} of shared memory, "
                    f"which has {block.shared.size} bytes",
                )
            kept.append(block.shared.data[offset : offset + size].copy())

    def complete() -> None:
        read()
        write(kept[0])

    operation = Asynchronous(
        complete, "a bulk store", instruction_at(w, place), w.actor, int(lane), read=read
    )
    operation.reads = [(block.shared, offset, size)]
    return operation
