"""Check a launch plan and the PTX of its kernels without running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from pallasc.checks.findings import Finding, Place
from pallasc.checks.static.asynchrony import check_asynchrony
from pallasc.checks.static.banks import check_banks
from pallasc.checks.static.barriers import check_barriers
from pallasc.checks.static.bounds import check_bounds, name_of, written_buffers
from pallasc.checks.static.control_flow import Graph, graph_of
from pallasc.checks.static.evaluate import evaluate
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found
from pallasc.checks.static.read_facts import facts_of
from pallasc.checks.static.resources import check_maps, check_memory, check_spills, occupancy
from pallasc.emulator.ptx.parse import parse
from pallasc.emulator.ptx.syntax import Instruction, Kernel, Module
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.plan import Copy, Fill, Launch, LaunchPlan
from pallasc.specs.garbage import collector_paused
from pallasc.specs.gpus import Target

_MOST_MODULES = 256


def check(
    plan: LaunchPlan,
    kernels: Sequence[KernelResources],
    ptx: Mapping[tuple[str, str], str],
    target: Target,
) -> list[Finding]:
    """Return what is wrong with the kernels of a plan, as far as that can be decided.

    Args:
        plan: the launch plan.
        kernels: the resources of its kernels.
        ptx: the PTX of kernels by the digest of their cubin and their name; others are left out.
        target: the device.

    Raises:
        UnsupportedError: something in the PTX is not understood.
    """
    with collector_paused():
        return _found_in(plan, kernels, ptx, target)


def _found_in(
    plan: LaunchPlan,
    kernels: Sequence[KernelResources],
    ptx: Mapping[tuple[str, str], str],
    target: Target,
) -> list[Finding]:
    resources = {(kernel.cubin, kernel.name): kernel for kernel in kernels}
    found: dict[Finding, None] = {}
    written: set[int] | None = set()
    for launch in plan.launches:
        kernel = resources.get((launch.cubin, launch.kernel))
        facts = _facts(launch, ptx)
        for each in _check_launch(plan, launch, kernel, facts, target):
            found[_finding(each, launch)] = None
        buffers = written_buffers(facts) if facts is not None else None
        written = None if written is None or buffers is None else written | buffers
    if written is not None:
        found.update((_finding(each, None), None) for each in _outputs(plan, written))
    return list(found)


def notes_of(
    plan: LaunchPlan, kernels: Sequence[KernelResources], target: Target
) -> tuple[str, ...]:
    """Return how the kernels of a plan fill the device."""
    resources = {(kernel.cubin, kernel.name): kernel for kernel in kernels}
    notes: dict[str, None] = {}
    mosaic = [launch for launch in plan.launches if launch.origin == "mosaic"]
    for launch in mosaic:
        kernel = resources.get((launch.cubin, launch.kernel))
        if kernel is not None and (fill := occupancy(kernel, launch, target)):
            notes[f"{launch.kernel}: {fill}" if len(mosaic) > 1 else str(fill)] = None
    return tuple(notes)


def _facts(launch: Launch, ptx: Mapping[tuple[str, str], str]) -> Facts | None:
    text = ptx.get((launch.cubin, launch.kernel))
    if text is None:
        return None
    module = _parsed(text)
    kernel = next((k for k in module.kernels if k.name == launch.kernel), None)
    if kernel is None or not kernel.instructions:
        return None
    return facts_of(evaluate(kernel, _graph(text, kernel.name), launch.block, launch.grid), launch)


@lru_cache(_MOST_MODULES)
def _parsed(text: str) -> Module:
    return parse(text)


@lru_cache(_MOST_MODULES)
def _graph(text: str, name: str) -> Graph:
    kernel: Kernel = _parsed(text).kernel(name)
    return graph_of(kernel)


def _check_launch(
    plan: LaunchPlan,
    launch: Launch,
    kernel: KernelResources | None,
    facts: Facts | None,
    target: Target,
) -> Iterator[Found]:
    yield from check_maps(plan, launch)
    if kernel is not None:
        yield from check_memory(kernel, facts, target)
        yield from check_spills(kernel)
    if facts is None:
        return
    yield from check_barriers(facts)
    yield from check_asynchrony(facts)
    yield from check_bounds(facts, plan)
    yield from check_banks(facts)


def _outputs(plan: LaunchPlan, written: set[int]) -> Iterator[Found]:
    for step in plan.steps:
        if isinstance(step, Fill):
            written.add(step.buffer)
        elif isinstance(step, Copy):
            written.add(step.target)
    for binding in plan.outputs:
        buffer = plan.buffers[binding.buffer]
        if buffer.role == "output" and buffer.size and binding.buffer not in written:
            yield Found("output-not-written", f"nothing writes to {name_of(plan, binding.buffer)}.")


def _finding(found: Found, launch: Launch | None) -> Finding:
    message = found.message
    if found.instruction is None and launch is not None:
        message = f"{launch.kernel}: {message}"
    return Finding(
        rule=found.rule,
        message=message,
        severity=found.severity,
        instruction=_text(found.instruction),
        kernel=launch.kernel if launch else "",
        ptx_line=found.instruction.line if found.instruction else 0,
        places=tuple(
            Place(f"{text}: {_text(instruction)}", ptx_line=instruction.line)
            for text, instruction in found.others
        ),
    )


def _text(instruction: Instruction | None) -> str:
    return f"{instruction.opcode}, PTX line {instruction.line}" if instruction else ""
