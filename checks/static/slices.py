"""Which instructions matter: those that move data or wait, and what their addresses come from."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import NamedTuple

from pallasc.checks.static.control_flow import ENDS
from pallasc.checks.static.operations import FLOATS, HANDLERS, Handler
from pallasc.emulator.ptx.syntax import Instructions

_WATCHED = frozenset(
    {
        "mbarrier", "cp", "wgmma", "tcgen05", "st", "ld", "stmatrix", "ldmatrix", "red", "atom",
        "fence", "bar", "barrier", "multimem", "clusterlaunchcontrol", "discard", "ret", "exit",
        "mma",
    }
)  # fmt: skip
_WITHOUT_RESULT = (
    "st", "bar", "bra", "ret", "fence", "cp.", "wgmma", "mbarrier.init", "red", "prefetch",
    "setmaxnreg", "tcgen05.mma", "tcgen05.commit", "tcgen05.alloc", "tcgen05.st", "call",
)  # fmt: skip
_DATA = frozenset({"st", "ld", "stmatrix", "ldmatrix", "mma"})
"""Of these, nothing but the address is looked at."""


class Role(NamedTuple):
    """What an opcode means for an evaluation.

    Attributes:
        is_watched: it moves data or waits.
        is_end: it may leave its block.
        is_product: its results are accumulators.
        has_result: its first operand is its result.
        has_data: only its addresses are looked at.
        handler: what evaluates it.
    """

    is_watched: bool
    is_end: bool
    is_product: bool
    has_result: bool
    has_data: bool
    handler: Handler | None


@cache
def role_of(opcode: str) -> Role:
    """Return what an opcode means."""
    base, _, rest = opcode.partition(".")
    is_product = opcode.startswith("wgmma.mma")
    has_result = not is_product and not opcode.startswith(_WITHOUT_RESULT)
    handler = None if rest.endswith(FLOATS) else HANDLERS.get(base)
    is_watched = base in _WATCHED
    return Role(is_watched, base in ENDS, is_product, has_result, base in _DATA, handler)


class Slice(NamedTuple):
    """What matters of a kernel.

    Attributes:
        numbers: of the instructions that matter, in order.
        definitions: the instructions that give a register its value, by its name.
        changing: registers that matter and are given a value at more than one place.
    """

    numbers: list[int]
    definitions: dict[str, list[int]]
    changing: set[str]


def slice_of(code: Instructions) -> Slice:
    """Return what matters of a kernel."""
    definitions: dict[str, list[int]] = defaultdict(list)
    found: set[int] = set()
    wanted: list[str] = []
    accumulators: set[str] = set()
    for number, (opcode, results) in enumerate(zip(code.opcodes, code.results, strict=True)):
        role = role_of(opcode)
        if role.has_result:
            for name in results:
                definitions[name].append(number)
        if role.is_watched:
            found.add(number)
            wanted += code.names(number, only_addresses=role.has_data)
        if (role.is_watched or role.is_end) and (guard := code.guard(number)) is not None:
            wanted.append(guard)
        if role.is_product:
            accumulators.update(results)
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for number in definitions.get(name, ()):
            if number not in found:
                found.add(number)
                if role_of(code.opcodes[number]).handler is not None:
                    wanted += code.names(number)
    changing = {name for name in seen if len(definitions.get(name, ())) > 1}
    return Slice(sorted(found), definitions, changing - accumulators)
