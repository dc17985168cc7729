"""The record of a check: its settings and events, jobs, and the results of each variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pallasc.checks.findings import LevelResult
from pallasc.checks.levels import LEVELS, Options, Subject
from pallasc.checks.stored_results import Checkable
from pallasc.errors import Location, PallascError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.spec import Variant


@dataclass(slots=True, eq=False)
class VariantCheck:
    """The check of one variant, which collects its results.

    Attributes:
        id: display name of the variant.
        variant: the variant that the user asked about, None if there is no source.
        built: build result of the variant that is run; if the spec lists small sizes, a variant
            with these sizes is run.
        origin: the bundle that contains the variant, None if no bundle does.
        found: results by level; empty if the variant did not compile.
        from_store: the levels whose results came from the store.
        errors: errors that stopped a level, by level.
    """

    id: str
    variant: Variant | None = None
    built: VariantResult | None = None
    origin: Location | None = None
    found: dict[str, LevelResult] = field(default_factory=dict)
    from_store: set[str] = field(default_factory=set)
    errors: dict[str, PallascError] = field(default_factory=dict)

    @property
    def results(self) -> tuple[LevelResult, ...]:
        """The results, in the order of the levels."""
        return tuple(self.found[level] for level in LEVELS if level in self.found)

    @property
    def artifact(self) -> Artifact | None:
        """The compiled artifact, None if the variant did not compile."""
        built = self.built
        return None if built is None or built.status == "failed" else built.artifact

    @property
    def action_key(self) -> str | None:
        """The artifact's action key, None if unknown."""
        return self.built.action_key if self.built is not None and self.artifact else None

    @property
    def digest(self) -> str | None:
        """The artifact's digest, None without an artifact."""
        return self.artifact.digest if self.artifact is not None else None

    @property
    def place(self) -> Location | None:
        """The kernel's location in the spec, or the bundle; None for an artifact named by key."""
        return self.variant.location if self.variant is not None else self.origin

    @property
    def exit_codes(self) -> list[int]:
        """The exit code of each error, and 1 for each result with findings."""
        built = self.built.error if self.built is not None else None
        codes = [error.exit_code for error in (built, *self.errors.values()) if error is not None]
        return codes + [1 for result in self.results if result.fails and not result.stopped]


@dataclass(slots=True)
class Job:
    """A level to run on one artifact, shared by the variants that need the result."""

    level: str
    subject: Subject
    checkable: Checkable
    options: Options
    asking: list[VariantCheck] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a check.

    Attributes:
        checks: a check for each variant, in the order of the variants.
        seconds: duration in seconds.
        levels: the requested levels.
        notes: warnings.
        interrupted: True if the check was interrupted; unfinished variants lack results.
        errors: errors of spec files that could not be executed.
    """

    checks: tuple[VariantCheck, ...]
    seconds: float
    levels: tuple[str, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False
    errors: tuple[PallascError, ...] = ()

    @property
    def left(self) -> int:
        """The number of variants that lack results of some level because of an interrupt."""
        return sum(bool(self.missing(check)) for check in self.checks)

    def missing(self, check: VariantCheck) -> tuple[str, ...]:
        """Return the levels that have no result for a variant because of an interrupt."""
        if not self.interrupted or (check.built is not None and check.built.error is not None):
            return ()
        return tuple(level for level in self.levels if level not in check.found)

    @property
    def exit_code(self) -> int:
        """130 if interrupted, else 1 for a finding, else the first error's code, else 0.

        Without findings and errors, 4 if nothing could be checked; see `unchecked`.
        """
        if self.interrupted:
            return 130
        codes = self._exit_codes
        if not codes and (unchecked := self.unchecked) is not None:
            return unchecked.exit_code
        return 1 if 1 in codes else next(iter(codes), 0)

    @property
    def _exit_codes(self) -> list[int]:
        codes = [code for check in self.checks for code in check.exit_codes]
        return codes + [error.exit_code for error in self.errors]

    @property
    def unchecked(self) -> PallascError | None:
        """The error "nothing was checked" if no level could check any variant, else None.

        Also None if there are other errors or an interrupt, because these are reported already.
        """
        results = [result for check in self.checks for result in check.results]
        if any(r.status != "not checked" for r in results) or not results:
            return None
        if self.interrupted or self._exit_codes:
            return None
        count = len(self.checks)
        which = "the variant" if count == 1 else f"any of the {count:,} variants"
        hint = "Each level says why."
        if all(check.variant is None for check in self.checks):
            hint += " Name specs instead, or bundles made with --keep-ptx."
        return ToolError(f"nothing was checked: no level could check {which}.", hint=hint)


OnResult = Callable[["VariantCheck", "LevelResult", bool], None]
"""Called with each result, and True if it came from the store."""

OnUnbuilt = Callable[["Variant", "PallascError"], None]
"""Called with each variant that did not compile, and the error."""

OnTick = Callable[[Sequence[tuple[str, float]], int, int], None]
"""Called with the running jobs and their seconds, the number done, and the total."""


@dataclass(frozen=True, slots=True)
class Events:
    """Callbacks of a check: for each result, at regular ticks, and at the end."""

    on_result: OnResult = lambda check, result, from_store: None
    on_unbuilt: OnUnbuilt = lambda variant, error: None
    on_tick: OnTick = lambda running, done, total: None
    on_end: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a check.

    Attributes:
        levels: the levels to run.
        store: the store for results.
        options: the check's options.
        limits: limits on the number, time and memory of workers, as for a build.
        events: callbacks.
        only_stored: run nothing, and report only results from the store.
    """

    levels: Sequence[str]
    store: Store
    options: Options
    limits: BuildOptions
    events: Events = field(default_factory=Events)
    only_stored: bool = False
