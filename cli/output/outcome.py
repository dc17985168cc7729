"""Common record of a build or a check, from which JUnit, annotations and SARIF are written.

A `Run` has one `Outcome` per variant of a build, or per level and variant of a check.
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
    "missing": "not in the store, and not compiled",
}
INTERRUPTED = "not checked: interrupted"
UNBUILT = "build"
"""Suite of the variants that a check could not compile."""


class Outcome(NamedTuple):
    """Outcome of one variant in a build, or at one level of a check.

    Attributes:
        id: id of the variant.
        suite: name of the kernel in a build; level in a check, or `UNBUILT`.
        place: location of the kernel in its spec, or the bundle; None for an artifact named by key.
        seconds: duration.
        problem: "failure" for a mistake in the kernel, "error" or "skipped" if there is no result,
            "" for a success.
        message: the problem in one line.
        error: the exception that caused it, if any.
        findings: findings of a level.
        output: output of the compiling process, if it failed.
        result: result of a build.
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
    """A finding of a variant; findings shared by several levels appear once."""

    finding: Finding
    id: str
    kernel: str
    place: Location | None


class Run(NamedTuple):
    """A finished build or check.

    Attributes:
        command: "build" or "check".
        outcomes: outcomes in the order of the variants.
        suites: names of suites that are listed even if they are empty.
        seconds: duration.
        errors: errors of specs that could not be executed, and the error that ended the command.
        notes: warnings about the store and about nondeterministic compilations.
        found: all findings.
        interrupted: lines about unfinished variants; empty unless interrupted.
        share: the shard's share of all variants, None without shards.
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
    """Return the record of a build; `error` is the error that ended it, if any."""
    errors = [*report.errors, *([error] if error else [])]
    outcomes = [_built(result) for result in report.results]
    return Run("build", outcomes, (), report.seconds, errors, report.notes, share=share)


def check_run(
    report: CheckReport, error: PallascError | None = None, share: Share | None = None
) -> Run:
    """Return the record of a check; `error` is the error that ended it, if any."""
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
    """Group items by key, in order of first appearance."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
