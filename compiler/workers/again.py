"""Compile variants again for what no artifact holds.

These are the user's source lines of PTX, and the PTX of the kernels that XLA makes around Mosaic's,
whose cubins come without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pallasc.cache.store import Store
from pallasc.compiler.lowering.line_tables import LineTable
from pallasc.compiler.toolchain.setup import Setup, declared_values
from pallasc.compiler.workers.messages import (
    FindLines,
    FindPtx,
    Introduction,
    LinesFound,
    PtxFound,
    Reply,
    Request,
    Task,
)
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

R = TypeVar("R", bound=Reply)

Tables = Mapping[str, LineTable]
"""By the digest of the PTX."""
Texts = Mapping[str, str]
"""PTX by the digest of the cubin, as `PlanRun` takes it."""


def find_lines(
    kernels: Sequence[tuple[Variant, Mapping[str, str]]],
    setup: Setup,
    store: Store,
    *,
    code: Sequence[Mapping[str, str]] | None = None,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Tables | PallascError]:
    """Return the source lines of the kernels of variants.

    A variant that fails, takes too long, or gives other code has its error in the place of tables.

    Args:
        kernels: the variants, each with the PTX that ships, by digest.
        setup: the toolchain.
        store: has the digests of its files.
        code: for each variant, the digests of the machine code that ships, by the PTX's digest:
            the machine code must be equal, too.
        jobs: how many are compiled at the same time.
        timeout_s: time limit of one.

    Raises:
        ToolError: a compiling process cannot be started.
    """

    def request(number: int, env: Mapping[str, str | None]) -> FindLines:
        variant, ptx = kernels[number]
        return FindLines(variant=variant, ptx=ptx, env=env, code=code[number] if code else {})

    variants = [variant for variant, _ in kernels]
    tasks = _tasks(variants, request, "finds the lines of")
    found = _replies(tasks, LinesFound, setup, store, jobs, timeout_s)
    return [reply.tables if isinstance(reply, LinesFound) else reply for reply in found]


def without_ptx(artifact: Artifact) -> dict[str, tuple[str, ...]]:
    """Return the kernels of an artifact that come without PTX, by the digest of their cubin."""
    names: dict[str, tuple[str, ...]] = {}
    for kernel in artifact.kernels:
        if kernel.ptx is None:
            names[kernel.cubin] = (*names.get(kernel.cubin, ()), kernel.name)
    return names


def find_ptx(
    compiled: Sequence[tuple[Variant, Artifact]],
    setup: Setup,
    store: Store,
    *,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Texts | PallascError]:
    """Return the PTX that variants' artifacts lack, or why it cannot be had.

    Only variants whose artifacts lack some are compiled.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    lacking = [n for n, (_, artifact) in enumerate(compiled) if without_ptx(artifact)]

    def request(number: int, env: Mapping[str, str | None]) -> FindPtx:
        variant, artifact = compiled[lacking[number]]
        return FindPtx(variant=variant, cubins=without_ptx(artifact), env=env)

    variants = [compiled[number][0] for number in lacking]
    tasks = _tasks(variants, request, "finds the PTX of XLA's kernels in")
    replies = _replies(tasks, PtxFound, setup, store, jobs, timeout_s)
    found: list[Texts | PallascError] = [{} for _ in compiled]
    for number, reply in zip(lacking, replies, strict=True):
        found[number] = reply.ptx if isinstance(reply, PtxFound) else reply
    return found


def _tasks(
    variants: Sequence[Variant],
    make_request: Callable[[int, Mapping[str, str | None]], Request],
    purpose: str,
) -> list[Task]:
    tasks = []
    for number, variant in enumerate(variants):
        declared = declared_values(variant.env)
        group = (variant.target.arch, variant.base_dir, tuple(declared.items()))
        doing = f"the process that {purpose} {variant.id}"
        tasks.append(Task(number, group, make_request(number, declared), doing))
    return tasks


def _replies(
    tasks: Sequence[Task],
    kind: type[R],
    setup: Setup,
    store: Store,
    jobs: int,
    timeout_s: float | None,
) -> list[R | PallascError]:
    """Return the reply to each task, in order, or the error in its place."""
    if not tasks:
        return []
    replies: dict[int, R | PallascError] = {}
    context = Introduction.of(setup, setup.context(store), store)
    with Pool(jobs, setup.environment, context, timeout_s=timeout_s, tick_s=None) as pool:
        for _, task, answer in pool.run(tasks):
            if task is not None and answer is not None:
                replies[task.label] = answer.reply_or_error(kind)
    return [replies[task.label] for task in tasks]
