"""Describes the wait of a warp that polls a word of global memory: a semaphore.

Mosaic waits with `atom.cas`, which ends its loop when it finds the value it compares with, or with
a load whose value the loop compares. The awaited value is only in the loop's code; no barrier
object has it.
"""

from __future__ import annotations

from itertools import takewhile

from pallasc.emulator.machine.memory import GLOBAL, GlobalMemory, Region
from pallasc.emulator.machine.waits import MemoryWait
from pallasc.emulator.machine.warp import Split, Warp
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
