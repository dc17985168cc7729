"""Compare launches with the references of their specs, in a process of their own.

To it: `{"op": "compare", "variant": …, "env": …, "folder": …, "inputs": …, "outputs": …}`. `env`
has the variables that the spec declares; inputs and outputs are lists of `{"path", "dtype",
"shape", "file"}`, with `layout` where an array is not row-major, whose files lie in the folder and
hold the bytes of device memory. From it: `{"ok": true, "outputs": …}` with what
`compare.compare_arrays` says of each, or `{"ok": false, "error": …}`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pallasc.compiler.toolchain.environment import declared_values, settled
from pallasc.compiler.workers.messages import error_from_json
from pallasc.compiler.workers.pool import Answer, Pool, Task
from pallasc.errors import CompileError
from pallasc.specs.spec import Variant
from pallasc.specs.wire import variant_to_json

PROGRAM = "pallasc.compiler.builds.reference_worker"

Launch = Callable[[int], Mapping[str, Any]]
"""Launches the variant of a number and returns `folder`, `inputs` and `outputs` of the message."""


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
            partial(_message, number, variant, launch),
            f"the process that runs the reference of {variant.id}",
        )
        for number, variant in enumerate(variants)
    ]
    with Pool(1, settled(os.environ), program=PROGRAM, tick_s=None) as pool:
        for kind, task, answer in pool.run(tasks):
            if kind == "done" and task is not None and answer is not None:
                yield task.label, _outputs(answer)


def _message(number: int, variant: Variant, launch: Launch) -> dict[str, Any]:
    env = declared_values(variant.env)
    return {"op": "compare", "variant": variant_to_json(variant), "env": env, **launch(number)}


def _outputs(answer: Answer) -> list[dict[str, Any]]:
    if answer.error is not None:
        raise answer.error
    message = answer.message
    if message is None:
        raise CompileError("the process that runs references has not answered")
    if not message["ok"]:
        raise error_from_json(message["error"])
    found: list[dict[str, Any]] = message["outputs"]
    return found
