"""Check a launch plan, and the PTX and machine code of its kernels, without running them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pallasc.checks.findings import Finding, Place
from pallasc.checks.static.asynchrony import check_asynchrony
from pallasc.checks.static.banks import check_banks
from pallasc.checks.static.barriers import check_barriers
from pallasc.checks.static.bounds import Arrays, check_bounds, name_of, written_buffers
from pallasc.checks.static.control_flow import graph_of
from pallasc.checks.static.evaluate import evaluate
from pallasc.checks.static.evaluation import Evaluation
from pallasc.checks.static.facts import Facts
from pallasc.checks.static.found import Found
from pallasc.checks.static.machine_code import LocalAccess, local_accesses
from pallasc.checks.static.read_facts import facts_of
from pallasc.checks.static.resources import (
    check_maps,
    check_memory,
    check_spills,
    check_tensor_memory,
    occupancy,
)
from pallasc.emulator.ptx.parse import read
from pallasc.emulator.ptx.syntax import Instruction, Module
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.plan import Bytes, Copy, Dim3, Fill, Launch, LaunchPlan
from pallasc.specs.garbage import collector_paused
from pallasc.specs.gpus import Target

_MOST_MODULES = 32
_MOST_KERNELS = 256


def check(
    plan: LaunchPlan,
    kernels: Sequence[KernelResources],
    ptx: Mapping[tuple[str, str], str],
    target: Target,
    read_cubin: Callable[[str], bytes] | None = None,
) -> list[Finding]:
    """Return what is wrong with the kernels of a plan, as far as that can be decided.

    Args:
        plan: the launch plan.
        kernels: the resources of its kernels.
        ptx: the PTX of kernels by the digest of their cubin and their name; others are left out.
        target: the device.
        read_cubin: returns the cubin with a digest, for kernels whose machine code tells more.

    Raises:
        UnsupportedError: something in the PTX is not understood.
    """
    with collector_paused():
        return _found_in(plan, kernels, ptx, target, read_cubin)


def _found_in(
    plan: LaunchPlan,
    kernels: Sequence[KernelResources],
    ptx: Mapping[tuple[str, str], str],
    target: Target,
    read_cubin: Callable[[str], bytes] | None,
) -> list[Finding]:
    resources = {(kernel.cubin, kernel.name): kernel for kernel in kernels}
    arrays = Arrays(tuple(plan.buffers), tuple(plan.inputs), tuple(plan.outputs))
    found: dict[Finding, None] = {}
    written: set[int] | None = set()
    for launch in plan.launches:
        kernel = resources.get((launch.cubin, launch.kernel))
        for each in check_maps(plan, launch):
            found[_finding(each, launch)] = None
        text = ptx.get((launch.cubin, launch.kernel))
        if kernel is not None:
            for each in check_memory(kernel, launch, target):
                found[_finding(each, launch)] = None
            for each in check_spills(kernel, *_lines_of_spills(kernel, text, read_cubin)):
                found[_finding(each, launch)] = None
        if text is None:
            written = None
            continue
        findings, buffers = _check_launch(_Case(text, repr(launch), arrays, launch))
        for each in findings:
            found[_finding(each, launch)] = None
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


def _lines_of_spills(
    kernel: KernelResources, text: str | None, read_cubin: Callable[[str], bytes] | None
) -> tuple[Sequence[LocalAccess] | None, Sequence[Instruction]]:
    """Return the lines that a kernel spills at, None if not known, and its instructions."""
    if not kernel.spill_bytes or text is None or read_cubin is None:
        return None, ()
    module = _parsed(text)
    instructions = next((k.instructions for k in module.kernels if k.name == kernel.name), ())
    return local_accesses(read_cubin(kernel.cubin), kernel.name), instructions


@dataclass(frozen=True, slots=True)
class _Case:
    """A launch with the PTX of its kernel: variants for several models of a GPU share it.

    Launches are compared by their `description`: tensor maps have no hash.
    """

    text: str
    description: str
    arrays: Arrays
    launch: Launch = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Code:
    """What a kernel does, whatever the sizes of arrays: variants for several sizes share it.

    `boxes` are the tensor maps, less what their arrays tell.
    """

    evaluation: Evaluation
    cluster: Dim3 | None
    boxes: tuple[Hashable, ...]
    facts: Facts = field(compare=False)


@lru_cache(_MOST_KERNELS)
def _check_launch(case: _Case) -> tuple[tuple[Found, ...], frozenset[int] | None]:
    """Return what is wrong with a kernel, and the buffers that it writes to, None if not known."""
    text, launch = case.text, case.launch
    # Of other sizes, a kernel sees whether they are 1.
    grid = launch.grid if "%nctaid" in text else _at_most_two(launch.grid)
    evaluation = _evaluated(text, launch.kernel, launch.block, grid)
    if evaluation is None:
        return (), None
    facts = facts_of(evaluation, launch)
    code = _Code(evaluation, launch.cluster, _boxes(launch), facts)
    found, conflicts = _check_code(code)
    buffers = written_buffers(facts)
    found = (*found, *check_bounds(facts, case.arrays), *conflicts)
    return found, None if buffers is None else frozenset(buffers)


@lru_cache(_MOST_MODULES)
def _check_code(code: _Code) -> tuple[tuple[Found, ...], tuple[Found, ...]]:
    """Return what is wrong with a kernel for arrays of any size, and its bank conflicts."""
    facts = code.facts
    found = (*check_tensor_memory(facts), *check_barriers(facts), *check_asynchrony(facts))
    return found, tuple(check_banks(facts))


def _boxes(launch: Launch) -> tuple[Hashable, ...]:
    return tuple(
        (number, offset, tensor.box, tensor.dtype, tensor.im2col is None)
        for number, parameter in enumerate(launch.parameters)
        if isinstance(parameter, Bytes)
        for offset, tensor in parameter.tensor_maps
    )


def _at_most_two(grid: Dim3) -> Dim3:
    x, y, z = grid
    return min(x, 2), min(y, 2), min(z, 2)


@lru_cache(_MOST_MODULES)
def _evaluated(text: str, name: str, block: Dim3, grid: Dim3) -> Evaluation | None:
    """Return what is known of a kernel, None if it has no instructions."""
    kernel = next((k for k in _parsed(text).kernels if k.name == name), None)
    if kernel is None or not kernel.instructions:
        return None
    return evaluate(kernel, graph_of(kernel), block, grid)


@lru_cache(_MOST_MODULES)
def _parsed(text: str) -> Module:
    return read(text)


def _outputs(plan: LaunchPlan, written: set[int]) -> Iterator[Found]:
    for step in plan.steps:
        if isinstance(step, Fill):
            written.add(step.buffer)
        elif isinstance(step, Copy):
            written.add(step.target)
    for binding in plan.outputs:
        buffer = plan.buffers[binding.buffer]
        if buffer.role == "output" and buffer.size and binding.buffer not in written:
            yield Found("output-not-written", f"nothing writes to {name_of(plan, binding.buffer)}")


def _finding(found: Found, launch: Launch | None) -> Finding:
    message = found.message
    if found.instruction is None and launch is not None:
        message = f"{launch.kernel}: {message}"
    return Finding(
        rule=found.rule,
        message=message,
        severity=found.severity,
        subject=found.subject,
        instruction=_text(found.instruction),
        kernel=launch.kernel if launch else "",
        cubin=launch.cubin if launch else "",
        ptx_line=found.instruction.line if found.instruction else 0,
        places=tuple(
            Place(f"{text}: {instruction.opcode}", ptx_line=instruction.line)
            for text, instruction in found.others
        ),
    )


def _text(instruction: Instruction | None) -> str:
    return f"{instruction.opcode}, PTX line {instruction.line}" if instruction else ""
