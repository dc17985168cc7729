"""Evaluate the integers of a kernel: addresses, predicates, and which threads reach what.

Each instruction that matters is looked at once. In a loop, a register that every iteration adds the
same number to is a multiple of the iteration's number; others that change are atoms of the loop's
first block.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from pallasc.checks.static.control_flow import Graph
from pallasc.checks.static.evaluation import Evaluation, Step
from pallasc.checks.static.operations import registers_of
from pallasc.checks.static.slices import role_of, slice_of
from pallasc.checks.static.values import (
    Atoms,
    Value,
    add,
    as_mask,
    key_of,
    known,
)
from pallasc.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Kernel,
    Operand,
    Register,
    Special,
    Symbol,
    Vector,
)

_CLOCKS = {
    *("%clock", "%clock_hi", "%clock64"),
    *("%globaltimer", "%globaltimer_lo", "%globaltimer_hi"),
    *(f"%pm{number}{part}" for number in range(8) for part in ("", "_64")),
}
"""Special registers that have another value each time they are read."""


def evaluate(
    kernel: Kernel, graph: Graph, block: tuple[int, int, int], grid: tuple[int, int, int]
) -> Evaluation:
    """Evaluate a kernel that is launched with blocks and a grid of these sizes."""
    return _Evaluator(kernel, graph, block, grid).run()


class _Evaluator:
    def __init__(
        self,
        kernel: Kernel,
        graph: Graph,
        block: tuple[int, int, int],
        grid: tuple[int, int, int],
    ) -> None:
        self.kernel, self.graph, self.block, self.grid = kernel, graph, block, grid
        self.threads = block[0] * block[1] * block[2]
        self.atoms = Atoms()
        self.env: dict[str, Value] = {}
        self.specials: dict[str, Value] = {}
        self.readings = 0
        self.result = Evaluation(kernel, graph, self.atoms, self.threads)
        self.everyone = np.ones(self.threads, bool)
        self.thread_index = np.arange(self.threads, dtype=np.int64)
        self.slice, self.definitions, self.changing = slice_of(kernel.instructions)
        self.ends = self.result.ends

    def run(self) -> Evaluation:
        result, graph = self.result, self.graph
        result.masks = [None] * len(graph.blocks)
        result.regions = list(range(len(graph.blocks)))
        inside = {
            block: list(numbers)
            for block, numbers in groupby(self.slice, graph.block_of.__getitem__)
        }
        edges: dict[tuple[int, int], Any] = {}
        exact: dict[tuple[int, int], bool] = {}
        for number in graph.order:
            block = graph.blocks[number]
            before = [each for each in block.before if (each, number) in edges]
            masks = [edges[each, number] for each in before]
            mask = self.everyone if number == 0 else _union(masks)
            if mask is None or not mask.any():
                continue
            result.masks[number] = mask
            result.regions[number] = self._region(number, before, exact)
            self._enter(number, before)
            for index in inside.get(number, ()):
                self._step(index, number, mask)
            if self.changing:
                self.ends[number] = {r: self.env[r] for r in self.changing if r in self.env}
            self._leave(number, mask, edges, exact)
        result.steps.sort(key=lambda step: step.number)
        return result

    # ---- control flow

    def _leave(self, number: int, mask: Any, edges: dict[tuple[int, int], Any], exact: Any) -> None:
        block = self.graph.blocks[number]
        guard = None if block.condition is None else self.read(block.condition)
        if guard is not None:
            self.result.guards[number] = guard
        for target, is_taken in ((block.taken, True), (block.other, False)):
            if target is None or self.graph.is_back(number, target):
                continue
            if guard is None:
                edges[number, target], exact[number, target] = mask, True
            elif guard.is_known:
                held = as_mask(guard.constant, self.threads)
                edges[number, target] = mask & (held if is_taken else ~held)
                exact[number, target] = True
            else:
                excluded = self._certainly(guard, held=not is_taken)
                reaching = mask if excluded is None else mask & ~excluded
                earlier = edges.get((number, target))
                edges[number, target] = reaching if earlier is None else earlier | reaching
                exact[number, target] = False

    def _certainly(self, guard: Value, *, held: bool) -> Any:
        """Return the threads for which a condition that is not known holds, or does not.

        `x | thread >= 32` holds in all warps but the first. None where no part of it is known.
        """
        if guard.is_known:
            mask = as_mask(guard.constant, self.threads)
            return mask if held else ~mask
        if len(guard.terms) != 1 or guard.terms[0][1] != 1:
            return None
        atom = guard.terms[0][0]
        kind, *joined = self.atoms.descriptions[atom]
        operands = self.atoms.operands[atom]
        if kind == "not":
            return self._certainly(operands[0], held=not held)
        if kind in ("and.pred", "or.pred"):
            joined = [kind.partition(".")[0]]
        elif kind != "joined":
            return None
        if joined != ["or" if held else "and"]:
            return None
        return _union(
            [m for m in (self._certainly(o, held=held) for o in operands) if m is not None]
        )

    def _region(self, number: int, before: list[int], exact: dict[tuple[int, int], bool]) -> int:
        """Return the region of a block: that of a dominator, if nothing unknown lies between."""
        graph = self.graph
        if number in graph.loops:
            return number
        others = graph.dominators[number] & ~(1 << number)
        loop = graph.loop_of[number]
        for dominator in reversed(graph.order):
            if not others >> dominator & 1 or graph.loop_of[dominator] != loop:
                continue
            is_only_way = before == [dominator] and exact[dominator, number]
            if is_only_way or graph.post_dominators[dominator] >> number & 1:
                return self.result.regions[dominator]
            return number
        return number

    # ---- registers that change

    def _enter(self, number: int, before: list[int]) -> None:
        """Set the changing registers to what they hold when a block begins."""
        if not self.changing or number == 0:
            return
        members = self.graph.loops.get(number)
        ends = [self.ends[each] for each in before if each in self.ends]
        if members is None and len(ends) == 1:
            for register in self.changing.difference(ends[0]):
                self.env.pop(register, None)
            self.env.update(ends[0])
            return
        for register in self.changing:
            values = [end[register] for end in ends if register in end]
            if not values:
                self.env.pop(register, None)
                continue
            first = values[0]
            alike = len(values) == len(ends)
            if alike and len(values) > 1:
                key = key_of(first)
                alike = all(key_of(value) == key for value in values[1:])
            if members is not None and self._defined_in(register, members):
                step = self._increment(register, members) if alike else None
                if step is None:
                    self.env[register] = self.atoms.value("phi", number, register)
                else:
                    self.env[register] = add(first, self.atoms.value("iteration", number), step)
            else:
                self.env[register] = first if alike else self.atoms.value("phi", number, register)

    def _defined_in(self, register: str, members: int) -> bool:
        block_of = self.graph.block_of
        return any(members >> block_of[place] & 1 for place in self.definitions[register])

    def _increment(self, register: str, members: int) -> int | None:
        """Return what each iteration of a loop adds to a register, None if that is not known."""
        block_of, instructions = self.graph.block_of, self.kernel.instructions
        places = [p for p in self.definitions[register] if members >> block_of[p] & 1]
        if len(places) != 1:
            return None
        instruction = instructions[places[0]]
        if instruction.guard is not None:
            return None
        if instruction.opcode.startswith("mov.") and isinstance(instruction.operands[1], Register):
            inner = self.definitions.get(instruction.operands[1].name, [])
            if len(inner) != 1 or not members >> block_of[inner[0]] & 1:
                return None
            places = inner
            instruction = instructions[inner[0]]
        if instruction.guard is not None or not instruction.opcode.startswith(("add.s", "add.u")):
            return None
        _, first, second = instruction.operands
        if not (isinstance(first, Register) and first.name == register):
            return None
        # It must happen in each iteration, and once.
        inside = self.graph.loop_of[block_of[places[0]]]
        header = next(h for h, m in self.graph.loops.items() if m == members)
        latches = [b for b in self.graph.blocks[header].before if self.graph.is_back(b, header)]
        if inside != header or not all(
            self.graph.dominates(block_of[places[0]], latch) for latch in latches
        ):
            return None
        return self.read(second).number if isinstance(second, Immediate) else None

    # ---- instructions

    def _step(self, index: int, block: int, mask: Any) -> None:
        instruction = self.kernel.instructions[index]
        role = role_of(instruction.opcode)
        if role.is_watched:
            self._watch(index, instruction, block, mask, has_data=role.has_data)
        if role.handler is not None:
            kept = self._kept(instruction, index, mask)
            role.handler(self, instruction, index)
            self.env.update(kept)
        elif self.changing and role.has_result and instruction.operands:
            for register in registers_of(instruction.operands[0]):
                if register.name in self.changing:
                    self.env[register.name] = self.atoms.value("result", index, register.name)

    def _kept(self, instruction: Instruction, index: int, mask: Any) -> dict[str, Value]:
        """Return what registers hold behind an instruction whose guard does not hold everywhere.

        Registers that nothing else writes have no other value, so those are not among them.
        """
        if instruction.guard is None or not self.changing or not instruction.operands:
            return {}
        registers = [each.name for each in registers_of(instruction.operands[0])]
        changing = [name for name in registers if name in self.changing]
        guard = self.read(instruction.guard)
        if guard.is_known:
            held = mask & as_mask(guard.constant, self.threads)
            if (held == mask).all():
                return {}
            if not held.any():
                return {name: self.env[name] for name in changing if name in self.env}
        return {name: self.atoms.value("result", index, name) for name in changing}

    def _watch(
        self, index: int, instruction: Instruction, block: int, mask: Any, *, has_data: bool
    ) -> None:
        threads = mask
        if instruction.guard is not None:
            guard = self.read(instruction.guard)
            threads = None
            if guard.is_known:
                threads = mask & as_mask(guard.constant, self.threads)
                if not threads.any():
                    return
        operands: list[Any] = []
        coordinates: list[Value] = []
        for operand in instruction.operands:
            if isinstance(operand, Address):
                operands.append(add(self.read(operand.base), known(operand.offset)))
                if operand.coordinates:
                    coordinates = [self.read(each) for each in operand.coordinates]
            else:
                operands.append(None if has_data else self.operand(operand))
        self.result.steps.append(Step(index, instruction, block, threads, operands, coordinates))

    def operand(self, operand: Operand) -> Any:
        if isinstance(operand, Address):
            return add(self.read(operand.base), known(operand.offset))
        if isinstance(operand, Vector):
            return operand.elements
        return self.read(operand)

    def read(self, operand: Operand) -> Value:
        """Return the value of an operand."""
        if isinstance(operand, Register):
            _, _, name, negated = operand
            value = self.env.get(name)
            if value is None:
                value = self.atoms.value("register", name)
            return self.invert(value) if negated else value
        if isinstance(operand, Immediate):
            return known(operand.bits)
        if isinstance(operand, Symbol):
            return Value(((self.atoms.atom("symbol", operand.name), 1),), operand.offset)
        if isinstance(operand, Special):
            if operand.name in _CLOCKS:
                self.readings += 1
                return self.atoms.value("special", operand.name, self.readings)
            if (found := self.specials.get(operand.name)) is None:
                found = self.specials[operand.name] = self._special(operand.name)
            return found
        return self.atoms.value("operand", repr(operand))

    def invert(self, value: Value) -> Value:
        """Return the opposite of a predicate."""
        if value.is_known:
            constant = value.constant
            return known(int(not constant) if isinstance(constant, int) else ~constant.astype(bool))
        return self.atoms.value("not", operands=(value,))

    def _special(self, name: str) -> Value:
        x, y, _ = self.block
        index = self.thread_index
        kind, _, axis = name[1:].partition(".")
        if kind == "tid":
            parts = {"x": index % x, "y": index // x % y, "z": index // (x * y)}
            return known(parts[axis])
        if kind == "ntid":
            return known(self.block["xyz".index(axis)])
        if kind == "nctaid":
            return known(self.grid["xyz".index(axis)])
        if kind == "laneid":
            return known(index % 32)
        if kind == "ctaid" and self.grid["xyz".index(axis)] == 1:
            return known(0)
        return self.atoms.value("special", name)

    def set(self, operand: Operand, value: Value) -> None:
        """Set a register."""
        if isinstance(operand, Register):
            self.env[operand.name] = value

    def unknown(self, instruction: Instruction, index: int) -> None:
        """Make results what this instruction gives for these operands."""
        values = [self.read(each) for each in instruction.operands[1:]]
        name = instruction.opcode
        if name.startswith(("and.b", "or.b", "xor.b", "shr.u", "shl.b")):
            name = name.rstrip("0123456789")  # of any width
        value = self.atoms.value(name, operands=tuple(values))
        self.set(instruction.operands[0], value)


def _union(masks: list[Any]) -> Any:
    found = None
    for mask in masks:
        found = mask if found is None else found | mask
    return found
