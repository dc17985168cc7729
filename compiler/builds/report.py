"""What a build tells: an event as each variant goes on, and a report at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.compiler.inputs.why import Explanation
    from pallasc.compiler.workers.diagnostics import Diagnostic

Status = Literal["hit", "lowered", "shared", "compiled", "failed", "skipped", "missing"]
NOT_COMPILED = ("hit", "lowered", "shared")


@dataclass(frozen=True, slots=True)
class VariantResult:
    """What became of one variant.

    Attributes:
        variant: the variant.
        status: `hit` where the store had it, `lowered` where it had to be lowered again to see that
            the store had it, `shared` where another variant of this build asked for the same,
            `skipped` where the build stopped before, `missing` where the store has it not and
            nothing was to be compiled.
        seconds: time of its compilation, or of looking it up.
        action_key: what was compiled, None where that is not known.
        artifact: the result, None where there is none.
        error: why it failed.
        reason: why it was not a hit.
        explanation: what has changed since the nearest entry of the store, where asked for.
        died: whether the process that compiled it ended, or was stopped.
        saved_s: what compiling it once took, where it was a hit and that is known.
        output: the tail of what the compiling process wrote, where it failed.
        printed: what tracing and lowering printed, packed (`printed.unpack`).
        manifest_key: of the manifest that says what was read, "" where that is not known.
        diagnostics: what was said while it was traced, lowered and compiled, now or then.
        missed: what its code asked for and did not get to see (`hidden_inputs`).
    """

    variant: Variant
    status: Status
    seconds: float = 0.0
    action_key: str | None = None
    artifact: Artifact | None = None
    error: PallascError | None = None
    reason: str = ""
    output: str = ""
    saved_s: float = 0.0
    died: bool = False
    explanation: Explanation | None = None
    printed: str = ""
    manifest_key: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    missed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a variant; `done` of `total` are finished."""

    kind: Literal["started", "hit", "lowered", "shared", "compiled", "failed", "missing"]
    variant: Variant
    result: VariantResult | None
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Some time has passed: what is being compiled, and since when.

    Attributes:
        running: variants and the seconds that each has taken so far, the slowest first.
        done: how many of `total` are finished.
        compiled_s: what each variant that was compiled in this build took, in seconds.
        jobs: how many can be compiled at a time.
    """

    running: tuple[tuple[Variant, float], ...]
    done: int
    total: int
    compiled_s: tuple[float, ...] = ()
    jobs: int = 1


OnEvent = Callable[[Event | Tick], None]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a build, in the order of the variants.

    `notes` are warnings about the store and about compilations that were not deterministic.
    `interrupted` says that somebody stopped the build; what was left is `skipped`. `errors` are of
    spec files that could not be executed, while the others were built.
    """

    results: tuple[VariantResult, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    errors: tuple[PallascError, ...] = ()

    def having(self, status: Status) -> tuple[VariantResult, ...]:
        """Return the results with a status."""
        return tuple(result for result in self.results if result.status == status)

    @property
    def hits(self) -> tuple[VariantResult, ...]:
        """Variants for which nothing was compiled: `hit`, `lowered` and `shared`."""
        return tuple(result for result in self.results if result.status in NOT_COMPILED)

    @property
    def compiled(self) -> tuple[VariantResult, ...]:
        """Variants that were compiled."""
        return self.having("compiled")

    @property
    def failed(self) -> tuple[VariantResult, ...]:
        """Variants that failed."""
        return self.having("failed")

    @property
    def skipped(self) -> tuple[VariantResult, ...]:
        """Variants that were not begun, or not finished, when the build stopped."""
        return self.having("skipped")

    @property
    def exit_code(self) -> int:
        """130 if interrupted, else that of the failures: 1 if a kernel failed, else the first's."""
        if self.interrupted:
            return 130
        errors = [*(result.error for result in self.failed), *self.errors]
        codes = [error.exit_code for error in errors if error]
        return 1 if 1 in codes else next(iter(codes), 0)
