"""Follows the threads of a kernel through its PTX, and counts the instructions they execute.

Only instructions that decide control flow are computed: those that the guards of branches and of
counted instructions depend on. The result of a load is unknown. Waits always succeed
(`mbarrier.try_wait`), and no block takes over the work of another (`clusterlaunchcontrol`), so that
each block of the grid does its own work. `elect.sync` elects the first lane.

If a path depends on unknown data, there is no count, with one exception: a loop that counts
nothing, such as one that polls a semaphore, is left by its only exit, and the registers that it
writes become unknown. The result of following a loop is cached by the values of its live-in
registers. So a loop over K is followed once for all tiles and blocks that enter it with the same
values.

A register holds its bits as a nonnegative integer; a predicate holds 0 or 1. The semantics of
integer instructions follow the PTX ISA 9.0, 9.7.1, 9.7.6 to 9.7.9.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from pallasc.analysis.loops import natural_loops
from pallasc.emulator.ptx.syntax import (
    Immediate,
    Instruction,
    Kernel,
    Label,
    Operand,
    Register,
    Special,
    Symbol,
    registers_in,
)

_ENDS = frozenset({"ret", "exit", "trap"})
_BRANCHES = frozenset({"bra", *_ENDS})
_PARAMETERS = 1 << 62
"""Base address of the kernel's parameters; no other address is known."""
_LANE_BITS = 5
_MOST_DEPTH = 64


class UnknownWayError(Exception):
    """The path of a thread cannot be followed; the text gives the reason."""


class _DataError(UnknownWayError):
    """A branch depends on data."""


class Event(NamedTuple):
    """A counted instruction: its number, and the value of the operand that determines its size."""

    number: int
    value: int | None


Watch = Callable[[Instruction], Operand | bool]
"""Selects counted instructions: False for no, True for yes, or an operand whose value is needed."""

_Operation = Callable[..., int]
_Registers = dict[str, int | None]


class _Op(NamedTuple):
    """A computation, or the count of an instruction.

    Attributes:
        targets: the registers that it writes.
        compute: returns the result; None if it is unknown.
        sources: its operands; constants and special registers are registers, too.
        guard: see `Instruction`.
        line: its line of the PTX.
        counted: the number of the instruction; None for a computation.
    """

    targets: tuple[str, ...]
    compute: _Operation | None
    sources: tuple[str, ...]
    guard: Register | None
    line: int
    counted: int | None = None

    @property
    def reads(self) -> set[str]:
        """The registers that it reads; with a guard also its targets, which may stay unchanged."""
        return {*self.sources, *((self.guard.name, *self.targets) if self.guard else ())}


@dataclass(slots=True)
class _Block:
    """A basic block. It continues at `taken` if its guard holds, else at `other`."""

    body: list[_Op] = field(default_factory=list)
    guard: Register | None = None
    taken: int | None = None
    other: int | None = None
    line: int = 0

    @property
    def after(self) -> list[int]:
        """The possible successors."""
        both = (self.taken,) if self.guard is None else (self.taken, self.other)
        return [each for each in dict.fromkeys(both) if each is not None]


class _Loop(NamedTuple):
    """A loop: its blocks as a bit mask, its live-in registers, and the registers it writes.

    `way_out` is the only exit block of a loop that counts nothing; else None.
    """

    blocks: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    way_out: int | None


class Walk:
    """Follows threads through a kernel.

    Args:
        kernel: the kernel.
        watch: selects the instructions to count.
        most_steps: maximum number of computed instructions, for all threads together.

    Attributes:
        depends: the special registers that decide a thread's path or its counts, and "elect".
    """

    def __init__(self, kernel: Kernel, watch: Watch, most_steps: int) -> None:
        compiler = _Compiler(kernel, watch)
        self._blocks = compiler.blocks()
        self._loops = _loops(self._blocks)
        ops = [op for block in self._blocks for op in block.body]
        names = {name for op in ops for name in (*op.reads, *op.targets)}
        names |= {block.guard.name for block in self._blocks if block.guard is not None}
        self._initial: _Registers = dict.fromkeys(names) | compiler.constants
        self.depends = frozenset(compiler.specials)
        self._decisive = compiler.decisive
        self._kernel = kernel
        self._most_steps = most_steps
        self._steps = 0
        self._known: dict[tuple[int | None, ...], tuple[int | None, _Registers, Counter[Event]]]
        self._known = {}

    def follow(self, specials: Mapping[str, int]) -> Counter[Event]:
        """Return the counts of a thread with these special registers.

        Raises:
            UnknownWayError: a branch depends on unknown data, or the path is too long.
        """
        registers: _Registers = {**self._initial, **specials}
        found: Counter[Event] = Counter()
        self._walk(0 if self._blocks else None, None, registers, found, 0)
        return found

    def is_split(self, block: tuple[int, int, int]) -> bool:
        """Return True if the path of a thread depends on its lane, except by election.

        If so, the threads of a warp take different paths.

        Args:
            block: the size of the blocks.
        """
        instructions = [self._kernel.instructions[number] for number in self._decisive]
        own, grown = set[str](), True
        while grown:
            before = len(own)
            for each in instructions:
                if _is_of_lane(each, own, whole_warps=block[0] % 32 == 0):
                    own.update(
                        r.name for operand in each.operands[:1] for r in registers_in(operand)
                    )
            grown = len(own) > before
        return any(each.guard is not None and each.guard.name in own for each in instructions)

    def _walk(
        self,
        at: int | None,
        header: int | None,
        registers: _Registers,
        found: Counter[Event],
        depth: int,
    ) -> int | None:
        """Follow blocks to the end, or out of the loop with this header; return the next block."""
        inside = -1 if header is None else self._loops[header].blocks
        while at is not None and inside >> at & 1:
            if at in self._loops and at != header:
                at = self._loop(at, registers, found, depth + 1)
            else:
                at = self._block(self._blocks[at], registers, found)
        return at

    def _loop(
        self, header: int, registers: _Registers, found: Counter[Event], depth: int
    ) -> int | None:
        if depth > _MOST_DEPTH:
            raise UnknownWayError(f"loops are nested more than {_MOST_DEPTH} deep")
        loop = self._loops[header]
        key = (header, *[registers[name] for name in loop.reads])
        if key not in self._known:
            own: Counter[Event] = Counter()
            try:
                after = self._walk(header, header, registers, own, depth)
            except _DataError:
                # If the loop counts nothing, the number of its iterations does not matter.
                if loop.way_out is None:
                    raise
                after = loop.way_out
                registers.update(dict.fromkeys(loop.writes))
            self._known[key] = after, {name: registers[name] for name in loop.writes}, own
        after, values, own = self._known[key]
        registers.update(values)
        found.update(own)
        return after

    def _block(self, block: _Block, registers: _Registers, found: Counter[Event]) -> int | None:
        _execute(block.body, registers, found)
        self._steps += len(block.body) + 1
        if self._steps > self._most_steps:
            raise UnknownWayError(f"it takes more than {self._most_steps:,} steps to follow")
        if block.guard is None:
            return block.taken
        held = registers[block.guard.name]
        if held is None:
            raise _DataError(
                f"a trip count depends on data: the branch in line {block.line} of the PTX"
            )
        return block.taken if bool(held) != block.guard.negated else block.other


def _execute(body: list[_Op], registers: _Registers, found: Counter[Event]) -> None:
    for targets, compute, sources, guard, line, counted in body:
        if guard is not None:
            held = registers[guard.name]
            if held is None and counted is not None:
                raise UnknownWayError(f"whether line {line} of the PTX is executed depends on data")
            if held is None:
                registers.update(dict.fromkeys(targets))
                continue
            if bool(held) == guard.negated:
                continue
        values = [registers[source] for source in sources]
        if counted is not None:
            found[Event(counted, values[0] if values else None)] += 1
            continue
        value = None
        if compute is not None and None not in values:
            try:
                value = compute(*values)
            except ZeroDivisionError as error:
                raise UnknownWayError(f"line {line} of the PTX divides by zero") from error
        for target in targets:
            registers[target] = value


def _is_of_lane(each: Instruction, own: set[str], *, whole_warps: bool) -> bool:
    """Return True if a result depends on the number of a thread within its warp."""
    if each.parts[0] in ("shfl", "elect", "bra"):
        return False
    if each.parts[0] == "shr" and whole_warps and isinstance(each.operands[-1], Immediate):
        # A shift by five bits or more leaves the number of a warp, or of a warpgroup.
        return each.operands[-1].bits < _LANE_BITS and _reads(each, own)
    return _reads(each, own)


def _reads(each: Instruction, own: set[str]) -> bool:
    return any(
        isinstance(source, Special | Register) and source.name in {"%tid.x", "%laneid", *own}
        for source in each.operands[1:]
    )


class _Compiler:
    """Reduces a kernel to blocks of operations."""

    def __init__(self, kernel: Kernel, watch: Watch) -> None:
        self.constants: _Registers = {}
        self.specials: set[str] = set()
        self._instructions = list(kernel.instructions)
        self._watched = {
            number: found
            for number, each in enumerate(self._instructions)
            if (found := watch(each)) is not False
        }
        self._offsets = _offsets(kernel)
        self._needed = self._slice()

    @property
    def decisive(self) -> list[int]:
        """The numbers of the instructions that decide, branch or are counted."""
        branches = [n for n, i in enumerate(self._instructions) if i.parts[0] in _BRANCHES]
        return sorted({*self._needed, *self._watched, *branches})

    def blocks(self) -> list[_Block]:
        """Return the blocks of the kernel."""
        starts = {0}
        for number, each in enumerate(self._instructions):
            if each.parts[0] in _BRANCHES:
                starts.add(number + 1)
                starts.update(o.target for o in each.operands if isinstance(o, Label))
        ordered = sorted(start for start in starts if start < len(self._instructions))
        numbers = {start: number for number, start in enumerate(ordered)}
        return [
            self._block(start, end, numbers)
            for start, end in zip(ordered, [*ordered[1:], len(self._instructions)], strict=True)
        ]

    def _slice(self) -> set[int]:
        """Return the numbers of the instructions that decide control flow."""
        definitions: dict[str, list[int]] = {}
        waiting: list[Register] = []
        for number, each in enumerate(self._instructions):
            for register in _results(each):
                definitions.setdefault(register.name, []).append(number)
            if number in self._watched or each.parts[0] in _BRANCHES:
                waiting += [each.guard] if each.guard is not None else []
            if not isinstance(value := self._watched.get(number, True), bool):
                waiting += registers_in(value)
        needed: set[int] = set()
        while waiting:
            for number in definitions.get(waiting.pop().name, ()):
                if number not in needed:
                    needed.add(number)
                    each = self._instructions[number]
                    waiting += [each.guard] if each.guard is not None else []
                    if _operation(each) is not None:
                        waiting += [r for o in each.operands[1:] for r in registers_in(o)]
        return needed

    def _block(self, start: int, end: int, numbers: Mapping[int, int]) -> _Block:
        following = numbers.get(end)
        body = [op for number in range(start, end) for op in self._ops(number)]
        block = _Block(body, taken=following, other=following)
        last = self._instructions[end - 1]
        name = last.parts[0]
        if name == "bra":
            targets = [each.target for each in last.operands if isinstance(each, Label)]
            block.taken = numbers.get(targets[0]) if targets else None
        elif name in _ENDS:
            block.taken = None
        if name in ("bra", *_ENDS):
            block.guard, block.line = last.guard, last.line
        return block

    def _ops(self, number: int) -> Iterator[_Op]:
        each = self._instructions[number]
        if number in self._needed:
            yield self._result(each)
        if number in self._watched:
            wanted = self._watched[number]
            sources = () if isinstance(wanted, bool) else (self._name(wanted),)
            yield _Op((), None, sources, each.guard, each.line, number)

    def _result(self, each: Instruction) -> _Op:
        targets = tuple(register.name for register in _results(each))
        sources: tuple[str, ...] = ()
        compute: _Operation | None = None
        if each.parts[0] == "elect" and len(targets) == 2:
            self.specials.add("elect")
            targets, compute, sources = targets[1:], _same, ("elect",)
        elif "try_wait" in each.parts or "test_wait" in each.parts:
            compute, sources = _same, (self._name(Immediate(1)),)
        elif "is_canceled" in each.parts:
            compute, sources = _same, (self._name(Immediate(0)),)
        elif len(targets) == 1 and (compute := _operation(each)) is not None:
            operands = each.operands[1:2] if each.parts[0] == "shfl" else each.operands[1:]
            sources = tuple(map(self._name, operands))
        return _Op(targets, compute, sources, each.guard, each.line)

    def _name(self, operand: Operand) -> str:
        """Return the register of an operand; "", a register without a value, if unsupported."""
        if isinstance(operand, Register) and not operand.negated:
            return operand.name
        if isinstance(operand, Special):
            self.specials.add(operand.name)
            return operand.name
        if isinstance(operand, Immediate) and operand.width is None:
            value = operand.bits
        elif isinstance(operand, Symbol) and operand.name in self._offsets:
            value = _PARAMETERS + self._offsets[operand.name] + operand.offset
        else:
            return ""
        self.constants[str(value)] = value
        return str(value)


def parameter_offset(kernel: Kernel, address: int) -> tuple[int, int] | None:
    """Return the number of the parameter that contains an address, and the offset, or None."""
    for number, parameter in enumerate(kernel.parameters):
        offset = address - _PARAMETERS - (number << 32)
        if 0 <= offset < max(parameter.size, 1):
            return number, offset
    return None


def _offsets(kernel: Kernel) -> dict[str, int]:
    """Return the offsets of parameters, spaced far apart."""
    return {parameter.name: number << 32 for number, parameter in enumerate(kernel.parameters)}


def _results(each: Instruction) -> list[Register]:
    return [register for operand in each.results for register in registers_in(operand)]


def _operation(each: Instruction) -> _Operation | None:
    """Return the operation of an instruction; a shuffle from lane 0 acts as a copy."""
    if each.opcode.startswith("shfl.sync.idx"):
        return _same if each.operands[2:3] == (Immediate(0),) else None
    return operation(each.opcode)


def _same(value: int) -> int:
    return value


def _loops(blocks: list[_Block]) -> dict[int, _Loop]:
    """Return the loops of a program by the number of their first block."""
    live = _live(blocks)
    loops = {}
    for header, bits in natural_loops([block.after for block in blocks]).items():
        members = [block for number, block in enumerate(blocks) if bits >> number & 1]
        reads = {name for block in members for op in block.body for name in op.reads}
        reads |= {block.guard.name for block in members if block.guard is not None}
        writes = {name for block in members for op in block.body for name in op.targets}
        loops[header] = _Loop(
            bits,
            tuple(sorted(reads & live[header])),
            tuple(sorted(writes)),
            _way_out(bits, members),
        )
    return loops


def _way_out(bits: int, members: list[_Block]) -> int | None:
    """Return the only exit block of a loop; None if it has several or counts anything."""
    if any(op.counted is not None for block in members for op in block.body):
        return None
    ways = {way for block in members for way in block.after if not bits >> way & 1}
    ends_here = any(not block.after for block in members)
    return ways.pop() if len(ways) == 1 and not ends_here else None


def _live(blocks: list[_Block]) -> list[set[str]]:
    """Return for each block the registers that are live at its start."""
    live: list[set[str]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for number, block in reversed(list(enumerate(blocks))):
            now = set().union(*(live[after] for after in block.after))
            if block.guard is not None:
                now.add(block.guard.name)
            for op in reversed(block.body):
                now.difference_update(op.targets)
                now |= op.reads
            if now != live[number]:
                live[number], changed = now, True
    return live


_TYPE = re.compile(r"([usb])(8|16|32|64)")
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    **dict.fromkeys(("lt", "lo"), operator.lt),
    **dict.fromkeys(("le", "ls"), operator.le),
    **dict.fromkeys(("gt", "hi"), operator.gt),
    **dict.fromkeys(("ge", "hs"), operator.ge),
}
_BOOLEANS: Mapping[str, Callable[[int, int], int]] = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


@cache
def operation(opcode: str) -> _Operation | None:
    """Return a function from an opcode's source operands to its result; None if unsupported.

    The function raises ZeroDivisionError on division by zero.
    """
    name, *rest = opcode.split(".")
    if opcode == "mov.pred":
        return lambda a: int(a != 0)
    if name in ("mov", "cvta"):
        return _same
    if name == "selp":
        return lambda a, b, p: a if p else b
    if rest == ["pred"]:
        return _BOOLEANS.get(name) or ((lambda a: 1 - a) if name == "not" else None)
    kind = _TYPE.fullmatch(rest[-1]) if rest else None
    if kind is None:
        return None
    value, bits, modes = _value(kind), int(kind[2]), rest[:-1]
    if name == "setp":
        return _comparison(modes, value)
    if name == "cvt":
        target = _TYPE.fullmatch(modes[0]) if len(modes) == 1 else None
        if target is None:
            return None
        mask = (1 << int(target[2])) - 1
        return lambda a: value(a) & mask
    if name in ("mul", "mad"):
        return _product(name, modes, bits, value)
    return _plain(bits, value).get(name) if not modes else None


def _value(kind: re.Match[str]) -> Callable[[int], int]:
    """Return a function that reads the low bits of a register as a number of a type."""
    mask, half = (1 << int(kind[2])) - 1, 1 << (int(kind[2]) - 1)
    if kind[1] == "s":
        return lambda a: ((a & mask) ^ half) - half
    return lambda a: a & mask


def _plain(bits: int, value: Callable[[int], int]) -> dict[str, _Operation]:
    mask = (1 << bits) - 1
    return {
        "add": lambda a, b: (a + b) & mask,
        "sub": lambda a, b: (a - b) & mask,
        "neg": lambda a: -a & mask,
        "not": lambda a: ~a & mask,
        "abs": lambda a: abs(value(a)) & mask,
        "and": lambda a, b: a & b & mask,
        "or": lambda a, b: (a | b) & mask,
        "xor": lambda a, b: (a ^ b) & mask,
        "min": lambda a, b: min(value(a), value(b)) & mask,
        "max": lambda a, b: max(value(a), value(b)) & mask,
        "shl": lambda a, b: (a << b) & mask if b < bits else 0,
        "shr": lambda a, b: (value(a) >> min(b, bits)) & mask,
        "div": lambda a, b: _quotient(value(a), value(b)) & mask,
        "rem": lambda a, b: (value(a) - value(b) * _quotient(value(a), value(b))) & mask,
    }


def _quotient(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _product(
    name: str, modes: list[str], bits: int, value: Callable[[int], int]
) -> _Operation | None:
    if modes not in (["lo"], ["hi"], ["wide"]):
        return None
    shift = bits if modes == ["hi"] else 0
    mask = (1 << (2 * bits if modes == ["wide"] else bits)) - 1
    if name == "mul":
        return lambda a, b: (value(a) * value(b) >> shift) & mask
    return lambda a, b, c: ((value(a) * value(b) >> shift) + c) & mask


def _comparison(modes: list[str], value: Callable[[int], int]) -> _Operation | None:
    compare = _COMPARISONS.get(modes[0]) if modes else None
    combine = _BOOLEANS.get(modes[1]) if len(modes) > 1 else None
    if compare is None or (len(modes) > 1 and combine is None):
        return None
    if combine is None:
        return lambda a, b: int(compare(value(a), value(b)))
    return lambda a, b, p: combine(int(compare(value(a), value(b))), p)
