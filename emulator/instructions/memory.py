"""Loads, stores and atomic operations of lanes (PTX ISA 9.0, 9.7.9.8 to 9.7.9.12, 9.7.13).

A `multimem` address refers to memory of several devices (9.7.9.14). A kernel can call two functions
that CUDA provides: `vprintf` and `__assertfail`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pallasc.emulator.instructions.builder import (
    Builder,
    Read,
    Write,
    dtype_of,
    refusal,
    storage_of,
)
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.memory import (
    LOCAL,
    OFFSET_MASK,
    PARAMETERS,
    RANK_SHIFT,
    SHARED,
    Addresses,
    Fault,
    GlobalMemory,
    Region,
    load,
    store,
)
from pallasc.emulator.machine.warp import LANES, YIELDED, MemoryWait, Step, Warp, Words
from pallasc.emulator.numbers.rounding import DTYPES, PACKED, UFUNCS
from pallasc.emulator.numbers.table import find_atomic
from pallasc.emulator.ptx.syntax import Address, Arguments, Instruction, Symbol, register_numbers

_SPACES = ("global", "shared", "local", "param", "const")
_AGAIN = {"volatile", "relaxed", "acquire", "acq_rel"}  # kernels may loop on such a load

Access = tuple[Region, Addresses, npt.NDArray[np.bool_] | None]


def places(w: Warp, space: str, addresses: Addresses, size: int) -> Iterator[Access]:
    """Yield each region that active lanes access, the offsets in it, and the mask of its lanes.

    The mask is None if all 32 lanes access the same region.

    Raises:
        Fault: an address is misaligned or out of bounds.
    """
    mask = w.mask
    used = addresses if w.full else addresses[mask]
    if not used.size:
        return
    if (used & (size - 1)).any():
        bad = int(used[(used & (size - 1)) != 0][0])
        raise Fault("misaligned", f"an access of {size} bytes at the misaligned address {bad:#x}")
    if space == "":
        space = _generic(used)
        addresses = addresses - SHARED if space == "shared" else addresses
    if space == "shared":
        yield from _shared(w, addresses, mask, size)
    elif space == "local":
        yield from _local(w, addresses, mask, size)
    elif space == "param":
        yield _within(w.block.launch.parameters, addresses - PARAMETERS, w.full, mask, size)
    else:
        yield from _global(w, addresses, mask, size)


def _within(
    region: Region, offsets: Addresses, full: bool, mask: npt.NDArray[np.bool_], size: int
) -> Access:
    used = offsets if full else offsets[mask]
    least, most = int(used.min()), int(used.max())
    if least < 0 or most + size > region.size:
        bad = least if least < 0 else most
        raise Fault(
            "out-of-bounds",
            f"an access of {size} bytes at offset {bad} of {region.label}, "
            f"which has {region.size} bytes",
        )
    return region, offsets, None if full else mask


def _global(
    w: Warp, addresses: Addresses, mask: npt.NDArray[np.bool_], size: int
) -> Iterator[Access]:
    left = mask
    full = w.full
    while left.any():
        first = int(addresses[np.argmax(left)])
        origin, region, start, end = w.block.machine.memory.window(first, size)
        offsets = addresses - origin
        inside = (offsets >= start) & (offsets + size <= end)
        if inside.all() and full:
            yield region, offsets, None
            return
        yield region, offsets, inside & left
        left = left & ~inside
        full = False


def _shared(
    w: Warp, addresses: Addresses, mask: npt.NDArray[np.bool_], size: int
) -> Iterator[Access]:
    ranks = addresses >> RANK_SHIFT
    used = ranks if w.full else ranks[mask]
    first = int(used[0])
    if (used == first).all():
        block = w.block.cluster.blocks_by_rank(first)
        yield _within(block.shared, addresses & OFFSET_MASK, w.full, mask, size)
        return
    for rank in np.unique(used):
        block = w.block.cluster.blocks_by_rank(int(rank))
        yield _within(block.shared, addresses & OFFSET_MASK, False, mask & (ranks == rank), size)


def _local(
    w: Warp, addresses: Addresses, mask: npt.NDArray[np.bool_], size: int
) -> Iterator[Access]:
    region = local_memory(w)
    inside = addresses & (LOCAL - 1) if int(addresses[np.argmax(mask)]) >= LOCAL else addresses
    length = region.size // LANES
    _within(Region(0, length, "local memory"), inside, w.full, mask, size)
    yield region, inside + np.arange(LANES) * length, None if w.full else mask


def local_memory(w: Warp) -> Region:
    """Return the local memory of a warp, lane after lane."""
    if w.index not in w.block.local:
        size = w.block.launch.program.local_bytes
        w.block.local[w.index] = Region(LOCAL, size * LANES, "local memory")
    region: Region = w.block.local[w.index]
    return region


def _generic(addresses: Addresses) -> str:
    """Return the space that generic addresses are in.

    Raises:
        Fault: the addresses are in several spaces.
    """
    bounds = {"shared": SHARED, "local": LOCAL, "param": PARAMETERS, "global": -(1 << 63)}
    least, most = int(addresses.min()), int(addresses.max())
    space = next(name for name, start in bounds.items() if most >= start)
    if least < bounds[space]:
        raise Fault("out-of-bounds", "the lanes of one instruction access different state spaces")
    return space


def shared_block(w: Warp, addresses: Addresses) -> tuple[Block, Addresses]:
    """Return the block whose shared memory all lanes address, and the offsets in it.

    Raises:
        Fault: lanes address several blocks.
    """
    if int(addresses[0]) >= SHARED:
        addresses = addresses - SHARED
    ranks = addresses >> RANK_SHIFT
    if (ranks != ranks[0]).any():
        raise Fault(
            "out-of-bounds",
            "the lanes of one instruction access the shared memory of several blocks",
        )
    block: Block = w.block.cluster.blocks_by_rank(int(ranks[0]))
    return block, addresses & OFFSET_MASK


def lanes(w: Warp) -> list[int]:
    """Return the numbers of the active lanes."""
    found: list[int] = np.flatnonzero(w.mask).tolist()
    return found


def _space(instruction: Instruction) -> str:
    """Return the memory space, "" for a generic address."""
    plain = (part.partition("::")[0] for part in instruction.parts[1:])
    return next((part for part in plain if part in _SPACES), "")


def ld(instruction: Instruction, builder: Builder) -> Step:
    """`ld`, also of vectors."""
    space, type_name = _space(instruction), instruction.parts[-1]
    target, source = instruction.operands
    address = builder.address(source)
    if space == "param" and isinstance(source, Address) and _is_argument(source, builder):
        space = "local"
    again = bool(_AGAIN & set(instruction.parts)) and space != "param"
    if type_name == "b128":
        return _ld_wide(instruction, space, address)
    kind = dtype_of(type_name)
    writes = [builder.write(element, kind) for element in builder.elements(target)]
    return _ld(space, kind, writes, address, again)


def _is_argument(source: Address, builder: Builder) -> bool:
    """Return True if a .param address is an argument of a call, not a parameter of the kernel."""
    return isinstance(source.base, Symbol) and source.base.name not in {
        p.name for p in builder.kernel.parameters
    }


def _ld(
    space: str, kind: np.dtype[np.generic], writes: list[Write], address: Read, again: bool
) -> Step:
    width, count = kind.itemsize, len(writes)
    size = width * count

    def run(w: Warp, place: int) -> int:
        addresses = address(w)
        values = None
        read = []
        for region, offsets, mask in places(w, space, addresses, size):
            w.observer.accessed(w, place, "read", region, offsets, mask, size)
            words = load(region, offsets, mask, width, count)
            values = words if values is None or mask is None else _merged(mask, words, values)
            if again:
                read.append(_held(region, offsets, mask, width, count))
        for write, value in zip(writes, values or (), strict=False):
            write(w, value.view(kind))
        if again:
            w.split.place = place + 1
            w.split.waits = MemoryWait(place, read)
            return YIELDED
        return place + 1

    return run


def _held(
    region: Region, offsets: Addresses, mask: npt.NDArray[np.bool_] | None, width: int, count: int
) -> Words:
    """Return the words that lanes have read, with their contents."""
    used = np.unique(offsets if mask is None else offsets[mask]) // width
    index = used if count == 1 else (used[:, None] + np.arange(count)).ravel()
    view = region.views[width]
    return Words(region, view, index, view[index])


def _merged(mask: np.ndarray, new: list[np.ndarray], old: list[np.ndarray]) -> list[np.ndarray]:
    return [np.where(mask, n, o) for n, o in zip(new, old, strict=True)]


def _ld_wide(instruction: Instruction, space: str, address: Read) -> Step:
    """Load into a 128-bit register."""
    (number,) = register_numbers(instruction.operands[0])

    def run(w: Warp, place: int) -> int:
        for region, offsets, mask in places(w, space, address(w), 16):
            w.observer.accessed(w, place, "read", region, offsets, mask, 16)
            low, high = load(region, offsets, mask, 8, 2)
            value = np.stack([low, high], axis=1)
            old = w.registers[number]
            w.registers[number] = value if mask is None else np.where(mask[:, None], value, old)
        return place + 1

    return run


def st(instruction: Instruction, builder: Builder) -> Step:
    """`st`, also of vectors; `st.async` is in `barriers`."""
    space, targets = _space(instruction), _targets(instruction)
    target, source = instruction.operands
    if space == "param":
        space = "local"  # the arguments of a call are kept like local variables
    kind, _ = _elements(instruction.parts[-1])
    address = builder.address(target)
    reads = [builder.read(element, kind) for element in builder.elements(source)]
    width, size = kind.itemsize, kind.itemsize * len(reads)

    def run(w: Warp, place: int) -> int:
        values = [read(w) for read in reads]
        for region, offsets, mask in targets(w, space, address(w), size):
            w.observer.accessed(w, place, "write", region, offsets, mask, size)
            store(region, offsets, mask, width, values)
            w.observer.wrote(w)
        if space in ("global", ""):
            w.block.machine.changed()
        return place + 1

    return run


def atomic(instruction: Instruction, builder: Builder) -> Step:
    """`atom`, and `red` (without a result): the lanes execute one after the other, in order."""
    space, returns = _space(instruction), instruction.parts[0] == "atom"
    targets = _targets(instruction)
    *_, operation, type_name = (part for part in instruction.parts if part != "noftz")
    change = find_atomic(operation, type_name)
    in_global = find_atomic(operation, type_name, flush=instruction.parts[0] != "multimem")
    operands = instruction.operands[1:] if returns else instruction.operands
    address = builder.address(operands[0])
    kind = change.dtype
    reads = [builder.read(operand, kind) for operand in operands[1:]]
    write = builder.write(instruction.operands[0], kind) if returns else None
    words = storage_of(kind)
    width = words.itemsize

    def run(w: Warp, place: int) -> int:
        machine = w.block.machine
        values = [read(w) for read in reads]
        result = np.zeros(LANES, kind)
        read = []
        for region, offsets, mask in targets(w, space, address(w), width):
            w.observer.accessed(w, place, "atomic", region, offsets, mask, width)
            view = region.views[width].view(kind)
            index = offsets // width
            apply = (change if region.base >= SHARED else in_global).apply
            for lane in np.flatnonzero(w.mask if mask is None else mask):
                old = view[index[lane]]
                new = apply(old, *[value[lane] for value in values])
                result[lane] = old
                if new.tobytes() != old.tobytes():
                    view[index[lane]] = new
                    machine.changed()
            read.append(_held(region, offsets, mask, width, 1))
        if write is not None:
            write(w, result)
        w.split.place = place + 1
        w.split.waits = MemoryWait(place, read)
        return YIELDED

    return run


def multimem(instruction: Instruction, builder: Builder) -> Step:
    """`multimem.st`, `multimem.red` and `multimem.ld_reduce`."""
    known = {"st": st, "red": atomic, "ld_reduce": _ld_reduce}
    return known[instruction.parts[1]](instruction, builder)


def _targets(instruction: Instruction) -> Callable[[Warp, str, Addresses, int], Iterator[Access]]:
    return _on_devices if instruction.parts[0] == "multimem" else places


def _on_devices(w: Warp, space: str, addresses: Addresses, size: int) -> Iterator[Access]:
    """Yield the accesses at multicast addresses, for one device after the other."""
    for own in _members(w, addresses):
        yield from places(w, space, own, size)


def _members(w: Warp, addresses: Addresses) -> Iterator[Addresses]:
    """Yield the addresses that multicast addresses refer to, for one device after the other."""
    memory: GlobalMemory = w.block.machine.memory
    active = lanes(w)
    for members in zip(*(memory.members(int(addresses[n])) for n in active), strict=True):
        own = addresses.copy()
        own[active] = members
        yield own


def _elements(name: str) -> tuple[np.dtype[np.generic], np.dtype[np.generic]]:
    """Return the dtype of a register of a PTX type, and the dtype of the elements in it."""
    return PACKED[name] if name in PACKED else (storage_of(DTYPES[name]), DTYPES[name])


def _ld_reduce(instruction: Instruction, builder: Builder) -> Step:
    wide = "acc::f32" in instruction.parts
    target, source = instruction.operands
    combine = next(UFUNCS[part] for part in instruction.parts if part in UFUNCS)
    words, elements = _elements(instruction.parts[-1])
    address = builder.address(source)
    writes = [builder.write(operand, words) for operand in builder.elements(target)]
    width, count = words.itemsize, len(writes)

    def run(w: Warp, place: int) -> int:
        held, found = [], []
        for own in _members(w, address(w)):
            loaded = np.zeros((count, LANES), words)
            for region, offsets, mask in places(w, "global", own, width * count):
                w.observer.accessed(w, place, "read", region, offsets, mask, width * count)
                held.append(_held(region, offsets, mask, width, count))
                loaded |= load(region, offsets, mask, width, count)
            found.append(loaded.view(elements).astype(np.float32 if wide else elements))
        with np.errstate(all="ignore"):
            total = functools.reduce(combine, found)
        for write, value in zip(writes, total.astype(elements).view(words), strict=True):
            write(w, value)
        w.split.place = place + 1
        w.split.waits = MemoryWait(place, held)
        return YIELDED

    return run


_FORMAT = re.compile(
    r"%[-+ #0]*\d*(?:\.\d+)?(?P<length>hh|h|ll|l|z|t)?(?P<kind>[diouxXeEfFgGcsp%])"
)
_PRINTED_FLOATS = "eEfFgG"


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
        size = 8 if kind in _PRINTED_FLOATS + "sp" or length in ("l", "ll", "z", "t") else 4
        position = -(-position // size) * size
        data = _local_bytes(w, lane, position, size)
        position += size
        plain = match.group().replace(length, "") if length else match.group()
        if kind in _PRINTED_FLOATS:
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
