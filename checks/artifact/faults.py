"""Turn faults, deadlocks and races of an emulation into findings with their PTX lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile
from types import MappingProxyType

from pallasc.checks.artifact.history import History
from pallasc.checks.artifact.rules import (
    ACCUMULATOR_BEFORE_WAIT,
    FAILED_ASSERTION,
    INVALID_INSTRUCTION,
    MEMORY_LIMIT,
    MISALIGNED,
    MISSING_PROXY_FENCE,
    OPERAND_OVERWRITTEN,
)
from pallasc.checks.findings import Finding, Place, Rule
from pallasc.checks.rules import (
    BARRIER_MISUSE,
    DEADLOCK,
    OUT_OF_BOUNDS,
    RACE,
    UNFINISHED_COPY,
    UNINITIALIZED,
)
from pallasc.emulator.machine.block import Block
from pallasc.emulator.machine.deadlocks import Deadlock
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import Fault
from pallasc.emulator.machine.waits import MbarrierWait
from pallasc.emulator.machine.warp import Warp
from pallasc.emulator.program import PlanRun, program
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.threads import Access
from pallasc.emulator.races.threads import Finding as Raced
from pallasc.emulator.tensors.tensor_memory import COLUMNS
from pallasc.specs.artifacts.plan import Launch

_MOST_PLACES = 16
_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "assertion": FAILED_ASSERTION,
        "barrier-count": BARRIER_MISUSE,
        "barrier-number": BARRIER_MISUSE,
        "cluster-wait": BARRIER_MISUSE,
        "deadlock": DEADLOCK,
        "invalid-operand": INVALID_INSTRUCTION,
        "lane-mask": INVALID_INSTRUCTION,
        "mbarrier-count": BARRIER_MISUSE,
        "misaligned": MISALIGNED,
        "no-mbarrier": BARRIER_MISUSE,
        "no-tensor-map": INVALID_INSTRUCTION,
        "not-aligned": INVALID_INSTRUCTION,
        "not-uniform": INVALID_INSTRUCTION,
        "out-of-bounds": OUT_OF_BOUNDS,
        "tensor-allocation": MEMORY_LIMIT,
        "too-many-arrivals": BARRIER_MISUSE,
        "transaction-overflow": BARRIER_MISUSE,
        "trap": FAILED_ASSERTION,
    }
)
"""By the rule of the fault."""

_RACES: Mapping[str, Rule] = MappingProxyType(
    {
        "bulk-store-not-awaited": UNFINISHED_COPY,
        "copy-not-awaited": UNFINISHED_COPY,
        "mbarrier-bytes-left": BARRIER_MISUSE,
        "mbarrier-overwritten": BARRIER_MISUSE,
        "mbarrier-read": BARRIER_MISUSE,
        "mbarrier-reinitialised": BARRIER_MISUSE,
        "missing-mbarrier-fence": BARRIER_MISUSE,
        "noncoherent-load": RACE,
        "missing-proxy-fence": MISSING_PROXY_FENCE,
        "missing-tensor-fence": ACCUMULATOR_BEFORE_WAIT,
        "uninitialized-read": UNINITIALIZED,
        "wgmma-not-awaited": UNFINISHED_COPY,
        "wgmma-operand": OPERAND_OVERWRITTEN,
        "wgmma-registers": ACCUMULATOR_BEFORE_WAIT,
    }
)
"""By the emulator's rule; all others are races."""
_MOST_RACES = 24
"""The limit counts instructions; `checks.locate` then merges the findings of one source line."""
_MOST_TEXT = 80


def fault_finding(fault: Fault, machine: Machine, history: History | None = None) -> Finding:
    """Return the finding for a fault of the kernels running on a machine."""
    history = History() if history is None else history
    if isinstance(fault, Deadlock):
        return _deadlock(fault, history)
    instruction = fault.instruction
    message = fault.message.strip().rstrip(".")
    who = f"{fault.actor}: " if fault.actor is not None else ""
    cubin, kernel = running_kernel(machine)
    return Finding(
        rule=_RULES[fault.rule].name,
        message=f"{who}{message}",
        instruction=shown(instruction),
        kernel=kernel,
        cubin=cubin,
        ptx_line=instruction.line if instruction is not None else 0,
        places=tuple(_around(fault, machine, history)),
        subject=fault.rule,
    )


def _around(fault: Fault, machine: Machine, history: History) -> Iterator[Place]:
    warp = next((w for c in machine.clusters for w in c.warps if w.actor == fault.actor), None)
    if _RULES.get(fault.rule) is BARRIER_MISUSE:
        yield from history.around_fault(warp.block if warp is not None else None)
    if warp is not None and fault.place is not None:
        yield from history.before(warp, fault.place)


def _deadlock(deadlock: Deadlock, history: History) -> Finding:
    (first, place, _), *_ = deadlock.waiting
    kernel = first.block.launch.program.kernel
    instruction = kernel.instructions[place]
    groups: dict[tuple[int, str], list[str]] = {}
    for warp, at, reason in deadlock.waiting:
        groups.setdefault((at, reason), []).append(str(warp.actor))
    places = [
        Place(f"{_who(actors)} for {reason}", ptx_line=kernel.instructions[at].line, waits=True)
        for (at, reason), actors in groups.items()
    ]
    left = len(places) - _MOST_PLACES
    if left > 0:
        places[_MOST_PLACES:] = [Place(f"and {left} more groups of warps")]
    context, arrived = _context(deadlock, history)
    places += [each for each in dict.fromkeys(context) if each not in places]
    never = "" if arrived else "; nothing ever arrives at this mbarrier"
    return Finding(
        rule=DEADLOCK.name,
        message=f"{_prospects(deadlock.message)}{never}",
        instruction=shown(instruction),
        kernel=kernel.name,
        cubin=first.block.launch.cubin,
        ptx_line=instruction.line,
        places=tuple(places),
    )


def _context(deadlock: Deadlock, history: History) -> tuple[list[Place], bool]:
    """Return each warp's last steps before its wait, and the events so far at their barriers.

    The bool is False if nothing has ever arrived at the barrier that the first warp waits for.
    """
    found: list[Place] = []
    arrived = True
    barriers: set[int] = set()
    done: dict[tuple[object, ...], list[Place]] = {}  # by wait and preceding lines
    groups: dict[tuple[int, str], Block] = {}
    for number, (warp, at, reason) in enumerate(deadlock.waiting):
        if groups.setdefault((at, reason), warp.block) is warp.block:
            before = history.before(warp, at)
            done.setdefault((at, reason, *(each.ptx_line for each in before)), before)
        for split in warp.splits:
            if isinstance(split.waits, MbarrierWait) and id(split.waits.barrier) not in barriers:
                barriers.add(id(split.waits.barrier))
                known, ever = history.at_barrier(warp, split.waits)
                found += known
                arrived = arrived and (ever or number > 0)
    return [*found, *chain(*done.values()), *_ended(deadlock, history)], arrived


def _ended(deadlock: Deadlock, history: History) -> list[Place]:
    """Return the last steps of ended warps in the clusters of the waiting warps."""
    clusters = {id(w.block.cluster): w.block.cluster for w, _, _ in deadlock.waiting}
    ended: list[Warp] = [w for c in clusters.values() for w in c.warps if w.ended]
    return [place for warp in ended for place in history.at_end(warp)]


def _prospects(message: str) -> str:
    """Return a deadlock's message as one line: the first group of warps, and why it waits."""
    head, *lines = message.splitlines()
    if not lines:
        return message.strip().rstrip(".")
    who = lines[0].strip().partition(" at ")[0]
    why = [line.strip() for line in takewhile(lambda line: line.startswith("    "), lines[1:])]
    are = "is" if who.startswith("warp ") else "are"
    return f"{head.strip()} {who} {are} {'; '.join(why)}"


def _who(actors: list[str]) -> str:
    more = f" and {len(actors) - 1} more wait" if len(actors) > 1 else " waits"
    return f"{actors[0]}{more}"


def race_findings(history: History, run: PlanRun) -> list[Finding]:
    """Return the findings for the races in the kernels that a run has launched."""
    kernels: dict[int, Launch] = {}
    for step in run.plan.launches:
        for instruction in program(run.ptx_of(step), step.kernel).kernel.instructions:
            kernels[id(instruction)] = step
    return [
        _race(raced, kernels, history.between(number))
        for number, raced in enumerate(history.findings[:_MOST_RACES])
    ]


def _race(raced: Raced, kernels: Mapping[int, Launch], between: Sequence[Place]) -> Finding:
    second = raced.second
    step = kernels.get(id(second.instruction))
    places = [*between, _accessing(second)]
    if (first := raced.first) is not None:
        places.insert(0, _accessing(first))
    return Finding(
        rule=_RACES.get(raced.rule, RACE).name,
        message=f"{raced.message.strip().rstrip('.')}{_where(raced)}",
        instruction=shown(second.instruction),
        kernel=step.kernel if step is not None else "",
        cubin=step.cubin if step is not None else "",
        ptx_line=second.instruction.line,
        places=tuple(places),
        subject=raced.rule,
    )


def _accessing(access: Access) -> Place:
    return Place(f"{access.what} by {access.actor}", ptx_line=access.instruction.line)


def _where(raced: Raced) -> str:
    if raced.begin is None or raced.end is None:
        return ""
    if raced.memory == "tensor memory":
        lane, column = divmod(raced.begin, COLUMNS)
        return f"; the first is at lane {lane}, column {column} of tensor memory"
    return f"; bytes {raced.begin:#x} to {raced.end - 1:#x} of {raced.memory}"


def shown(instruction: Instruction | None) -> str:
    """Return an instruction as findings show it: its text and its line of the PTX."""
    if instruction is None:
        return ""
    text = instruction.text.strip()
    if len(text) > _MOST_TEXT:  # instructions with dozens of registers
        text = f"{text[:_MOST_TEXT].rpartition(',')[0] or text[:_MOST_TEXT]}, …"
    return f"{text}, PTX line {instruction.line}"


def running_kernel(machine: Machine) -> tuple[str, str]:
    """Return the cubin digest and the name of the kernel running on a machine."""
    if not machine.launches:
        return "", ""
    launch = machine.launches[0]
    return launch.cubin, launch.program.kernel.name
