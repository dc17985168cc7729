"""Barriers of blocks and clusters, mbarriers, fences, and access to the memory of other blocks.

The numbers in docstrings are sections of the PTX ISA 9.0.

With `clusterlaunchcontrol` (9.7.14.18 and 9.7.14.19), a running cluster takes over the work of a
cluster that has not started. NVIDIA does not document the format of the 16-byte response; the
emulator stores the index of the other cluster's first block, and a flag for success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pallasc.emulator.instructions.builder import (
    PREDICATE,
    Builder,
    Read,
    Write,
    dtype_of,
    refusal,
    storage_of,
)
from pallasc.emulator.instructions.copies import put
from pallasc.emulator.instructions.memory import lanes as active_lanes
from pallasc.emulator.machine.block import Asynchronous, Block
from pallasc.emulator.machine.memory import OFFSET_MASK, RANK_SHIFT, SHARED, Fault
from pallasc.emulator.machine.warp import (
    BLOCKED,
    LANES,
    YIELDED,
    BarrierWait,
    ClusterWait,
    Mbarrier,
    MbarrierWait,
    Step,
    Warp,
)
from pallasc.emulator.numbers.table import find_atomic
from pallasc.emulator.ptx.syntax import Immediate, Instruction, Operand, Register, Sink

_U4 = np.dtype("u4")
_LANE_NUMBERS = np.arange(LANES)
_ALL = (1 << LANES) - 1


def one_value(w: Warp, values: np.ndarray, what: str) -> int:
    """Return a value that must be the same in all active lanes.

    Raises:
        Fault: the values differ.
    """
    used = values if w.full else values[w.mask]
    first = used[0]
    if not (used == first).all():
        raise Fault("not-uniform", f"{what} differs between lanes of the warp")
    return int(first)


def named_lanes(what: str, operand: Operand, builder: Builder) -> Callable[[Warp], bool]:
    """Return a function that returns True when all lanes in a mask have arrived (3.1)."""
    if isinstance(operand, Immediate) and operand.bits & _ALL == _ALL:
        every = np.ones(LANES, np.bool_)
        return lambda w: w.together(what, every)
    read = builder.read(operand, _U4)

    def together(w: Warp) -> bool:
        named = (one_value(w, read(w), "a mask of lanes") >> _LANE_NUMBERS & 1).astype(np.bool_)
        if (w.mask & ~named).any():
            raise Fault("lane-mask", f"a lane executes {what} with a mask that leaves the lane out")
        return w.together(what, named)

    return together


def bar(instruction: Instruction, builder: Builder) -> Step:
    """`bar.sync`, `barrier.sync` and `.arrive` of a block (9.7.13.1)."""
    parts = set(instruction.parts[1:])
    if "warp" in parts:
        together = named_lanes("bar.warp.sync", instruction.operands[0], builder)
        return lambda w, place: place + 1 if together(w) else BLOCKED
    number = builder.read(instruction.operands[0], _U4)
    count = builder.read(instruction.operands[1], _U4) if len(instruction.operands) > 1 else None
    waits = "sync" in parts
    if not waits and count is None:
        raise refusal(instruction, "without a count")

    def run(w: Warp, place: int) -> int:
        if not w.together("bar.sync"):
            return BLOCKED
        if w.split.token is not None:
            return _bar_again(w, place)
        return _bar_first(w, place, number, count, waits)

    return run


def _bar_first(w: Warp, place: int, number: Read, count: Read | None, waits: bool) -> int:
    block = w.block
    which = one_value(w, number(w), "the number of the barrier")
    if which >= len(block.named):
        raise Fault("barrier-number", f"there is no barrier {which}; a block has 16")
    barrier = block.named[which]
    expected = block.live_threads if count is None else one_value(w, count(w), "the count")
    if expected % LANES or not expected:
        raise Fault(
            "barrier-count", f"a barrier for {expected} threads, which is not a multiple of {LANES}"
        )
    generation = barrier.generation
    w.observer.arrived(w, place, ("bar", which, generation))
    if barrier.arrive(LANES, expected):
        block.machine.changed()
    if not waits:
        return place + 1
    w.split.token = (which, generation, count is None)
    return _bar_again(w, place)


def _bar_again(w: Warp, place: int) -> int:
    which, generation, everyone = w.split.token
    barrier = w.block.named[which]
    if barrier.generation == generation and everyone and barrier.threads >= w.block.live_threads:
        barrier.generation += 1
        barrier.threads = 0
        w.block.machine.changed()
    if barrier.generation == generation:
        w.split.waits = BarrierWait(w.block, which, generation, everyone)
        return BLOCKED
    w.split.token = None
    w.observer.passed(w, place, ("bar", which, generation))
    return place + 1


def barrier(instruction: Instruction, builder: Builder) -> Step:
    """`barrier.cluster.arrive` and `.wait` (9.7.13.3); without `.cluster` it is `bar`."""
    parts = instruction.parts[1:]
    if parts[0] != "cluster":
        return bar(instruction, builder)
    if parts[1] == "arrive":
        return _cluster_arrive("relaxed" not in parts)
    return _cluster_wait


def _cluster_arrive(releases: bool) -> Step:
    def run(w: Warp, place: int) -> int:
        if not w.together("barrier.cluster.arrive"):
            return BLOCKED
        cluster = w.block.cluster
        w.observer.arrived(w, place, ("cluster", cluster.generation), releases=releases)
        w.cluster_phase = cluster.arrive(w)
        return place + 1

    return run


def _cluster_wait(w: Warp, place: int) -> int:
    if not w.together("barrier.cluster.wait"):
        return BLOCKED
    cluster = w.block.cluster
    if w.cluster_phase is None:
        raise Fault("cluster-wait", "barrier.cluster.wait without an arrive before it")
    if cluster.generation == w.cluster_phase:
        cluster.check_arrivals()
    if cluster.generation == w.cluster_phase:
        w.split.waits = ClusterWait(cluster, cluster.generation)
        return BLOCKED
    w.observer.passed(w, place, ("cluster", w.cluster_phase))
    w.cluster_phase = None
    return place + 1


# mbarrier.


def mbarrier(instruction: Instruction, builder: Builder) -> Step:
    """`mbarrier.*` (9.7.13.15)."""
    build = {
        "init": _init,
        "inval": _inval,
        "arrive": _arrive,
        "expect_tx": _transaction,
        "complete_tx": _transaction,
        "try_wait": _wait,
        "test_wait": _wait,
    }[instruction.parts[1]]
    return build(instruction, builder)


def _mbarriers(w: Warp, address: Read) -> Iterator[tuple[int, Block, int, np.ndarray]]:
    """Yield address, block, offset and lanes of each mbarrier that the active lanes address."""
    where = address(w)
    for each in np.unique(where if w.full else where[w.mask]).tolist():
        block = w.block.cluster.blocks_by_rank(each >> RANK_SHIFT)
        yield each, block, each & OFFSET_MASK, w.mask & (where == each)


def _init(instruction: Instruction, builder: Builder) -> Step:
    address = builder.address(instruction.operands[0])
    count = builder.read(instruction.operands[1], _U4)

    def run(w: Warp, place: int) -> int:
        values = count(w)
        for _, block, offset, lanes in _mbarriers(w, address):
            expected = int(values[lanes][0])
            if (values[lanes] != expected).any():
                raise Fault("not-uniform", "lanes initialize an mbarrier with different counts")
            if not 1 <= expected < 1 << 20:
                raise Fault("mbarrier-count", f"an mbarrier cannot expect {expected} arrivals")
            if offset % 8 or offset + 8 > block.shared.size:
                raise Fault(
                    "misaligned", f"mbarrier.init at the invalid shared address {offset:#x}"
                )
            w.observer.initialised(w, place, block, offset)
            block.mbarriers[offset] = Mbarrier(expected, expected)
        return place + 1

    return run


def _inval(instruction: Instruction, builder: Builder) -> Step:
    address = builder.address(instruction.operands[0])

    def run(w: Warp, place: int) -> int:
        for _, block, offset, _ in _mbarriers(w, address):
            if block.mbarriers.pop(offset, None) is None:
                raise Fault(
                    "no-mbarrier", f"no mbarrier is initialized at shared address {offset:#x}"
                )
        return place + 1

    return run


def _arrive(instruction: Instruction, builder: Builder) -> Step:
    """`mbarrier.arrive` of each active lane; with `.expect_tx`, it first adds expected bytes."""
    announces = "expect_tx" in instruction.parts
    target, source, *more = instruction.operands
    address = builder.address(source)
    state = None if isinstance(target, Sink) else builder.write(target, np.dtype("u8"))
    count = builder.read(more[0] if more else Immediate(1), _U4)
    completes = "noComplete" not in instruction.parts

    def run(w: Warp, place: int) -> int:
        values = count(w)
        machine = w.block.machine
        for where, block, offset, lanes in _mbarriers(w, address):
            found = w.block.mbarrier(where)
            w.observer.arrived(w, place, ("mbarrier", block, offset))
            total = int(values[lanes].sum(dtype=np.int64))
            _arrivals(found, total, int(lanes.sum()), announces, completes)
        machine.changed()
        if state is not None:
            state(w, np.full(LANES, found.phase, "u8"))
        return place + 1

    return run


def _arrivals(found: Mbarrier, total: int, lanes: int, announces: bool, completes: bool) -> None:
    phase = found.phase
    if announces:
        found.expect(total)
        found.arrive(lanes)
    else:
        found.arrive(total)
    if not completes and found.phase != phase:
        raise Fault(
            "mbarrier-count", "an arrival with .noComplete completes the phase of its mbarrier"
        )


def _transaction(instruction: Instruction, builder: Builder) -> Step:
    """`mbarrier.expect_tx` and `.complete_tx`; neither orders memory accesses (9.7.13.15)."""
    completes = instruction.parts[1] == "complete_tx"
    address = builder.address(instruction.operands[0])
    count = builder.read(instruction.operands[1], _U4)

    def run(w: Warp, place: int) -> int:
        values = count(w)
        machine = w.block.machine
        for where, block, offset, lanes in _mbarriers(w, address):
            found, total = w.block.mbarrier(where), int(values[lanes].sum(dtype=np.int64))
            if not completes:
                found.expect(total)
                continue
            w.observer.arrived(w, place, ("mbarrier", block, offset), releases=False)
            found.complete(total)
            machine.changed()
        return place + 1

    return run


def _wait(instruction: Instruction, builder: Builder) -> Step:
    """`mbarrier.try_wait` blocks until the phase has completed; `.test_wait` returns at once.

    The manual allows `try_wait` to return at any time. Here, it returns at once if no instruction
    reads its result, or if the active lanes wait for different mbarriers or phases. Lanes in a loop
    can do this, because neither instruction is `.aligned`.
    """
    target, source, parity_operand, *_ = instruction.operands
    decides = builder.is_read(target)
    tries = instruction.parts[1] == "try_wait" and decides
    write = builder.write(target, PREDICATE)
    address, parity = builder.address(source), builder.read(parity_operand, _U4)

    def run(w: Warp, place: int) -> int:
        places, parities = address(w), parity(w) & 1
        lane = int(w.mask.argmax())
        where, which = int(places[lane]), int(parities[lane])
        if not ((places == where) & (parities == which))[w.mask].all():
            return apart(w, place, places, parities)
        found = w.block.mbarrier(where)
        passed = found.has_passed(which)
        if not passed and tries:
            w.split.waits = MbarrierWait(found, where & OFFSET_MASK, which)
            return BLOCKED
        write(w, np.full(LANES, passed))
        if passed or not decides:
            if decides:
                block = w.block.cluster.blocks_by_rank(where >> RANK_SHIFT)
                w.observer.passed(w, place, ("mbarrier", block, where & OFFSET_MASK))
            return place + 1
        w.split.place = place + 1
        w.split.waits = MbarrierWait(found, where & OFFSET_MASK, which)
        return YIELDED

    def apart(w: Warp, place: int, places: np.ndarray, parities: np.ndarray) -> int:
        passed = np.zeros(LANES, np.bool_)
        for where, block, offset, lanes in _mbarriers(w, address):
            found = w.block.mbarrier(where)
            for which in np.unique(parities[lanes]).tolist():
                over = found.has_passed(which)
                passed |= lanes & (parities == which) & over
                if over:
                    w.observer.passed(w, place, ("mbarrier", block, offset))
        write(w, passed)
        if passed[w.mask].all():
            return place + 1
        w.split.place = place + 1
        w.split.waits = "an mbarrier"
        return YIELDED

    return run


def fence(instruction: Instruction, builder: Builder) -> Step:
    """Report fences and `membar` to the observer; the emulator's memory needs none (9.7.13.4)."""
    return _fenced


def _fenced(w: Warp, place: int) -> int:
    w.observer.fenced(w, place)
    return place + 1


_ANSWER_BYTES = 16


def build(instruction: Instruction, builder: Builder) -> Step:
    """`clusterlaunchcontrol.try_cancel` and `.query_cancel`."""
    if instruction.parts[1] == "try_cancel":
        return _try_cancel(instruction, builder)
    handle = instruction.operands[1]
    if not isinstance(handle, Register) or handle.type != "b128":
        raise refusal(instruction)
    if instruction.parts[2] == "is_canceled":
        return _is_canceled(handle.number, builder.write(instruction.operands[0], PREDICATE))
    writes = [builder.write(e, _U4) for e in builder.elements(instruction.operands[0])]
    axis = "xyz".find(instruction.parts[2].partition("::")[2] or "?")
    return _first_index(handle.number, writes, max(axis, 0))


def _try_cancel(instruction: Instruction, builder: Builder) -> Step:
    target, signal = instruction.operands
    address, barrier = builder.address(target), builder.address(signal)
    everyone = "multicast::cluster::all" in instruction.parts

    def run(w: Warp, place: int) -> int:
        addresses, barriers = address(w), barrier(w)
        cluster = w.block.cluster
        for lane in active_lanes(w):
            at, signal = int(addresses[lane]) & OFFSET_MASK, int(barriers[lane]) & OFFSET_MASK
            blocks = cluster.blocks if everyone else [w.block]

            def complete(at: int = at, signal: int = signal, blocks: list[Block] = blocks) -> None:
                first = w.block.launch.cancel(is_busy=w.block.machine.policy.busy)
                answer = np.array([*(first or (0, 0, 0)), first is not None], "u4")
                for block in blocks:
                    block.shared.data[at : at + _ANSWER_BYTES] = answer.view(np.uint8)
                    block.mbarrier(block.base + signal).complete(_ANSWER_BYTES)

            text = w.instruction(place)
            operation = Asynchronous(complete, "an answer to try_cancel", text, w.actor, lane)
            operation.writes = [(block.shared, at, _ANSWER_BYTES) for block in blocks]
            operation.signals = [(block, signal) for block in blocks]
            w.block.machine.issue(w, place, operation)
        return place + 1

    return run


def _answer(w: Warp, number: int) -> np.ndarray:
    words: np.ndarray = np.ascontiguousarray(w.registers[number]).view(_U4)
    return words


def _is_canceled(number: int, write: Write) -> Step:
    def run(w: Warp, place: int) -> int:
        write(w, _answer(w, number)[:, 3] != 0)
        return place + 1

    return run


def _first_index(number: int, writes: Sequence[Write], axis: int) -> Step:
    def run(w: Warp, place: int) -> int:
        words = _answer(w, number)
        for n, write in enumerate(writes, axis):
            write(w, np.ascontiguousarray(words[:, n]))
        return place + 1

    return run


def st_async(instruction: Instruction, builder: Builder) -> Step:
    """`st.async` and `red.async` (9.7.9.13, 9.7.13.8).

    Each lane sends its value to the shared memory of a block, and signals an mbarrier.
    """
    parts = instruction.parts
    reduces = parts[0] == "red"
    kind_name = parts[-1]
    operation = parts[-2] if reduces else ""
    change = find_atomic(operation, kind_name) if reduces else None
    kind = storage_of(dtype_of(kind_name))
    target, source, barrier = instruction.operands
    reads = [builder.read(element, kind) for element in builder.elements(source)]
    to, signal = builder.address(target), builder.address(barrier)
    width = kind.itemsize

    def run(w: Warp, place: int) -> int:
        cluster = w.block.cluster
        targets, signals = to(w) % SHARED, signal(w) % SHARED
        values = [read(w) for read in reads]
        for lane in active_lanes(w):
            at, bar = int(targets[lane]), int(signals[lane])
            block = cluster.blocks_by_rank(at >> RANK_SHIFT)
            content = [value[lane : lane + 1].copy() for value in values]
            owner = cluster.blocks_by_rank(bar >> RANK_SHIFT)

            def complete(
                block: Block = block,
                at: int = at & OFFSET_MASK,
                content: list[np.ndarray] = content,
                owner: Block = owner,
                bar: int = bar,
            ) -> None:
                for number, value in enumerate(content):
                    offset = at + number * width
                    if change is not None:
                        view = block.shared.views[width].view(change.dtype)
                        old = view[offset // width]
                        view[offset // width] = change.apply(old, value.view(change.dtype)[0])
                    else:
                        put(block.shared, offset, value.view(np.uint8))
                owner.mbarrier(bar).complete(width * len(content))

            what, text = f"{parts[0]}.async", w.instruction(place)
            sent = Asynchronous(complete, what, text, w.actor, lane)
            sent.writes = [(block.shared, at & OFFSET_MASK, width * len(content))]
            sent.signals = [(owner, bar & OFFSET_MASK)]
            w.block.machine.issue(w, place, sent)
        return place + 1

    return run


def getctarank(instruction: Instruction, builder: Builder) -> Step:
    """`getctarank`: the rank of the block that owns a shared-memory address (9.7.9.24)."""
    target, source = instruction.operands
    read, write = builder.read(source, np.dtype("i8")), builder.write(target, _U4)

    def run(w: Warp, place: int) -> int:
        write(w, ((read(w) & (SHARED - 1)) >> RANK_SHIFT).astype(_U4))
        return place + 1

    return run


def mapa(instruction: Instruction, builder: Builder) -> Step:
    """`mapa`: the address of the same variable in another block of the cluster (9.7.9.22)."""
    kind = instruction.parts[-1]
    space = instruction.parts[1] if len(instruction.parts) == 3 else ""
    dtype = dtype_of(kind)
    target, source, rank = instruction.operands
    read, number = builder.read(source, np.dtype("i8")), builder.read(rank, _U4)
    write = builder.write(target, dtype)
    window = 0 if space else SHARED

    def run(w: Warp, place: int) -> int:
        ranks = number(w).astype(np.int64)
        used = ranks[w.mask]
        if (used >= len(w.block.cluster.blocks)).any():
            raise Fault(
                "out-of-bounds",
                f"mapa names block {int(used.max())} of a cluster of "
                f"{len(w.block.cluster.blocks)} blocks",
            )
        low = (read(w) - window) & OFFSET_MASK
        write(w, (low + (ranks << RANK_SHIFT) + window).astype(dtype))
        return place + 1

    return run
