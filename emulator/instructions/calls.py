"""Calls of the functions that CUDA provides to kernels: `vprintf` and `__assertfail`."""

from __future__ import annotations

import re

import numpy as np

from pallasc.emulator.instructions.builder import Builder, refusal
from pallasc.emulator.instructions.memory import local_memory
from pallasc.emulator.machine.memory import LOCAL, SHARED, Fault
from pallasc.emulator.machine.warp import LANES, Step, Warp
from pallasc.emulator.ptx.syntax import Arguments, Instruction, Symbol

_FORMAT = re.compile(
    r"%[-+ #0]*\d*(?:\.\d+)?(?P<length>hh|h|ll|l|z|t)?(?P<kind>[diouxXeEfFgGcsp%])"
)
_FLOATS = "eEfFgG"


def call(instruction: Instruction, builder: Builder) -> Step:
    """`call` of a function that the driver provides."""
    *_, function, arguments = instruction.operands
    if not isinstance(function, Symbol) or not isinstance(arguments, Arguments):
        raise refusal(instruction)
    reads = [builder.slot(a, np.dtype("u8"))[0] for a in arguments.names]
    if function.name == "vprintf":
        return _printf(reads)
    if function.name == "__assertfail":
        return _assertfail(reads)
    raise refusal(instruction, f"the function {function.name}")


def _words(w: Warp, slot: int) -> np.ndarray:
    """Return an argument of each lane, read from local memory at the address in `slot`."""
    region = local_memory(w)
    length = region.size // LANES
    at = (np.arange(LANES) * length + w.registers[slot].astype(np.int64)) // 8
    words: np.ndarray = region.views[8][at]
    return words


def _text(w: Warp, address: int) -> str:
    region, offset = w.block.machine.memory.find(address)
    data: bytes = region.data[offset : region.size].tobytes()
    return data.split(b"\0", 1)[0].decode(errors="replace")


def _assertfail(slots: list[int]) -> Step:
    def run(w: Warp, place: int) -> int:
        lane = int(np.argmax(w.mask))
        message = _text(w, int(_words(w, slots[0])[lane]))
        thread = w.index * LANES + lane
        raise Fault("assertion", f"an assertion failed in thread {thread}: {message}")

    return run


def _printf(slots: list[int]) -> Step:
    def run(w: Warp, place: int) -> int:
        formats, arguments = (_words(w, slot) for slot in slots)
        for lane in np.flatnonzero(w.mask).tolist():
            text = _text(w, int(formats[lane]))
            w.block.machine.printed.append(_formatted(w, lane, text, int(arguments[lane])))
        return place + 1

    return run


def _formatted(w: Warp, lane: int, text: str, at: int) -> str:
    """Format a line like C's printf; arguments have 4 or 8 bytes and are aligned to their size."""
    position = at

    def replace(match: re.Match[str]) -> str:
        nonlocal position
        kind, length = match["kind"], match["length"] or ""
        if kind == "%":
            return "%"
        size = 8 if kind in _FLOATS + "sp" or length in ("l", "ll", "z", "t") else 4
        position = -(-position // size) * size
        data = _local_bytes(w, lane, position, size)
        position += size
        plain = match.group().replace(length, "") if length else match.group()
        if kind in _FLOATS:
            return plain % float(np.frombuffer(data, "f8")[0])
        number = int.from_bytes(data, "little", signed=kind in "di")
        if kind == "s":
            return plain % _text(w, number)
        if kind == "p":
            return hex(number)
        return (plain.replace("u", "d")) % number

    return _FORMAT.sub(replace, text)


def _local_bytes(w: Warp, lane: int, address: int, size: int) -> bytes:
    if not LOCAL <= address < SHARED:
        raise Fault("out-of-bounds", f"printf reads {address:#x}, which is not in local memory")
    region = local_memory(w)
    start = lane * (region.size // LANES) + address - LOCAL
    return region.data[start : start + size].tobytes()
