"""How results differ from those of a reference, and what asks for that comparison.

The request is `Compare`, the reply `Compared` or `Failed` (`messages`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from pallasc.compiler.workers.messages import Reply, Request
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.spec import Variant


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
