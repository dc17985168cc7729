"""One record of a build or a check, from which JUnit, annotations and SARIF are written.

A `Run` has an `Outcome` for each variant of a build, and for each level of each variant of a check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from pallasc.checks.merge import distinct_findings
from pallasc.cli.output.exits import error_line

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.shard import Share
    from pallasc.errors import Location, PallascError

T = TypeVar("T")
_NOT_DONE = {
    "skipped": "the build stopped before",
    "missing": "not in the store, and nothing was to be compiled",
}
INTERRUPTED = "not checked: interrupted"
UNBUILT = "build"
"""The suite of variants that a check could not compile."""


class Outcome(NamedTuple):
    """What happened to one variant in a build, or at one level of a check.

    Attributes:
        id: the variant's.
        suite: its kernel in a build; the level of a check, or `UNBUILT`.
        place: its kernel in the spec, or its bundle; None for what only has a key.
        seconds: how long it took.
        problem: why it is no success: a mistake in the kernel (`failure`), or nothing could be said
            of it (`error`, `skipped`); "" for a success.
        message: the problem in a line.
        error: the error behind it, None where there is none.
        findings: of a level.
        output: what the compiling process wrote, if it failed.
        result: of a build.
    """

    id: str
    suite: str
    place: Location | None = None
    seconds: float = 0.0
    problem: Literal["", "failure", "error", "skipped"] = ""
    message: str = ""
    error: PallascError | None = None
    findings: tuple[Finding, ...] = ()
    output: str = ""
    result: VariantResult | None = None


class Found(NamedTuple):
    """A finding of a variant; one that several levels have is there once."""

    finding: Finding
    id: str
    kernel: str
    place: Location | None


class Run(NamedTuple):
    """A build or a check that has ended.

    Attributes:
        command: which of them.
        outcomes: in the order of the variants.
        suites: names of suites that are there even if nothing is in them.
        seconds: how long it took.
        errors: of specs that could not be executed, and of what ended the whole command.
        notes: warnings about the store and about compilations that gave different results.
        found: all findings.
        interrupted: lines about what an interrupt left; none where nothing was interrupted.
        share: which of all variants, None without shards.
    """

    command: Literal["build", "check"]
    outcomes: list[Outcome]
    suites: tuple[str, ...]
    seconds: float
    errors: list[PallascError]
    notes: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()
    interrupted: tuple[str, ...] = ()
    share: Share | None = None


def build_run(report: Report, error: PallascError | None = None, share: Share | None = None) -> Run:
    """Return the record of a build; `error` ended it, if something did."""
    errors = [*report.errors, *([error] if error else [])]
    outcomes = [_built(result) for result in report.results]
    return Run("build", outcomes, (), report.seconds, errors, report.notes, share=share)


def check_run(
    report: CheckReport, error: PallascError | None = None, share: Share | None = None
) -> Run:
    """Return the record of a check; `error` ended it, if something did."""
    from pallasc.cli.output.check_text import interrupted_lines

    found = tuple(
        Found(f, check.id, check.variant.name if check.variant else check.id, check.place)
        for check in report.checks
        for f in distinct_findings(check.results)
    )
    lines: tuple[str, ...] = ()
    if report.interrupted:
        left = f"{report.left:,} of {len(report.checks):,} variants"
        head = f"interrupted: {left} lack results of a level"
        lines = (head, *interrupted_lines(report))
    return Run(
        "check",
        [outcome for check in report.checks for outcome in _checked(check, report)],
        report.levels,
        report.seconds,
        [*report.errors, *([error] if error else [])],
        report.notes,
        found,
        lines,
        share,
    )


def _built(result: VariantResult) -> Outcome:
    variant = result.variant
    place, seconds = variant.location, result.seconds
    outcome = Outcome(variant.id, variant.name, place, seconds, error=result.error, result=result)
    if result.status == "failed":
        message = error_line(result.error)
        return outcome._replace(problem="failure", message=message, output=result.output)
    if result.status in _NOT_DONE:
        return outcome._replace(problem="skipped", message=_NOT_DONE[result.status])
    return outcome


def _checked(check: VariantCheck, report: CheckReport) -> list[Outcome]:
    outcomes = []
    if check.built is not None and (error := check.built.error) is not None:
        unbuilt = Outcome(check.id, UNBUILT, check.place, 0.0, "error", error.message, error)
        outcomes.append(unbuilt)
    for result in check.results:
        outcome = Outcome(check.id, result.level, check.place, result.seconds)
        failing = [finding for finding in result.findings if finding.severity != "note"]
        if failing:
            more = f" (and {len(failing) - 1:,} more)" if len(failing) > 1 else ""
            message = f"{failing[0].message}{more}"
            outcome = outcome._replace(problem="failure", message=message)
        elif result.status == "not checked":
            outcome = outcome._replace(
                problem="error" if result.stopped else "skipped",
                message=result.reason,
                error=check.errors.get(result.level),
            )
        outcomes.append(outcome._replace(findings=result.findings))
    for level in report.missing(check):
        outcomes.append(Outcome(check.id, level, check.place, 0.0, "error", INTERRUPTED))
    return outcomes


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Return items with equal keys together, in the order of the first of each."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
