"""Which instructions matter: those that move data or wait, and what their addresses come from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Role:
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
        definitions: the instructions that give a register that matters its value, by its name.
        changing: those registers that are given a value at more than one place.
    """

    numbers: list[int]
    definitions: dict[str, list[int]]
    changing: set[str]


def slice_of(code: Instructions) -> Slice:
    """Return what matters of a kernel."""
    statements = code.statements
    first: dict[str, int] = {}
    more: dict[str, list[int]] = defaultdict(list)
    definitions: dict[str, list[int]] = {}
    found: set[int] = set()
    wanted: list[str] = []
    accumulators: set[str] = set()
    roles = [role_of(statement.opcode) for statement in statements]
    for number, (statement, role) in enumerate(zip(statements, roles, strict=True)):
        if role.has_result:
            for name in statement.results:
                if first.setdefault(name, number) != number:
                    more[name].append(number)
            if not role.is_watched:
                continue
        if role.is_watched:
            found.add(number)
            wanted += statement.address_names if role.has_data else statement.scalar_names
        if statement.guard is not None and (role.is_watched or role.is_end):
            wanted.append(statement.guard)
        if role.is_product:
            accumulators.update(statement.results)
    while wanted:
        name = wanted.pop()
        if name in definitions or name not in first:
            continue
        definitions[name] = [first[name], *more.get(name, ())]
        for number in definitions[name]:
            if number not in found:
                found.add(number)
                statement = statements[number]
                if roles[number].handler is not None:
                    wanted += statement.names
                    if statement.guard is not None and name in more:
                        wanted.append(statement.guard)
    changing = {name for name, numbers in definitions.items() if len(numbers) > 1}
    return Slice(sorted(found), definitions, changing - accumulators)
