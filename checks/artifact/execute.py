"""Run a plan under several schedules, and find the instruction that wrote a wrong element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pallasc.checks.artifact.faults import running_kernel
from pallasc.checks.artifact.sources import Source, Sources
from pallasc.emulator.machine.block import Asynchronous
from pallasc.emulator.machine.machine import Launch, Machine, Policy
from pallasc.emulator.machine.memory import Actor, EmulationTimeout, Region
from pallasc.emulator.machine.warp import Step, Warp
from pallasc.emulator.program import PlanRun, Program
from pallasc.emulator.ptx.syntax import Instruction, Kernel
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import Binding

POISONS = (0xFF, 0x00)
"""Initial bytes of memory, alternating between schedules.

They read as NaN and zero, True and False, -1 and 0: no element of any type is the same in both.
"""
_OTHER_NAN = 0x7F

_WRITES = ("st", "red", "atom", "multimem", "cp", "call")


def policies(count: int, seed: int) -> list[Policy]:
    """Return the schedules of a check.

    In the first schedule, asynchronous operations complete only when something waits for them. In
    the others, warps take turns at random, and asynchronous operations complete at once or at
    random times. In every second schedule, starting with the first, a cluster gets all the work it
    requests.
    """
    others = [
        Policy(
            seed=seed + number,
            shuffle=True,
            eagerness=1.0 if number % 2 else 0.5,
            busy=not number % 2,
        )
        for number in range(1, count)
    ]
    return [Policy(seed=seed, busy=True), *others]


def eager() -> Policy:
    """Return the schedule in which every asynchronous operation completes at once."""
    return Policy(eagerness=1.0, busy=True)


class Element(NamedTuple):
    """An element of an output on a device."""

    device: int
    output: Binding
    at: tuple[int, ...]

    def bytes(self) -> tuple[int, int]:
        """Return the start and end of its bytes in its buffer."""
        output = self.output
        order = output.layout[::-1] if output.layout is not None else range(len(output.shape))
        shape = tuple(output.shape[d] for d in order)
        index = tuple(self.at[d] for d in order)
        number = int(np.ravel_multi_index(index, shape)) if shape else 0
        bits = parse_dtype(output.dtype).bits
        return number * bits // 8, -(-(number + 1) * bits // 8)


class Writer(NamedTuple):
    """An instruction that wrote an element. `kernel` is a cubin digest and a kernel name."""

    kernel: tuple[str, str]
    instruction: Instruction
    actor: Actor


class Origin(NamedTuple):
    """The origin of an element's value.

    Attributes:
        writer: the last instruction that wrote the element, None if no kernel changed it.
        sources: the instructions that the written value comes from.
        kernel: the kernel of `others` and `unread`, as in `Writer`; None if the element was
            written.
        others: if nothing wrote the element, the instructions that wrote other elements of its
            array.
        unread: if nothing wrote the array, the instructions that wrote memory that was never read.
        elsewhere: the kernels of the sources that are in another kernel, by the instruction's
            identity.
    """

    writer: Writer | None
    sources: Sequence[Source] = ()
    kernel: tuple[str, str] | None = None
    others: Sequence[Instruction] = ()
    unread: Sequence[Instruction] = ()
    elsewhere: Mapping[int, tuple[str, str]] = MappingProxyType({})


@dataclass(slots=True)
class Reaching(Machine):
    """A machine that records which instructions it executes.

    Attributes:
        left: the instructions that no run has executed yet, by cubin digest and kernel name; shared
            between runs.
    """

    left: dict[tuple[str, str], dict[int, Instruction]] = field(default_factory=dict)

    def run(self, launches: Sequence[Launch]) -> None:
        """Run kernels, and record the first execution of each instruction."""
        for launch in launches:
            if isinstance(launch.program, Program):
                kernel = launch.program.kernel
                key = (launch.cubin, kernel.name)
                left = self.left.setdefault(key, dict(enumerate(kernel.instructions)))
                if left:
                    launch.program = replace(launch.program, code=_noting(launch.program, left))
        Machine.run(self, launches)


def _noting(program: Program, left: dict[int, Instruction]) -> list[Step]:
    """Return code whose steps remove themselves from `left` when first executed."""
    code = list(program.code)

    def noting(step: Step) -> Step:
        def first(w: Warp, place: int) -> int:
            left.pop(place, None)
            code[place] = step
            return step(w, place)

        return first

    for place in left:
        code[place] = noting(code[place])
    return code


@dataclass(slots=True)
class _Watching(Machine):
    """A machine that records which instruction last changed the watched bytes."""

    watched: Callable[[], bytes] = bytes
    writer: Writer | None = field(default=None)
    kernels: dict[tuple[str, str], Kernel] = field(default_factory=dict)

    def run(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            if isinstance(launch.program, Program):
                kernel = launch.program.kernel
                self.kernels[launch.cubin, kernel.name] = kernel
                launch.program = self._looking(launch.program)
        Machine.run(self, launches)

    def finish(self, operation: Asynchronous) -> None:
        before = self.watched()
        Machine.finish(self, operation)
        if self.watched() != before:
            self.writer = Writer(running_kernel(self), operation.instruction, operation.actor)

    def _looking(self, program: Program) -> Program:
        instructions = program.kernel.instructions
        code = [
            self._step(step, each) if each.parts[0] in _WRITES else step
            for step, each in zip(program.code, instructions, strict=False)
        ]
        return replace(program, code=(*code, *program.code[len(code) :]))

    def _step(self, step: Step, instruction: Instruction) -> Step:
        def looking(w: Warp, place: int) -> int:
            before, writer = self.watched(), self.writer
            following = step(w, place)
            # A wait may have completed the operation that wrote the bytes.
            if self.watched() != before and self.writer is writer:
                self.writer = Writer(running_kernel(self), instruction, w.actor)
            return following

        return looking


def find_origin(
    artifact: Artifact,
    texts: Mapping[str, str],
    inputs: Sequence[Sequence[Any]],
    policy: Policy,
    element: Element,
    deadline_s: float | None = None,
) -> Origin | None:
    """Run a plan again to find the origin of an element; None if the time runs out first."""
    sources = Sources()
    machine = _Watching(policy, observer=sources, deadline=deadline_s)
    # A different poison than in the first run, so that writing NaN or zeros counts as a change.
    run = PlanRun(artifact, machine, texts, poison=_OTHER_NAN)
    begin, end = element.bytes()

    def buffer() -> Region:
        return run.buffers[element.device][element.output.buffer]

    machine.watched = lambda: buffer().data[begin:end].tobytes()
    try:
        run.run(inputs)
    except EmulationTimeout:
        return None
    kernel_of = {id(each): key for key, k in machine.kernels.items() for each in k.instructions}
    codes = list(machine.kernels.values())
    if (writer := machine.writer) is not None:
        made = sources.behind(writer.instruction, codes)
        return Origin(writer, made, elsewhere=_elsewhere(made, writer.kernel, kernel_of))
    others = sources.writers(buffer())
    unread = [] if others else sources.unread()
    first = next(iter([*others, *unread]), None)
    kernel = kernel_of.get(id(first))
    if kernel is None:
        return Origin(None)
    others = [each for each in others if kernel_of.get(id(each)) == kernel]
    unread = [each for each in unread if kernel_of.get(id(each)) == kernel]
    made = [source for each in others for source in sources.behind(each, codes)]
    return Origin(None, made, kernel, others, unread, _elsewhere(made, kernel, kernel_of))


def _elsewhere(
    made: Sequence[Source], kernel: tuple[str, str], kernel_of: Mapping[int, tuple[str, str]]
) -> dict[int, tuple[str, str]]:
    places = {id(each.instruction): kernel_of[id(each.instruction)] for each in made}
    return {place: other for place, other in places.items() if other != kernel}
