"""Compare launches with the references of their specs, in a process of their own.

The process is `reference_worker`; what goes between is in `comparison`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pallasc.compiler.references.comparison import Compare, Compared, Comparison, LaunchFiles
from pallasc.compiler.toolchain.environment import declared_values, settled
from pallasc.compiler.workers.messages import Failed
from pallasc.compiler.workers.pool import Answer, Pool, Task
from pallasc.errors import CompileError
from pallasc.specs.spec import Variant

PROGRAM = "pallasc.compiler.references.reference_worker"


Launch = Callable[[int], LaunchFiles]
"""Launches a variant, given its number."""


def compare(
    variants: Sequence[Variant], launch: Launch
) -> Iterator[tuple[int, tuple[Comparison, ...]]]:
    """Launch and compare one variant after the other; yield its number and comparisons.

    Args:
        variants: variants that have a reference.
        launch: see `Launch`. Its files may be removed when the comparison is yielded.

    Raises:
        PallascError: a launch or a reference fails.
    """
    tasks = [
        Task(
            number,
            ("", variant.base_dir, tuple(declared_values(variant.env).items())),
            partial(_request, number, variant, launch),
            f"the process that runs the reference of {variant.id}",
        )
        for number, variant in enumerate(variants)
    ]
    with Pool(1, settled(os.environ), program=PROGRAM, tick_s=None) as pool:
        for kind, task, answer in pool.run(tasks):
            if kind == "done" and task is not None and answer is not None:
                yield task.label, _outputs(answer)


def _request(number: int, variant: Variant, launch: Launch) -> Compare:
    return Compare(variant=variant, env=declared_values(variant.env), launched=launch(number))


def _outputs(answer: Answer) -> tuple[Comparison, ...]:
    if isinstance(answer.reply, Failed):
        raise answer.reply.error
    if not isinstance(answer.reply, Compared):
        raise answer.error or CompileError("the process that runs references sent no answer")
    return answer.reply.outputs
