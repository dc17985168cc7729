"""The levels of `pallasc check`, and their input: a compiled variant and the options of the check.

To add a level, write a module `checks/NAME.py` with `run(subject: Subject, options: Options) ->
LevelResult`, and add it to `LEVELS` here and in `cli/check.py`. The command itself imports no
level: `run` is called in a worker process with the build's limits on time and memory. It may import
anything, hang, crash or run out of memory; then only this variant's result is lost. It raises only
`PallascError`, for a mistake of the user (a reference that fails, inputs that do not fit).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from pallasc.checks.findings import ARTIFACT_RULES, INTERPRETER_RULES, Rule
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import LaunchPlan
from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Subject:
    """The compiled variant that a level checks.

    Attributes:
        id: display name of the variant.
        artifact: artifact of the variant; if the spec lists small sizes, compiled for these sizes.
        variant: the source of the artifact: entry, arguments, reference, tolerance, folder. None
            for artifacts from a bundle or by key, which have no source.
        xla_ptx: PTX of XLA's kernels by the digest of their cubin, for levels that execute PTX.
        why_no_ptx: why the PTX of XLA's kernels is not available, "" if it is.
    """

    id: str
    artifact: Artifact
    variant: Variant | None = None
    xla_ptx: Mapping[str, str] = field(default_factory=dict)
    why_no_ptx: str = ""

    @property
    def plan(self) -> LaunchPlan:
        """The validated launch plan."""
        return self.artifact.plan

    @property
    def ptx(self) -> dict[tuple[str, str], str]:
        """The PTX of each kernel by cubin digest and name; XLA's kernels are not included."""
        return {
            (kernel.cubin, kernel.name): self.artifact.blob(kernel.ptx).decode()
            for kernel in self.artifact.kernels
            if kernel.ptx
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a check.

    Attributes:
        seed: determines the random inputs and interleavings.
        seed_given: the command line set the seed, which overrides the spec's.
        schedules: the number of interleavings to try, if a level has more than one.
        inputs: input files by array path; other inputs are random.
        timeout_s: time limit of a level, None for no limit.
        deadline_s: time at which `timeout_s` ends, on this process's monotonic clock.
    """

    seed: int = 0
    seed_given: bool = False
    schedules: int = 3
    inputs: Mapping[str, Path] = field(default_factory=dict)
    timeout_s: float | None = None
    deadline_s: float | None = None


LEVELS: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {"interpreter": INTERPRETER_RULES, "artifact": ARTIFACT_RULES}
)
"""The rules of each level, by name as in `--level`, in display order: the cheapest first."""

ALL = "all"


def chosen_levels(name: str) -> tuple[str, ...]:
    """Return the levels of `--level NAME`."""
    return tuple(LEVELS) if name == ALL else (name,)


def rules_of(levels: Iterable[str]) -> dict[str, Rule]:
    """Return the rules of levels by name."""
    return {rule.name: rule for level in levels for rule in LEVELS[level]}
