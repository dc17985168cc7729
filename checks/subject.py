"""What a level is given: a compiled variant, and how it is to be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import LaunchPlan
from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Subject:
    """One compiled variant.

    Attributes:
        id: its name for people.
        artifact: record, plan and blobs; where the spec names small sizes, those of the
            small variant.
        variant: what it was compiled from: entry, arguments, reference, tolerance, folder. None for
            what comes from a bundle or by its key, which have no source.
        xla_ptx: PTX of XLA's kernels by the digest of their cubin, for levels that take it.
        why_no_ptx: why that could not be had, "" if it could.
    """

    id: str
    artifact: Artifact
    variant: Variant | None = None
    xla_ptx: Mapping[str, str] = field(default_factory=dict)
    why_no_ptx: str = ""

    @property
    def plan(self) -> LaunchPlan:
        """The launch plan, checked."""
        return self.artifact.plan

    @property
    def ptx(self) -> dict[tuple[str, str], str]:
        """The PTX of each kernel by the digest of its cubin and its name; XLA's come without."""
        return {
            (kernel.cubin, kernel.name): self.artifact.blob(kernel.ptx).decode()
            for kernel in self.artifact.kernels
            if kernel.ptx
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a variant is checked.

    Attributes:
        seed: chooses the numbers of inputs, and interleavings.
        seed_given: the command named the seed, which replaces that of a spec.
        schedules: how many interleavings are tried, where a level has more than one.
        inputs: the file of each input that is given, by its path; other inputs are random.
        timeout_s: how long a level may take, None for no limit.
        deadline_s: when, on the monotonic clock of this process, that is over.
        memory_bytes: what this process may hold, None for no limit.
    """

    seed: int = 0
    seed_given: bool = False
    schedules: int = 3
    inputs: Mapping[str, Path] = field(default_factory=dict)
    timeout_s: float | None = None
    deadline_s: float | None = None
    memory_bytes: int | None = None
