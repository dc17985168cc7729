"""Compile variants once more, in workers of the build's kind, for what no artifact holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pallasc.cache.store import Store
from pallasc.compiler.toolchain.environment import declared_values
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.messages import Introduction, Request
from pallasc.compiler.workers.pool import Answer, Pool, Task
from pallasc.specs.spec import Variant

MakeRequest = Callable[[int, Mapping[str, str | None]], Request]
"""Makes the request for a variant, given its number and the values of its variables."""


def answers(
    variants: Sequence[Variant],
    make_request: MakeRequest,
    setup: Setup,
    store: Store,
    *,
    purpose: str,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> Iterator[tuple[int, Answer]]:
    """Yield the number of each variant, and what its worker answered.

    Args:
        variants: what is compiled once more.
        make_request: see `MakeRequest`.
        setup: the toolchain.
        store: has the digests of its files.
        purpose: what the process does, for messages: "finds the lines of".
        jobs: how many workers run at the same time.
        timeout_s: how long one may take.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    tasks = []
    for number, variant in enumerate(variants):
        declared = declared_values(variant.env)
        group = (variant.target.arch, variant.base_dir, tuple(declared.items()))
        doing = f"the process that {purpose} {variant.id}"
        tasks.append(Task(number, group, make_request(number, declared), doing))
    introduction = Introduction.of(setup, setup.context(store), store)
    with Pool(jobs, setup.environment, introduction, timeout_s=timeout_s, tick_s=None) as pool:
        for _, task, answer in pool.run(tasks):
            if task is not None and answer is not None:
                yield task.label, answer
