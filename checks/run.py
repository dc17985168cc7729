"""Check the variants of a build, or compiled variants, and report on each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pallasc.checks.candidate import Candidate, Events
from pallasc.checks.check import Checking
from pallasc.checks.levels import Level
from pallasc.checks.report import Report, VariantCheck
from pallasc.checks.small_sizes import with_sizes
from pallasc.checks.subject import Options

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.builds.report import Report as BuildReport
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.spec import Variant


def check_candidates(
    candidates: Sequence[Candidate],
    levels: Sequence[Level],
    *,
    store: Store,
    options: Options,
    limits: BuildOptions,
    events: Events | None = None,
    only_stored: bool = False,
) -> Report:
    """Check compiled variants, such as the variants of a bundle.

    With `only_stored`, nothing is run: the report has only the results from the store.

    Raises:
        PallascError: the store or a worker cannot be used.
    """
    began_s = time.monotonic()
    checking = Checking(
        store, levels, options, limits=limits, context=None, events=events or Events()
    )
    interrupted = False
    try:
        for candidate in candidates:
            checking.look_up(candidate)
        if only_stored:
            checking.take_stored()
        else:
            checking.run()
    except KeyboardInterrupt:
        interrupted = True
    checks = tuple(checking.check_of(candidate) for candidate in candidates)
    return _report(checks, levels, checking, began_s, interrupted)


class Demand(NamedTuple):
    """A variant to check, and the index in the build list of the variant to run for it."""

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
    interrupted = report.interrupted
    asking = [_candidate(demand, report) for demand in needed]
    try:
        if not interrupted:
            for candidate, demand in zip(asking, needed, strict=True):
                if candidate is not None:
                    small = _made(report.results[demand.number]) if demand.variant.check else None
                    checking.look_up(candidate, small)
                elif (error := _built(demand, report).error) is not None:
                    events.on_unbuilt(demand.variant, error)
            if only_stored:
                checking.take_stored()
            else:
                checking.run()
    except KeyboardInterrupt:
        interrupted = True
    checks = tuple(
        _checked(checking, candidate, demand, report)
        for candidate, demand in zip(asking, needed, strict=True)
    )
    done = _report(checks, levels, checking, began_s - report.seconds, interrupted)
    return replace(done, notes=(*report.notes, *done.notes), errors=report.errors)


def _candidate(demand: Demand, report: BuildReport) -> Candidate | None:
    """Return the variant asked about, None if the variant to run did not compile."""
    made = _made(report.results[demand.number])
    return made and replace(made, id=demand.variant.id, variant=demand.variant)


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
    return replace(checking.check_of(candidate), built=built)


def _built(demand: Demand, report: BuildReport) -> VariantResult:
    """Return the build result of a demand.

    The error of a variant that is checked for another names the sizes of the spec's `check`.
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
