"""Explains a deadlock on one screen: the wait of each group of warps.

A wait for a semaphore in global memory is a loop: Mosaic waits with `atom.cas`, which ends its loop
when it finds the value it compares with, or with a load whose value the loop compares. The awaited
value is only in the loop's code; no barrier object has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pallasc.emulator.machine.block import Cluster
from pallasc.emulator.machine.memory import GLOBAL, Fault, GlobalMemory, Region
from pallasc.emulator.machine.waits import (
    BarrierWait,
    ClusterWait,
    LanesWait,
    LoopWait,
    MbarrierWait,
    MemoryWait,
)
from pallasc.emulator.machine.warp import LANES, Split, Warp
from pallasc.emulator.ptx.syntax import Immediate, Instruction, Operand, Register

_GOES_ON = frozenset({"lt", "lo", "ne"})
_ENDS = frozenset({"ge", "hs", "eq"})
"""Comparisons of the loaded value with the awaited value."""
_LEAST_BYTES = 4
_LOOP = 16
"""Maximum number of instructions from a load to the branch of its loop."""


def semaphore_text(warp: Warp, split: Split, wait: MemoryWait) -> str | None:
    """Describe the wait of lanes that poll a semaphore, to follow "waiting for".

    None if they read other memory, or if the awaited value cannot be found in the code.
    """
    if not wait.words:
        return None
    word = wait.words[0]
    if word.region.base < GLOBAL or word.view.itemsize < _LEAST_BYTES:
        return None
    expected = _expected(warp, split, wait.place)
    if expected is None:
        return None
    number = int(word.numbers.flat[0])
    held = int(word.held.flat[0])
    name = _name(warp, word.region, number * word.view.itemsize, word.view.itemsize)
    return f"a semaphore to reach {expected}, which is {held} ({name})"


def _expected(warp: Warp, split: Split, place: int) -> int | None:
    """Return the value that ends a loop around the instruction at a place."""
    instructions = warp.block.launch.program.kernel.instructions
    polled: Instruction = instructions[place]
    if "cas" in polled.parts:
        return _value(warp, split, polled.operands[-2])
    following = instructions[place + 1 : place + 1 + _LOOP]
    before = [*takewhile(lambda each: each.parts[0] != "bra", following)]
    branch = following[len(before)] if len(before) < len(following) else None
    for each in before:
        if each.parts[0] != "setp" or branch is None or branch.guard is None:
            continue
        result, found, awaited = each.operands[:3]
        if not isinstance(result, Register) or result.number != branch.guard.number:
            continue
        if _number(found) == _number(polled.operands[0]) is not None:
            goes_on = _ENDS if branch.guard.negated else _GOES_ON
            return _value(warp, split, awaited) if each.parts[1] in goes_on else None
    return None


def _number(operand: Operand) -> int | None:
    return operand.number if isinstance(operand, Register) else None


def _value(warp: Warp, split: Split, operand: Operand) -> int | None:
    if isinstance(operand, Immediate):
        return operand.bits
    if not isinstance(operand, Register):
        return None
    lane = int(split.mask.argmax())
    return int(warp.registers[operand.number][lane])


def _name(warp: Warp, region: Region, offset: int, width: int) -> str:
    """Return the name of a word of an array; arrays that only the kernel has are its semaphores."""
    if not region.is_scratch:
        return f"word {offset // width} of {region.label or 'global memory'}"
    memory: GlobalMemory = warp.block.machine.memory
    origins = [window.origin for window in memory.windows if window.region is region]
    parameters = warp.block.launch.parameters.views[8].tolist()
    starts = [each - origin for each in parameters for origin in origins]
    first = max((start for start in starts if 0 <= start <= offset), default=0)
    return f"word {(offset - first) // width} of the kernel's semaphores"


_MOST_GROUPS = 8
_MOST_BLOCKS = 3


class Deadlock(Fault):
    """No warp can make progress. `waiting` has each warp, its place and the reason of its wait."""

    def __init__(self, message: str, waiting: Sequence[tuple[Warp, int, str]]) -> None:
        first = waiting[0]
        super().__init__(
            "deadlock", message, instruction=_instruction(first[0], first[1]), actor=first[0].actor
        )
        self.waiting = tuple(waiting)


@dataclass(slots=True)
class _Group:
    """Warps at one instruction with the same reason to wait."""

    instruction: Instruction
    reason: str
    waits: object
    warps: dict[tuple[int, tuple[int, int, int]], list[int]] = field(default_factory=dict)


def explain(clusters: Sequence[Cluster]) -> Fault:
    """Return the error that explains the wait of every warp, with blocks in grid order.

    If lanes of one warp wait for each other, returns the fault of that warp.
    """
    clusters = sorted(
        clusters, key=lambda each: (each.blocks[0].device, each.blocks[0].index[::-1])
    )
    warps = [warp for cluster in clusters for warp in cluster.warps if not warp.ended]
    if (parted := next((warp for warp in warps if _is_parted(warp)), None)) is not None:
        return _parted(parted)
    waiting: list[tuple[Warp, int, str]] = []
    others: list[tuple[Warp, int, str]] = []
    groups: dict[tuple[int, str], _Group] = {}
    for warp, split in _in_order(clusters):
        reason, place = _reason(warp, split), _place(split)
        # Lanes that wait for other lanes of their warp only follow from those lanes' waits.
        follows = isinstance(split.waits, LanesWait) and len(warp.splits) > 1
        (others if follows else waiting).append((warp, place, reason))
        group = groups.setdefault(
            (place, reason), _Group(_instruction(warp, place), reason, split.waits)
        )
        group.warps.setdefault((warp.block.device, warp.block.index), []).append(warp.index)
    lines = ["no warp can make progress:"]
    for group in list(groups.values())[:_MOST_GROUPS]:
        lines += _told(group, clusters)
    if len(groups) > _MOST_GROUPS:
        lines.append(f"  … and {len(groups) - _MOST_GROUPS} more groups of warps")
    return Deadlock("\n".join(lines), waiting or others)


def _is_parted(warp: Warp) -> bool:
    """Return True if all lanes of a warp are at instructions that need the whole warp."""
    return all(
        isinstance(split.waits, LanesWait)
        and {"bar", "aligned"} & set(_instruction(warp, split.place).parts)
        for split in warp.splits
    )


def _parted(warp: Warp) -> Fault:
    at = [_instruction(warp, split.place) for split in warp.splits]
    which = " and ".join(f"{each.opcode} (PTX line {each.line})" for each in at)
    fault = Fault(
        "not-aligned",
        f"only some lanes of a warp execute {which}: all its lanes must execute it together",
        instruction=at[0],
        actor=warp.actor,
    )
    fault.place = warp.splits[0].place
    return fault


def _in_order(clusters: Sequence[Cluster]) -> list[tuple[Warp, Split]]:
    """Return all waits, starting with those that cannot be a consequence of the others.

    An infinite loop waits for nothing. In a cluster in which no warp polls memory, a wait for an
    mbarrier is not caused by a semaphore; in others it may be.
    """
    found = []
    for cluster in clusters:
        splits = [
            (warp, split) for warp in cluster.warps if not warp.ended for split in warp.splits
        ]
        polls = any(isinstance(split.waits, MemoryWait) for _, split in splits)
        found += [(_rank(split.waits, polls=polls), warp, split) for warp, split in splits]
    return [(warp, split) for _, warp, split in sorted(found, key=lambda each: each[0])]


def _rank(waits: object, *, polls: bool) -> int:
    if isinstance(waits, MbarrierWait):
        return 3 if polls else 1
    ranks = {LoopWait: 0, MemoryWait: 2, ClusterWait: 4, BarrierWait: 4, LanesWait: 5}
    return ranks.get(type(waits), 4)


def _reason(warp: Warp, split: Split) -> str:
    waits = split.waits
    told = semaphore_text(warp, split, waits) if isinstance(waits, MemoryWait) else None
    return told or str(waits or "a change in memory")


def _place(split: Split) -> int:
    """Return the place of a wait: the load, if lanes are in a loop around one."""
    waits = split.waits
    return waits.place if isinstance(waits, MemoryWait) and not split.stuck else split.place


def _instruction(warp: Warp, place: int) -> Instruction:
    code: Sequence[Instruction] = warp.block.launch.program.kernel.instructions
    return code[min(place, len(code) - 1)]


def _told(group: _Group, clusters: Sequence[Cluster]) -> list[str]:
    instruction = group.instruction
    at = f"PTX line {instruction.line}"
    if instruction.place is not None:
        at = f"{instruction.place.file}:{instruction.place.line}, {at}"
    lines = [
        f"  {_names(group)} at {at}: {instruction.text}",
        f"    waiting for {group.reason}",
    ]
    if isinstance(group.waits, MbarrierWait):
        lines += [f"    {line}" for line in _prospects(group, group.waits, clusters)]
    return lines


def _names(group: _Group) -> str:
    """Return the names of warps and blocks: "warps 0-3 of block (0, 0, 0)"."""
    by_warps: dict[str, list[str]] = {}
    for (device, (x, y, z)), numbers in group.warps.items():
        on = f" on device {device}" if device else ""
        by_warps.setdefault(_ranges(sorted(set(numbers))), []).append(f"({x}, {y}, {z}){on}")
    named = []
    for warps, blocks in by_warps.items():
        shown = ", ".join(blocks[:_MOST_BLOCKS])
        more = f" and {len(blocks) - _MOST_BLOCKS} more" if len(blocks) > _MOST_BLOCKS else ""
        named.append(f"{warps} of {'block' if len(blocks) == 1 else 'blocks'} {shown}{more}")
    return "; ".join(named)


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"{'warp' if len(numbers) == 1 else 'warps'} {text}"


def _prospects(group: _Group, wait: MbarrierWait, clusters: Sequence[Cluster]) -> list[str]:
    """Return the possible missing arrivals, and other hints from the state of the barrier."""
    barrier = wait.barrier
    found = []
    if barrier.bytes < 0:
        found.append(f"{-barrier.bytes} more bytes were copied than announced (expect_tx)")
    elif barrier.bytes and not barrier.pending:
        found.append("all copies are complete: more bytes were announced (expect_tx) than copied")
    if barrier.phase and barrier.pending == barrier.expected and not barrier.bytes:
        found.append(
            f"nothing has arrived since phase {barrier.phase - 1} completed: the kernel waits for "
            "more phases than the barrier completes"
        )
    if barrier.pending:
        found.append(_arrivals(group, wait, clusters))
    return found


def _arrivals(group: _Group, wait: MbarrierWait, clusters: Sequence[Cluster]) -> str:
    blocks = set(group.warps)
    mine = [c for c in clusters if any((b.device, b.index) in blocks for b in c.blocks)]
    warps = [warp for warp in mine[0].warps if not warp.ended] if mine else []
    others = [
        warp
        for warp in warps
        if not all(
            isinstance(s.waits, MbarrierWait) and s.waits.barrier is wait.barrier
            for s in warp.splits
        )
    ]
    missing = wait.barrier.pending
    threads = LANES * len(others)
    if not others:
        return f"arrivals missing: {missing}, and no other warp is left to arrive"
    if missing > threads:
        return f"arrivals missing: {missing}, but the other warps have only {threads} threads"
    return f"arrivals missing: {missing}; all {len(others)} other warps are waiting, too"
