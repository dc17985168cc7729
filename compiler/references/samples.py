"""Reference values for a job: some elements of what the reference functions of points give.

A separate process, `reference_worker`, calls them with JAX on the CPU, since they are user code.
Points that differ only in tuned parameters have the same reference, which is called once.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from pallasc.compiler.references.comparison import PROGRAM
from pallasc.compiler.toolchain.environment import declared_values, settled
from pallasc.compiler.workers.messages import Reply, Request, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import PallascError
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.bundle.reference import MOST_VALUES, parse_reference
from pallasc.specs.spec import Variant

SEED = 0
"""Of the inputs: what `pallasc run` takes by default."""
LONGEST_S = 120
"""How long one reference may take: a job is worth having without its values."""

_MOST_BYTES = 4 << 30
"""Inputs of a reference that are made at most; JAX on the CPU takes a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled(Reply):
    """The bytes of the reference values, as a bundle has them."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Request):
    """Call the reference of a variant; `env` has its declared variables."""

    op: ClassVar[str] = "sample"
    reply: ClassVar[type[Reply]] = Sampled
    variant: Variant
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    seed: int
    env: Mapping[str, str | None] = field(default_factory=dict)


class Samples(NamedTuple):
    """Reference values of a variant: their bytes, or None and why there are none."""

    data: bytes | None
    why: str = ""


def positions_of(path: str, size: int, seed: int) -> list[int]:
    """Return which elements of an output are compared, ascending; all where there are few.

    Args:
        path: of the output; outputs of different paths have different ones.
        size: how many elements it has.
        seed: chooses them.
    """
    if size <= MOST_VALUES:
        return list(range(size))
    return sorted(random.Random(f"{seed} {path}").sample(range(size), MOST_VALUES))


def sample_references(
    points: Sequence[tuple[Variant, LaunchPlan]], *, memory_bytes: int | None = None
) -> list[Samples]:
    """Return the reference values of points, in their order.

    Args:
        points: variants and their launch plans; those that share a reference next to each other or
            not.
        memory_bytes: what the process may hold; None for no limit.
    """
    found: dict[int, Samples] = {}
    leaders: dict[object, int] = {}
    tasks: list[Task] = []
    for number, (variant, plan) in enumerate(points):
        first = leaders.setdefault(_same(variant), number)
        if first != number:
            continue
        if why := _why_none(variant, plan):
            found[number] = Samples(None, why)
        else:
            tasks.append(_task(number, variant, plan))
    plans = [plan for _, plan in points]
    for number, samples in _carried_out(tasks, plans, memory_bytes):
        found[number] = samples
    return [found[leaders[_same(variant)]] for variant, _ in points]


def _same(variant: Variant) -> object:
    """Return what is equal for variants with one reference: all but target and tuned parameters."""
    over = variant.tuning.over if variant.tuning else ()
    params = tuple((name, value) for name, value in variant.params if name not in over)
    return variant.name, variant.base_dir, params


def _why_none(variant: Variant, plan: LaunchPlan) -> str:
    """Return why there are no reference values, "" where there may be some."""
    if variant.reference is None:
        return "the spec names no reference"
    if variant.mesh:
        return "it runs on several devices"
    if sum(plan.buffers[each.buffer].size for each in plan.inputs) > _MOST_BYTES:
        return f"its inputs take more than {_MOST_BYTES >> 30} GiB"
    return ""


def _task(number: int, variant: Variant, plan: LaunchPlan) -> Task:
    env = declared_values(variant.env)
    request = Sample(variant=variant, inputs=plan.inputs, outputs=plan.outputs, seed=SEED, env=env)
    doing = f"the process that runs the reference of {variant.name}"
    return Task(number, ("", variant.base_dir, tuple(env.items())), request, doing)


def _carried_out(
    tasks: Sequence[Task], plans: Sequence[LaunchPlan], memory_bytes: int | None
) -> Iterator[tuple[int, Samples]]:
    if not tasks:
        return
    with Pool(
        1,
        settled(os.environ),
        program=PROGRAM,
        tick_s=None,
        timeout_s=LONGEST_S,
        memory_bytes=memory_bytes,
    ) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                yield task.label, _settled(reply, plans[task.label])


def _settled(reply: Reply, plan: LaunchPlan) -> Samples:
    try:
        data = reply.require(Sampled).data
        parse_reference(data, [output.shape for output in plan.outputs])
    except PallascError as error:
        return Samples(None, error.message)
    return Samples(data)
