"""What is known of a kernel once its integers are evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pallasc.checks.static.control_flow import Graph
from pallasc.checks.static.values import Atoms, Value, add, known
from pallasc.emulator.ptx.syntax import Instruction, Kernel

_LOW_14 = 0x3FFF


@dataclass(slots=True)
class Step:
    """An instruction as it is executed.

    Attributes:
        number: of the instruction.
        block: the block that it lies in.
        threads: the threads of a block that execute it, None where that is not known.
        operands: the values of its operands: of an address, its sum; of a vector, its elements.
            None for what loads, stores and products of registers move.
        coordinates: of a tensor, the minor one first.
    """

    number: int
    instruction: Instruction
    block: int
    threads: Any
    operands: list[Any]
    coordinates: list[Value] = field(default_factory=list)

    @property
    def count(self) -> int | None:
        """How many threads execute it."""
        return None if self.threads is None else int(self.threads.sum())

    def has(self, *parts: str) -> bool:
        """Tell whether the opcode has all these parts."""
        found = self.instruction.parts
        return all(part in found for part in parts)


@dataclass(eq=False, slots=True)
class Evaluation:
    """What is known of a kernel.

    Attributes:
        steps: the instructions that move data or wait, in the order of the text.
        masks: for each block, the threads that may reach it; None where it is not reached.
        regions: for each block, the first block of those that run exactly when it does, as far as
            conditions are not known; threads aside.
        guards: for each block that branches on a condition, its value.
        ends: for each block, what the registers that change hold at its end.
    """

    kernel: Kernel
    graph: Graph
    atoms: Atoms
    thread_count: int
    steps: list[Step] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)
    regions: list[int] = field(default_factory=list)
    guards: dict[int, Value] = field(default_factory=dict)
    ends: dict[int, dict[str, Value]] = field(default_factory=dict)

    def last_iteration(self, header: int, block: int) -> int | None:
        """Return the number of the last iteration in which a loop runs a block, from 0.

        None unless the loop ends with a condition on its iteration alone.
        """
        members = self.graph.loops[header]
        exits = [
            number
            for number in self.graph.order
            if members >> number & 1
            and any(not members >> each & 1 for each in self.graph.blocks[number].after)
        ]
        if len(exits) != 1 or self.graph.loop_of[exits[0]] != header:
            return None
        source = self.graph.blocks[exits[0]]
        if exits[0] not in self.guards or source.taken is None:
            return None
        leaves_if = not members >> source.taken & 1
        last = self._first(self.guards[exits[0]], header, leaves_if)
        if last is None:
            return None
        is_behind = block != exits[0] and self.graph.dominates(exits[0], block)
        return last - 1 if is_behind and last else last

    def _first(self, guard: Value, header: int, held: bool) -> int | None:
        """Return the first iteration in which a condition holds, or does not."""
        if len(guard.terms) != 1 or guard.terms[0][1] != 1 or guard.constant != 0:
            return None
        atom = guard.terms[0][0]
        if self.atoms.kind(atom) == "not":
            return self._first(self.atoms.operands[atom][0], header, not held)
        name = str(self.atoms.kind(atom))
        if name not in ("setp.eq", "setp.ne"):
            return None
        first, second = self.atoms.operands[atom]
        value = add(first, second, -1)
        if (name == "setp.eq") != held or len(value.terms) != 1:
            return None
        atom, step = value.terms[0]
        if self.atoms.descriptions[atom] != ("iteration", header):
            return None
        if not isinstance(value.constant, int) or -value.constant % step:
            return None
        last = -value.constant // step
        return last if last >= 0 else None


def plain_address(evaluation: Evaluation, descriptor: Value) -> Value | None:
    """Return the address of shared memory that a matrix descriptor holds, None if not known.

    Bits 0 to 13 are the address's bits 4 to 17 (PTX ISA 9.0, 9.7.15.5.1.2 and 9.7.16.4.1).
    """
    atoms = evaluation.atoms
    for atom, factor in descriptor.terms:
        kind = str(atoms.kind(atom))
        if factor != 1 or not kind.startswith("and."):
            continue
        inner, mask = atoms.operands[atom]
        if mask.number != _LOW_14 or len(inner.terms) != 1 or inner.terms[0][1] != 1:
            continue
        shift = inner.terms[0][0]
        if not str(atoms.kind(shift)).startswith("shr.") or atoms.operands[shift][1].number != 4:
            continue
        others = tuple(term for term in descriptor.terms if term[0] != atom)
        constant = descriptor.constant
        low = constant & _LOW_14 if isinstance(constant, int) else None
        if others or low is None:
            return None
        return add(atoms.operands[shift][0], known(16 * low))
    return None
