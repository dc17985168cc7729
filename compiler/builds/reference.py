"""Compare launches with the references of their specs, in a process of their own.

`Compare` asks for it, `Compared` or `Failed` replies (`messages`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pallasc.compiler.toolchain.environment import declared_values, settled
from pallasc.compiler.workers.messages import Failed, Reply, Request
from pallasc.compiler.workers.pool import Answer, Pool, Task
from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Variant

PROGRAM = "pallasc.compiler.builds.reference_worker"


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array, and the name of the file with its bytes in device memory."""

    array: Binding
    name: str


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The arrays that a launch took and gave, in files of a folder."""

    folder: Path
    inputs: tuple[ArrayFile, ...]
    outputs: tuple[ArrayFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Reply):
    """What `compare.compare_arrays` says of each output."""

    outputs: tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare(Request):
    """Run the reference of a variant and compare; `env` has the variables that it declares."""

    op: ClassVar[str] = "compare"
    reply: ClassVar[type[Reply]] = Compared
    variant: Variant
    launched: LaunchFiles
    env: Mapping[str, str | None] = field(default_factory=dict)


Launch = Callable[[int], LaunchFiles]
"""Launches the variant of a number."""


def compare(
    variants: Sequence[Variant], launch: Launch
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield number and comparison of each variant, each launched when its turn comes.

    Args:
        variants: what is compared; all have a reference.
        launch: see `Launch`. Its files are not needed any more when the comparison is yielded.

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


def _outputs(answer: Answer) -> list[dict[str, Any]]:
    if isinstance(answer.reply, Failed):
        raise answer.reply.error
    if not isinstance(answer.reply, Compared):
        raise answer.error or CompileError("the process that runs references has not answered")
    return [dict(output) for output in answer.reply.outputs]
