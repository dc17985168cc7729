"""`multimem`: addresses that refer to memory of several devices (PTX ISA 9.0, 9.7.9.14)."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from pallasc.emulator.instructions.builder import Builder, dtype_of, refusal, storage_of
from pallasc.emulator.instructions.memory import lanes
from pallasc.emulator.machine.memory import GlobalMemory, Region
from pallasc.emulator.machine.waits import MemoryWait, Words
from pallasc.emulator.machine.warp import LANES, YIELDED, Step, Warp
from pallasc.emulator.numbers.atomics import find as find_atomic
from pallasc.emulator.ptx.syntax import Instruction

_ORDERS = {"relaxed", "release", "acquire", "acq_rel", "weak", "cta", "cluster", "gpu", "sys"}
_PACKED: dict[str, np.dtype[np.generic]] = {
    "f16x2": np.dtype("f2"),
    "bf16x2": np.dtype(ml_dtypes.bfloat16),
}
_FLOATS: dict[str, np.dtype[np.generic]] = {"f32": np.dtype("f4"), "f64": np.dtype("f8")}
_REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def build(instruction: Instruction, builder: Builder) -> Step:
    """`multimem.st`, `multimem.red` and `multimem.ld_reduce`."""
    kind, *parts = instruction.parts[1:]
    known = {"st": _st, "red": _red, "ld_reduce": _ld_reduce}
    rest = [part for part in parts if part not in _ORDERS | {"global"}]
    if kind not in known:
        raise refusal(instruction)
    return known[kind](instruction, builder, rest)


def _elements(name: str) -> tuple[np.dtype[np.generic], np.dtype[np.generic]]:
    """Return the dtype of a register of this type, and the dtype of its elements."""
    if name in _PACKED:
        return np.dtype("u4"), _PACKED[name]
    words = storage_of(dtype_of(name))
    return words, _FLOATS.get(name) or dtype_of(name)


def _view(memory: GlobalMemory, address: int, size: int) -> np.ndarray:
    region, offset = memory.find(address, size)
    return region.data[offset:][:size]


def _tell(
    w: Warp, place: int, addresses: np.ndarray, size: int, observe: Callable[..., None]
) -> None:
    """Notify the observer of an access to the memory of each device."""
    memory: GlobalMemory = w.block.machine.memory
    reached: dict[int, tuple[Region, np.ndarray, np.ndarray]] = {}
    for lane in lanes(w):
        for member in memory.members(int(addresses[lane])):
            region, offset = memory.find(member, size)
            none = (region, np.zeros(LANES, np.int64), np.zeros(LANES, np.bool_))
            _, offsets, mask = reached.setdefault(region.base, none)
            offsets[lane], mask[lane] = offset, True
    for region, offsets, mask in reached.values():
        observe(w, place, region, offsets, mask, size)


def _held(memory: GlobalMemory, address: int, size: int) -> Words:
    region, offset = memory.find(address, size)
    index = np.arange(offset, offset + size)
    return Words(region, region.data, index, region.data[index])


def _st(instruction: Instruction, builder: Builder, parts: list[str]) -> Step:
    target, source = instruction.operands
    operands = builder.elements(source)
    words, _ = _elements(parts[-1])
    if len(parts) != (2 if len(operands) > 1 else 1):
        raise refusal(instruction)
    address = builder.address(target)
    reads = [builder.read(operand, words) for operand in operands]

    def run(w: Warp, place: int) -> int:
        memory: GlobalMemory = w.block.machine.memory
        addresses, values = address(w), np.stack([read(w) for read in reads], axis=1)
        observer = w.block.machine.observer
        if observer is not None:
            _tell(w, place, addresses, words.itemsize * len(reads), observer.write)
        for lane in lanes(w):
            data = np.ascontiguousarray(values[lane]).view(np.uint8)
            for member in memory.members(int(addresses[lane])):
                _view(memory, member, data.size)[:] = data
        if observer is not None:
            observer.wrote(w)
        w.block.machine.changed()
        return place + 1

    return run


def _red(instruction: Instruction, builder: Builder, parts: list[str]) -> Step:
    if len(parts) != 2:
        raise refusal(instruction)
    change = find_atomic(*parts)
    target, source = instruction.operands
    address, read = builder.address(target), builder.read(source, change.dtype)

    def run(w: Warp, place: int) -> int:
        memory: GlobalMemory = w.block.machine.memory
        addresses, values = address(w), read(w)
        observer = w.block.machine.observer
        if observer is not None:
            _tell(w, place, addresses, change.dtype.itemsize, observer.atomic)
        for lane in lanes(w):
            for member in memory.members(int(addresses[lane])):
                held = _view(memory, member, change.dtype.itemsize).view(change.dtype)
                held[0] = change.apply(held[0], values[lane])
        w.block.machine.changed()
        w.split.place = place + 1
        return YIELDED

    return run


def _ld_reduce(instruction: Instruction, builder: Builder, parts: list[str]) -> Step:
    operation, *rest = parts
    wide = "acc::f32" in rest
    rest = [part for part in rest if part != "acc::f32"]
    target, source = instruction.operands
    operands = builder.elements(target)
    reduce = _REDUCTIONS.get(operation)
    if reduce is None or len(rest) != (2 if len(operands) > 1 else 1):
        raise refusal(instruction)
    words, elements = _elements(rest[-1])
    size = words.itemsize * len(operands)
    address = builder.address(source)
    writes = [builder.write(operand, words) for operand in operands]

    def run(w: Warp, place: int) -> int:
        memory: GlobalMemory = w.block.machine.memory
        addresses = address(w)
        observer = w.block.machine.observer
        if observer is not None:
            _tell(w, place, addresses, size, observer.read)
        result = np.zeros((LANES, size), np.uint8)
        read = []
        for lane in lanes(w):
            members = memory.members(int(addresses[lane]))
            read += [_held(memory, member, size) for member in members]
            found = [_view(memory, member, size).view(elements) for member in members]
            total = found[0].astype(np.float32) if wide else found[0]
            with np.errstate(all="ignore"):
                for other in found[1:]:
                    total = reduce(total, other.astype(total.dtype))
            result[lane] = np.ascontiguousarray(total.astype(elements)).view(np.uint8)
        values = result.view(words)
        for number, write in enumerate(writes):
            write(w, np.ascontiguousarray(values[:, number]))
        w.split.place = place + 1
        w.split.waits = MemoryWait(place, read)
        return YIELDED

    return run
