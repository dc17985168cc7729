"""Findings of what an emulation met: faults, deadlocks and races, with the lines of PTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType

from pallasc.checks.artifact.rules import FAILED_ASSERTION, INVALID_INSTRUCTION, MISALIGNED
from pallasc.checks.findings import Finding, Place, Rule
from pallasc.checks.rules import (
    BARRIER_MISUSE,
    DEADLOCK,
    OUT_OF_BOUNDS,
    RACE,
    UNFINISHED_COPY,
    UNINITIALIZED,
)
from pallasc.checks.static.rules import (
    ACCUMULATOR_BEFORE_WAIT,
    MEMORY_LIMIT,
    MISSING_PROXY_FENCE,
)
from pallasc.emulator.machine.deadlocks import Deadlock
from pallasc.emulator.machine.faults import Fault
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.ptx.syntax import Instruction
from pallasc.emulator.races.findings import Finding as Raced
from pallasc.emulator.run_plan import PlanRun, program

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
        "missing-proxy-fence": MISSING_PROXY_FENCE,
        "missing-tensor-fence": ACCUMULATOR_BEFORE_WAIT,
        "uninitialised-read": UNINITIALIZED,
        "wgmma-not-awaited": UNFINISHED_COPY,
        "wgmma-registers": ACCUMULATOR_BEFORE_WAIT,
    }
)
"""By the rule of the emulator; others are races."""
_MOST_RACES = 8


def fault_finding(fault: Fault, machine: Machine) -> Finding:
    """Return the finding that tells a fault of the kernels that run on a machine."""
    if isinstance(fault, Deadlock):
        return _deadlock(fault)
    instruction = fault.instruction
    told = fault.message.strip().rstrip(".")
    who = f"{fault.actor} " if fault.actor is not None else ""
    return Finding(
        rule=_RULES[fault.rule].name,
        message=f"{who}{told}",
        instruction=shown(instruction),
        kernel=running_kernel(machine),
        ptx_line=instruction.line if instruction is not None else 0,
    )


def _deadlock(deadlock: Deadlock) -> Finding:
    (first, place, _), *_ = deadlock.waiting
    kernel = first.block.launch.program.kernel
    instruction = kernel.instructions[place]
    groups: dict[tuple[int, str], list[str]] = {}
    for warp, at, reason in deadlock.waiting:
        groups.setdefault((at, reason), []).append(str(warp.actor))
    places = [
        Place(f"{_who(actors)} for {reason}", ptx_line=kernel.instructions[at].line)
        for (at, reason), actors in groups.items()
    ]
    left = len(places) - _MOST_PLACES
    if left > 0:
        places[_MOST_PLACES:] = [Place(f"and at {left} more places")]
    return Finding(
        rule=DEADLOCK.name,
        message=_prospects(deadlock.message),
        instruction=shown(instruction),
        kernel=kernel.name,
        ptx_line=instruction.line,
        places=tuple(places),
    )


def _prospects(message: str) -> str:
    """Return the message of a deadlock in one sentence: of the first who wait, and why for ever."""
    head, *lines = message.splitlines()
    if not lines:
        return message.strip().rstrip(".")
    who = lines[0].strip().partition(" at ")[0]
    why = [line.strip() for line in takewhile(lambda line: line.startswith("    "), lines[1:])]
    return f"{head.strip()} {who} wait {'; '.join(why)}"


def _who(actors: list[str]) -> str:
    more = f" and {len(actors) - 1} more wait" if len(actors) > 1 else " waits"
    return f"{actors[0]}{more}"


def race_findings(raced: Sequence[Raced], run: PlanRun) -> list[Finding]:
    """Return the findings that tell races of the kernels that a run has launched."""
    kernels: dict[int, str] = {}
    for step in run.plan.launches:
        for instruction in program(run.ptx_of(step), step.kernel).kernel.instructions:
            kernels[id(instruction)] = step.kernel
    return [_race(each, kernels) for each in raced[:_MOST_RACES]]


def _race(raced: Raced, kernels: Mapping[int, str]) -> Finding:
    second = raced.second
    accesses = [access for access in (raced.first, second) if access is not None]
    where = (
        "" if raced.begin is None else f", {raced.memory} from {raced.begin:#x} to {raced.end:#x}"
    )
    return Finding(
        rule=_RACES.get(raced.rule, RACE).name,
        message=f"{raced.message.strip().rstrip('.')}{where}",
        severity="note" if raced.is_warning else "error",
        instruction=shown(second.instruction),
        kernel=kernels.get(id(second.instruction), ""),
        ptx_line=second.instruction.line,
        places=tuple(Place(str(each), ptx_line=each.instruction.line) for each in accesses),
    )


def shown(instruction: Instruction | None) -> str:
    """Return an instruction as findings name it: its text, with its line of the PTX."""
    if instruction is None:
        return ""
    return f"{instruction.text.strip()} (line {instruction.line} of the PTX)"


def running_kernel(machine: Machine) -> str:
    """Return the name of the kernel that runs on a machine, "" for none."""
    return machine.launches[0].program.kernel.name if machine.launches else ""
