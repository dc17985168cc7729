"""Launches compared with the references of their specs, in a separate process.

The process is `reference_worker`; the request is `Compare`, the reply `Compared` or `Failed`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pallasc.compiler.toolchain.environment import declared_values, settled
from pallasc.compiler.workers.messages import Reply, Request, Task
from pallasc.compiler.workers.pool import Pool
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.specs.artifacts.plan import Binding


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """An array, and the name of the file with its bytes as in device memory."""

    array: Binding
    name: str


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The inputs and outputs of a launch, in files of a folder."""

    folder: Path
    inputs: tuple[ArrayFile, ...]
    outputs: tuple[ArrayFile, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The index of an element, its value, and the reference's, both as text."""

    index: tuple[int, ...]
    got: str
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How an output differs from the reference's, as `--json` prints it; see `compare_arrays`.

    Attributes:
        count: number of elements.
        mismatches: number of elements that differ by more than is allowed.
        rtol, atol: the allowed difference.
        max_abs, max_rel: the largest differences, None without finite numbers.
        first: the first mismatch, None without any.
    """

    count: int
    mismatches: int
    rtol: float
    atol: float
    max_abs: float | None
    max_rel: float | None
    first: Mismatch | None

    def to_json(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Reply):
    """The comparison of each output."""

    outputs: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare(Request):
    """Run the reference of a variant and compare; `env` has its declared variables."""

    op: ClassVar[str] = "compare"
    reply: ClassVar[type[Reply]] = Compared
    variant: Variant
    launched: LaunchFiles
    env: Mapping[str, str | None] = field(default_factory=dict)


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
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                yield task.label, reply.require(Compared).outputs


def _request(number: int, variant: Variant, launch: Launch) -> Compare:
    return Compare(variant=variant, env=declared_values(variant.env), launched=launch(number))
