"""Find the user's lines behind the PTX of compiled variants, in workers of the build's kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallasc.cache.store import Store
from pallasc.compiler.lowering.line_table import LineTable
from pallasc.compiler.toolchain.environment import declared_values
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.messages import FindLines, Introduction, LinesFound
from pallasc.compiler.workers.pool import Pool, Task
from pallasc.specs.spec import Variant

Tables = Mapping[str, LineTable]
"""By kernel."""


def find_lines(
    kernels: Sequence[tuple[Variant, Mapping[str, str]]],
    setup: Setup,
    store: Store,
    *,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Tables]:
    """Return the lines behind the kernels of variants, each with the PTX that ships, by name.

    A variant is compiled once more for it. One whose lines cannot be found has no tables: its code
    was changed, or takes too long.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    tables: list[Tables] = [{} for _ in kernels]
    tasks = [_task(number, variant, ptx) for number, (variant, ptx) in enumerate(kernels)]
    introduction = Introduction.of(setup, setup.context(store), store)
    with Pool(jobs, setup.environment, introduction, timeout_s=timeout_s, tick_s=None) as pool:
        for _, task, answer in pool.run(tasks):
            if task is not None and answer is not None and isinstance(answer.reply, LinesFound):
                tables[task.label] = answer.reply.tables
    return tables


def _task(number: int, variant: Variant, ptx: Mapping[str, str]) -> Task:
    declared = declared_values(variant.env)
    group = (variant.target.arch, variant.base_dir, tuple(declared.items()))
    request = FindLines(variant=variant, ptx=ptx, env=declared)
    return Task(number, group, request, f"the process that finds the lines of {variant.id}")
