"""The control flow of a kernel's PTX, compiled to a form that can be followed per thread.

Only instructions that decide control flow are kept: those that the guards of branches and of
counted instructions are computed from. The result of a load is unknown. Waits always succeed
(`mbarrier.try_wait`), and no block takes over the work of another (`clusterlaunchcontrol`), so that
each block of the grid does its own work. `elect.sync` elects the first lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.analysis.flow import natural_loops
from pallasc.analysis.metrics.integers import Operation, operation
from pallasc.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Label,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    registers_in,
)

_WITHOUT_RESULT = (
    *("bar", "barrier", "bra", "brx", "ret", "exit", "trap", "st", "red", "setmaxnreg", "fence"),
    *("nanosleep", "prefetch", "cp", "stmatrix", "membar", "griddepcontrol", "call", "discard"),
)
_ENDS = frozenset({"ret", "exit", "trap"})
_BRANCHES = frozenset({"bra", "brx", *_ENDS})
_PARAMETERS = 1 << 62
"""Base address of the kernel's parameters; no other address is known."""


class UnknownWayError(Exception):
    """The path of a thread cannot be followed; the text gives the reason."""


class Event(NamedTuple):
    """A counted instruction: its number, and the value of the operand that determines its size."""

    number: int
    value: int | None


Watch = Callable[[Instruction], Operand | bool]
"""Selects counted instructions: False for no, True for yes, or an operand whose value is needed."""

Registers = list[int | None]
_Run = Callable[[Registers, Counter[Event]], None]


class Op(NamedTuple):
    """A computation or a count, with the registers that it reads and writes."""

    run: _Run
    reads: tuple[int, ...]
    writes: tuple[int, ...] = ()
    is_count: bool = False


@dataclass(slots=True)
class Block:
    """A basic block. It continues at `taken` if `guard` is true, else at `other`."""

    body: list[Op] = field(default_factory=list)
    guard: int | None = None
    negated: bool = False
    taken: int | None = None
    other: int | None = None
    line: int = 0

    @property
    def after(self) -> list[int]:
        """The possible successors."""
        both = (self.taken,) if self.guard is None else (self.taken, self.other)
        return [each for each in dict.fromkeys(both) if each is not None]


class Loop(NamedTuple):
    """A loop: its blocks as a bit mask, its live-in registers, and the registers it writes.

    `way_out` is the only exit block of a loop that counts nothing; else None.
    """

    blocks: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    way_out: int | None


@dataclass(frozen=True, slots=True)
class Program:
    """The control flow of a kernel, ready to be followed.

    Attributes:
        specials: the slots of special registers by name.
        depends: the names of special registers that decide a thread's path or its counts, including
            `elect`.
        decisive: the numbers of the instructions that decide, branch or are counted.
    """

    blocks: list[Block]
    loops: Mapping[int, Loop]
    constants: Registers
    specials: Mapping[str, int]
    depends: frozenset[str]
    decisive: frozenset[int]


def program_of(kernel: Kernel, watch: Watch) -> Program:
    """Compile the control flow of a kernel, counting the instructions selected by `watch`."""
    return _Compiler(kernel, watch).program()


class _Compiler:
    def __init__(self, kernel: Kernel, watch: Watch) -> None:
        self.instructions = list(kernel.instructions)
        self.watched = {
            number: found
            for number, each in enumerate(self.instructions)
            if (found := watch(each)) is not False
        }
        self.slots: dict[str, int] = {}
        self.constants: Registers = []
        self.specials: dict[str, int] = {}
        self.parameters = _offsets(kernel)
        self.definitions: dict[str, list[int]] = {}
        for number, each in enumerate(self.instructions):
            for register in _results(each):
                self.definitions.setdefault(register.name, []).append(number)

    def program(self) -> Program:
        needed = self._needed()
        starts = self._starts()
        numbers = {start: number for number, start in enumerate(starts)}
        blocks = []
        for start, end in zip(starts, [*starts[1:], len(self.instructions)], strict=True):
            block = Block()
            for number in range(start, end):
                block.body += self._ops(number, needed)
            self._end(block, end, numbers)
            blocks.append(block)
        branches = (n for n, each in enumerate(self.instructions) if each.parts[0] in _BRANCHES)
        decisive = frozenset({*needed, *self.watched, *branches})
        depends = frozenset(self.specials)
        loops = _loops(blocks)
        return Program(blocks, loops, self.constants, self.specials, depends, decisive)

    def _needed(self) -> set[int]:
        """Return the numbers of the instructions that decide control flow."""
        waiting: list[Register] = []
        for number, each in enumerate(self.instructions):
            if number in self.watched or each.parts[0] in _BRANCHES:
                waiting += [each.guard] if each.guard is not None else []
            if not isinstance(value := self.watched.get(number, True), bool):
                waiting += registers_in(value)
        needed: set[int] = set()
        while waiting:
            for number in self.definitions.get(waiting.pop().name, ()):
                if number not in needed:
                    needed.add(number)
                    each = self.instructions[number]
                    waiting += [each.guard] if each.guard is not None else []
                    if _computes(each):
                        waiting += [
                            r for operand in each.operands[1:] for r in registers_in(operand)
                        ]
        return needed

    def _starts(self) -> list[int]:
        starts = {0}
        for number, each in enumerate(self.instructions):
            if each.parts[0] in _BRANCHES:
                starts.add(number + 1)
                starts.update(o.target for o in each.operands if isinstance(o, Label))
        return sorted(start for start in starts if start < len(self.instructions))

    def _end(self, block: Block, end: int, numbers: Mapping[int, int]) -> None:
        last = self.instructions[end - 1]
        following = numbers.get(end)
        block.taken = block.other = following
        name = last.parts[0]
        if name == "bra":
            targets = [each.target for each in last.operands if isinstance(each, Label)]
            block.taken = numbers.get(targets[0]) if targets else None
        elif name in _ENDS:
            block.taken = None
        elif name == "brx":
            # The table of branch targets is not read.
            block.body.append(Op(_refuse(last.line), ()))
        if name in ("bra", *_ENDS) and last.guard is not None:
            block.guard, block.negated = self._slot(last.guard.name), last.guard.negated
            block.line = last.line

    def _ops(self, number: int, needed: set[int]) -> list[Op]:
        each = self.instructions[number]
        ops: list[Op] = []
        if number in needed:
            op = self._result(each)
            ops.append(op if each.guard is None else self._guarded(op, each.guard))
        if number in self.watched:
            ops.append(self._count(number, each))
        return ops

    def _result(self, each: Instruction) -> Op:
        targets = tuple(self._slot(register.name) for register in _results(each))
        if each.parts[0] == "elect" and len(targets) == 2:
            elected = self._special("elect")
            return Op(_copied(targets[1], elected), (elected,), targets[1:])
        if "try_wait" in each.parts or "test_wait" in each.parts:
            return Op(_constant(targets, 1), (), targets)
        if "is_canceled" in each.parts:
            return Op(_constant(targets, 0), (), targets)
        compute = _operation(each) if len(targets) == 1 else None
        if compute is None:
            return Op(_constant(targets, None), (), targets)
        operands = each.operands[1:2] if each.parts[0] == "shfl" else each.operands[1:]
        sources = tuple(self._operand(operand) for operand in operands)
        return Op(_computed(targets[0], compute, sources, each.line), sources, targets)

    def _guarded(self, op: Op, guard: Register) -> Op:
        slot, negated = self._slot(guard.name), guard.negated

        def guarded(registers: Registers, found: Counter[Event]) -> None:
            held = registers[slot]
            if held is None:
                for target in op.writes:
                    registers[target] = None
            elif bool(held) != negated:
                op.run(registers, found)

        return Op(guarded, (slot, *op.reads, *op.writes), op.writes)

    def _count(self, number: int, each: Instruction) -> Op:
        wanted = self.watched[number]
        slot = None if isinstance(wanted, bool) else self._operand(wanted)
        guard = None if each.guard is None else self._slot(each.guard.name)
        negated, line = each.guard is not None and each.guard.negated, each.line

        def count(registers: Registers, found: Counter[Event]) -> None:
            if guard is not None:
                held = registers[guard]
                if held is None:
                    raise UnknownWayError(
                        f"whether line {line} of the PTX is executed depends on data"
                    )
                if bool(held) == negated:
                    return
            found[Event(number, None if slot is None else registers[slot])] += 1

        reads = tuple(each for each in (slot, guard) if each is not None)
        return Op(count, reads, is_count=True)

    def _slot(self, name: str) -> int:
        if name not in self.slots:
            self.slots[name] = self._constant_slot(None)
        return self.slots[name]

    def _constant_slot(self, value: int | None) -> int:
        self.constants.append(value)
        return len(self.constants) - 1

    def _special(self, name: str) -> int:
        if name not in self.specials:
            self.specials[name] = self._constant_slot(None)
        return self.specials[name]

    def _operand(self, operand: Operand) -> int:
        if isinstance(operand, Register) and not operand.negated:
            return self._slot(operand.name)
        if isinstance(operand, Special):
            return self._special(operand.name)
        if isinstance(operand, Immediate) and operand.width is None:
            return self._constant_slot(operand.bits)
        if isinstance(operand, Symbol) and operand.name in self.parameters:
            return self._constant_slot(_PARAMETERS + self.parameters[operand.name] + operand.offset)
        return self._constant_slot(None)


def parameter_offset(kernel: Kernel, address: int) -> tuple[int, int] | None:
    """Return the number of the parameter that contains an address, and the offset, or None."""
    for number, (parameter, start) in enumerate(
        zip(kernel.parameters, _offsets(kernel).values(), strict=True)
    ):
        offset = address - _PARAMETERS - start
        if 0 <= offset < max(parameter.size, 1):
            return number, offset
    return None


def _offsets(kernel: Kernel) -> dict[str, int]:
    """Return the offsets of parameters, spaced far apart."""
    return {parameter.name: number << 32 for number, parameter in enumerate(kernel.parameters)}


def _results(each: Instruction) -> list[Register]:
    is_wgmma = each.opcode.startswith("wgmma.mma")
    if not each.operands or (each.parts[0] in _WITHOUT_RESULT and not is_wgmma):
        return []
    first = each.operands[0]
    if isinstance(first, Pair):
        return [r for part in (first.first, first.second) for r in registers_in(part)]
    return [] if isinstance(first, Address) else registers_in(first)


def _operation(each: Instruction) -> Operation | None:
    """Return the operation of an instruction; a shuffle from lane 0 acts as a copy."""
    if each.opcode.startswith("shfl.sync.idx"):
        lanes = each.operands[2:3]
        return (lambda a: a) if lanes == (Immediate(0),) else None
    return operation(each.opcode)


def _computes(each: Instruction) -> bool:
    return _operation(each) is not None


def _computed(target: int, compute: Operation, sources: tuple[int, ...], line: int) -> _Run:
    def run(registers: Registers, _: Counter[Event]) -> None:
        values = [registers[source] for source in sources]
        try:
            registers[target] = None if None in values else compute(*values)
        except ZeroDivisionError as error:
            raise UnknownWayError(f"line {line} of the PTX divides by zero") from error

    return run


def _constant(targets: tuple[int, ...], value: int | None) -> _Run:
    def run(registers: Registers, _: Counter[Event]) -> None:
        for target in targets:
            registers[target] = value

    return run


def _copied(target: int, source: int) -> _Run:
    def run(registers: Registers, _: Counter[Event]) -> None:
        registers[target] = registers[source]

    return run


def _refuse(line: int) -> _Run:
    def run(_: Registers, __: Counter[Event]) -> None:
        raise UnknownWayError(f"the branch in line {line} of the PTX has a table of targets")

    return run


def _loops(blocks: list[Block]) -> dict[int, Loop]:
    """Return the loops of a program by the number of their first block."""
    found = natural_loops([block.after for block in blocks])
    live = _live(blocks)
    loops = {}
    for header, bits in found.items():
        members = [block for number, block in enumerate(blocks) if bits >> number & 1]
        reads = {slot for block in members for slot in _reads(block)}
        writes = {slot for block in members for op in block.body for slot in op.writes}
        loops[header] = Loop(
            bits,
            tuple(sorted(reads & live[header])),
            tuple(sorted(writes)),
            _way_out(bits, members),
        )
    return loops


def _way_out(bits: int, members: list[Block]) -> int | None:
    """Return the only exit block of a loop; None if it has several or counts anything."""
    if any(op.is_count for block in members for op in block.body):
        return None
    ways = {way for block in members for way in block.after if not bits >> way & 1}
    ends_here = any(not block.after for block in members)
    return ways.pop() if len(ways) == 1 and not ends_here else None


def _reads(block: Block) -> set[int]:
    guard = () if block.guard is None else (block.guard,)
    return {*guard, *(slot for op in block.body for slot in op.reads)}


def _live(blocks: list[Block]) -> list[set[int]]:
    """Return for each block the registers that are live at its start."""
    live: list[set[int]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for number in range(len(blocks) - 1, -1, -1):
            block = blocks[number]
            now = set().union(*(live[after] for after in block.after))
            if block.guard is not None:
                now.add(block.guard)
            for op in reversed(block.body):
                now -= set(op.writes)
                now |= set(op.reads)
            if now != live[number]:
                live[number], changed = now, True
    return live
