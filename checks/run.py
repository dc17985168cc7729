"""Checks the variants of a build, or compiled variants, and reports on each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pallasc.checks.check import Candidate, Checking, Events, with_sizes
from pallasc.checks.findings import LevelResult
from pallasc.checks.levels import Level, Options
from pallasc.errors import Location, PallascError, ToolError
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.builds.report import Report as BuildReport
    from pallasc.compiler.builds.report import VariantResult


@dataclass(frozen=True, slots=True)
class VariantCheck:
    """The results of one variant.

    Attributes:
        id: its display name.
        variant: the variant it was compiled from, None if there is no source.
        action_key: its action key, None if unknown.
        digest: the digest of its artifact, None if it has none.
        results: a result for each requested level; empty if it did not compile.
        from_store: the levels whose results came from the store.
        errors: by level, why the check itself failed.
        built: the result of building it, None if nothing was built.
        origin: the bundle that contains it, None for others.
    """

    id: str
    variant: Variant | None
    action_key: str | None
    digest: str | None
    results: tuple[LevelResult, ...] = ()
    from_store: frozenset[str] = frozenset()
    errors: Mapping[str, PallascError] = field(default_factory=dict)
    built: VariantResult | None = None
    origin: Location | None = None

    @property
    def place(self) -> Location | None:
        """Its kernel's location in the spec, or its bundle; None if only its key is known."""
        return self.variant.location if self.variant is not None else self.origin

    @property
    def exit_codes(self) -> list[int]:
        """The exit codes that its results call for."""
        built = self.built.error if self.built is not None else None
        codes = [error.exit_code for error in (built, *self.errors.values()) if error is not None]
        return codes + [1 for result in self.results if result.fails and not result.stopped]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a check.

    Attributes:
        checks: a check for each variant, in the order of the variants.
        seconds: duration in seconds.
        levels: the names of the requested levels.
        notes: warnings.
        interrupted: True if it was interrupted; unfinished variants lack results.
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
        done = {result.level for result in check.results}
        return tuple(level for level in self.levels if level not in done)

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
        """The error of a check in which no level could check any variant, else None.

        None also if variants have errors, which explain themselves.
        """
        results = [result for check in self.checks for result in check.results]
        if any(r.status != "not checked" for r in results) or not results:
            return None
        if self.interrupted or self._exit_codes:
            return None
        count = len(self.checks)
        which = "the variant" if count == 1 else f"any of the {count:,} variants"
        has_source = any(check.variant is not None for check in self.checks)
        hint = "Each level says why."
        if not has_source:
            hint += " Name specs instead, or bundles made with --keep-ptx."
        return ToolError(f"nothing was checked: no level could check {which}.", hint=hint)


def check_compiled(
    results: Sequence[VariantResult],
    levels: Sequence[Level],
    *,
    store: Store,
    options: Options,
    limits: BuildOptions,
    events: Events | None = None,
    only_stored: bool = False,
) -> Report:
    """Check compiled variants without source, such as the variants of a bundle.

    With `only_stored`, nothing is run: the report has only the results from the store.

    Raises:
        PallascError: the store or a worker cannot be used.
    """
    began_s = time.monotonic()
    checking = Checking(
        store, levels, options, limits=limits, context=None, events=events or Events()
    )
    candidates = [own for each in results if (own := _without_source(each)) is not None]

    def look_up() -> None:
        for candidate in candidates:
            checking.look_up(candidate)

    interrupted = _is_interrupted(checking, look_up, only_stored=only_stored)
    checks = tuple(_check_of(checking, candidate) for candidate in candidates)
    return _report(checks, levels, checking, began_s, interrupted)


def _is_interrupted(checking: Checking, look_up: Callable[[], None], *, only_stored: bool) -> bool:
    """Look up the stored results and run the rest; return True if that was interrupted."""
    try:
        look_up()
        if only_stored:
            checking.take_stored()
        else:
            checking.run()
    except KeyboardInterrupt:
        return True
    return False


class Demand(NamedTuple):
    """A variant to check; `number` is the index of the built variant that is run for it."""

    variant: Variant
    number: int


def demands(variants: Sequence[Variant]) -> tuple[list[Variant], list[Demand]]:
    """Return the variants to build for a check, and a demand for each variant.

    If the spec has small sizes, all points of a matrix may share one variant.
    """
    building: list[Variant] = []
    numbers: dict[object, int] = {}
    needed = []
    for variant in variants:
        checked = variant.for_check()
        key = (checked.id, checked.base_dir, checked.location, checked.params)
        if variant.check is None or key not in numbers:
            numbers[key] = len(building)
            building.append(checked)
        needed.append(Demand(variant, numbers[key]))
    return building, needed


def check_built(
    report: BuildReport,
    needed: Sequence[Demand],
    levels: Sequence[Level],
    *,
    store: Store,
    options: Options,
    limits: BuildOptions,
    events: Events | None = None,
    only_stored: bool = False,
) -> Report:
    """Check the variants of a build.

    Args:
        report: the report of building the variants returned by `demands`.
        needed: a demand for each variant.
        levels: the levels to run.
        store: the store for results.
        options: the check's options.
        limits: jobs, time and memory of the workers.
        events: callbacks.
        only_stored: run nothing, and report the results from the store.

    Raises:
        PallascError: the store or a worker cannot be used.
    """
    began_s = time.monotonic()
    events = events or Events()
    checking = Checking(
        store, levels, options, limits=limits, context=report.context, events=events
    )
    asking = [_candidate(demand, report) for demand in needed]

    def look_up() -> None:
        for candidate, demand in zip(asking, needed, strict=True):
            if candidate is not None:
                small = _made(report.results[demand.number]) if demand.variant.check else None
                checking.look_up(candidate, small)
            elif (error := _built(demand, report).error) is not None:
                events.on_unbuilt(demand.variant, error)

    interrupted = report.interrupted or _is_interrupted(checking, look_up, only_stored=only_stored)
    checks = tuple(
        _checked(checking, candidate, demand, report)
        for candidate, demand in zip(asking, needed, strict=True)
    )
    done = _report(checks, levels, checking, began_s - report.seconds, interrupted)
    return replace(done, notes=(*report.notes, *done.notes), errors=report.errors)


def _check_of(checking: Checking, candidate: Candidate) -> VariantCheck:
    return VariantCheck(
        candidate.id,
        candidate.variant,
        candidate.action_key or None,
        candidate.artifact.digest,
        *checking.results_of(candidate),
        origin=candidate.origin,
    )


def _candidate(demand: Demand, report: BuildReport) -> Candidate | None:
    """Return the candidate of a demand, None if its built variant did not compile."""
    made = _made(report.results[demand.number])
    return made and replace(made, id=demand.variant.id, variant=demand.variant)


def _without_source(result: VariantResult) -> Candidate | None:
    """Return the candidate of a bundle's variant, or of an artifact that is named by its key."""
    if result.artifact is None:
        return None
    if result.action_key is not None:
        return Candidate(result.action_key, result.artifact, result.action_key)
    return Candidate(result.variant.id, result.artifact, origin=result.variant.location)


def _made(result: VariantResult) -> Candidate | None:
    if result.artifact is None or result.status == "failed":
        return None
    wrong = (f"{d.source}: {d.text}" for d in result.diagnostics if d.kind == "CompiledWrongly")
    return Candidate(
        result.variant.id,
        result.artifact,
        result.action_key or "",
        result.variant,
        result.request,
        wrong_in_jax=next(wrong, ""),
    )


def _checked(
    checking: Checking, candidate: Candidate | None, demand: Demand, report: BuildReport
) -> VariantCheck:
    built = _built(demand, report)
    if candidate is None:
        return VariantCheck(demand.variant.id, demand.variant, None, None, built=built)
    return replace(_check_of(checking, candidate), built=built)


def _built(demand: Demand, report: BuildReport) -> VariantResult:
    """Return the build result of a demand.

    If a variant stands in for another, its error names the sizes in the spec's `check`.
    """
    built = report.results[demand.number]
    if built.error is None or demand.variant.check is None:
        return built
    return structs.replace(built, error=with_sizes(built.error, demand.variant))


def _report(
    checks: tuple[VariantCheck, ...],
    levels: Sequence[Level],
    checking: Checking,
    began_s: float,
    interrupted: bool,
) -> Report:
    checking.finish()
    names = tuple(level.name for level in levels)
    seconds = time.monotonic() - began_s
    return Report(checks, seconds, names, tuple(dict.fromkeys(checking.notes)), interrupted)
