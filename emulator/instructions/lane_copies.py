"""`cp.async`: copies that each lane issues, commits and waits for (PTX ISA 9.0, 9.7.9.25.3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pallasc.emulator.instructions.builder import PREDICATE, Builder, Read, refusal
from pallasc.emulator.instructions.bulk_groups import (
    announce,
    instruction_at,
)
from pallasc.emulator.instructions.memory import places
from pallasc.emulator.machine.block import Asynchronous
from pallasc.emulator.machine.memory import load, store
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.ptx.syntax import Immediate, Instruction, Register

_U4 = np.dtype("u4")


def lane_copies(instruction: Instruction, builder: Builder, parts: Sequence[str]) -> Step:
    """`cp.async.{ca,cg}`, `.commit_group`, `.wait_group` and `.wait_all`."""
    if parts[0] == "commit_group":
        return _commit_lanes
    if parts[0] in ("wait_group", "wait_all"):
        (count,) = instruction.operands or (Immediate(0),)
        if not isinstance(count, Immediate):
            raise refusal(instruction)
        return _wait_lanes(count.bits, everything=parts[0] == "wait_all")
    if parts[0] not in ("ca", "cg") or [p.split("::")[0] for p in parts[1:3]] != [
        "shared",
        "global",
    ]:
        raise refusal(instruction)
    target, source, size, *more = instruction.operands
    if (
        not isinstance(size, Immediate)
        or len(more) > 1
        or set(parts[3:]) - {"L2::64B", "L2::128B", "L2::256B"}
    ):
        raise refusal(instruction)
    to, start = builder.address(target), builder.address(source)
    length = builder.read(more[0] if more else size, _U4)
    if more and isinstance(more[0], Register) and more[0].type == "pred":
        length = _length_unless(builder.read(more[0], PREDICATE), size.bits)
    return _lane_copy(to, start, length, size.bits)


def _length_unless(ignored: Read, size: int) -> Read:
    return lambda w: np.where(ignored(w), 0, size).astype(_U4)


def _lane_copy(to: Read, start: Read, length: Read, size: int) -> Step:
    """Copy `size` bytes: the first `length` are read from the source, the rest are zeros."""
    width = min(size, 8)
    count = size // width

    def run(w: Warp, place: int) -> int:
        targets = list(places(w, "shared", to(w), size))
        begin, lengths = start(w), np.minimum(length(w).astype(np.int64), size)
        whole = w.mask & (lengths == size)
        parts = np.flatnonzero(w.mask & (lengths > 0) & (lengths < size)).tolist()
        memory = w.block.machine.memory

        def complete() -> None:
            data = np.zeros((len(begin), size), np.uint8)
            values = data.view(f"u{width}")
            mask, full = w.mask, w.full
            w.mask, w.full = whole, bool(whole.all())
            for region, offsets, some in places(w, "global", begin, size):
                values[:] |= np.stack(load(region, offsets, some, width, count), axis=1)
            w.mask, w.full = mask, full
            for lane in parts:
                read = int(lengths[lane])
                region, offset = memory.find(int(begin[lane]), read)
                data[lane, :read] = region.data[offset:][:read]
            words = [np.ascontiguousarray(values[:, n]) for n in range(count)]
            for region, offsets, some in targets:
                store(region, offsets, some, width, words)

        operation = Asynchronous(complete, "cp.async", instruction_at(w, place), w.actor)
        if w.block.machine.observer is not None:
            operation.writes = [
                (region, offsets if some is None else offsets[some], size)
                for region, offsets, some in targets
            ]
        announce(w, place, operation)
        w.copies_open.append(operation)
        return place + 1

    return run


def _commit_lanes(w: Warp, place: int) -> int:
    w.copies.append(w.copies_open)
    w.copies_open = []
    return place + 1


def _wait_lanes(left: int, *, everything: bool) -> Step:
    def run(w: Warp, place: int) -> int:
        if everything:
            _commit_lanes(w, place)
        done = w.copies[: len(w.copies) - left] if left else list(w.copies)
        for group in done:
            for operation in group:
                w.block.machine.finish(operation)
        w.copies = w.copies[len(done) :]
        observer = w.block.machine.observer
        if observer is not None:
            observer.waited(w, place, [operation for group in done for operation in group])
        return place + 1

    return run
