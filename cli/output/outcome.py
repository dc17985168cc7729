"""Common record of a build or a check, from which text and all reports are written.

A `Run` has one `Outcome` per variant of a build, or per level and variant of a check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from pallasc.cli.output.text import error_line
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.collect import Share
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.errors import Location, PallascError
    from pallasc.specs.artifacts.artifact import Artifact, Resources

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
        status: status of a build or a level.
        seconds: duration.
        problem: "failure" for a mistake in the kernel, "error" or "skipped" if there is no result,
            "" for a success.
        message: the problem in one line.
        error: the exception that caused the problem, if any.
        notes: remarks in a few words, such as "2 warnings".
        findings: findings of a level.
        from_store: True if the result of a level came from the store.
        result: result of a build.
    """

    id: str
    suite: str
    place: Location | None = None
    status: str = ""
    seconds: float = 0.0
    problem: Literal["", "failure", "error", "skipped"] = ""
    message: str = ""
    error: PallascError | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    from_store: bool = False
    result: VariantResult | None = None

    @property
    def artifact(self) -> Artifact | None:
        """Artifact of a built variant, None if there is none."""
        return self.result.artifact if self.result is not None else None

    @property
    def resources(self) -> Resources | None:
        """Resources of a built variant as stored in a lock file, None without an artifact."""
        if self.result is None or self.result.artifact is None:
            return None
        with suppress(CorruptError):
            return self.result.artifact.resources
        return None

    @property
    def warnings(self) -> int:
        """Number of warnings, including repeated ones."""
        return sum(warning.count for warning in self.result.diagnostics) if self.result else 0

    @property
    def holds_no_kernel(self) -> bool:
        """True if the variant was compiled but contains no Mosaic GPU kernel."""
        return self.result is not None and _holds_no_kernel(self.result)


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
        report: report of the build or check.
        outcomes: outcomes in the order of the variants.
        suites: names of suites that are listed even if they are empty.
        error: error that ended the command, if any.
        share: the variants of this shard, None without shards.
        found: all findings.
    """

    command: Literal["build", "check"]
    report: Report | CheckReport
    outcomes: list[Outcome]
    suites: tuple[str, ...] = ()
    error: PallascError | None = None
    share: Share | None = None
    found: tuple[Found, ...] = ()

    @property
    def errors(self) -> list[PallascError]:
        """Errors of specs that could not be executed, and the error that ended the command."""
        return [*self.report.errors, *([self.error] if self.error else [])]

    def totals(self, statuses: Iterable[str]) -> dict[str, int]:
        """Return the number of outcomes by status."""
        totals = dict.fromkeys(statuses, 0)
        for outcome in self.outcomes:
            if outcome.status in totals:
                totals[outcome.status] += 1
        return totals


def build_run(report: Report, error: PallascError | None = None, share: Share | None = None) -> Run:
    """Return the record of a build; `error` is the error that ended it, if any."""
    return Run("build", report, [*map(built, report.results)], error=error, share=share)


def check_run(
    report: CheckReport, error: PallascError | None = None, share: Share | None = None
) -> Run:
    """Return the record of a check; `error` is the error that ended it, if any."""
    from pallasc.checks.findings import distinct_findings

    found = tuple(
        Found(f, check.id, check.variant.name if check.variant else check.id, check.place)
        for check in report.checks
        for f in distinct_findings(check.results)
    )
    outcomes = [outcome for check in report.checks for outcome in _checked(check, report)]
    return Run("check", report, outcomes, report.levels, error, share, found)


def built(result: VariantResult) -> Outcome:
    """Return the outcome of a variant in a build."""
    variant, status = result.variant, result.status
    notes: tuple[str, ...] = ()
    if _holds_no_kernel(result):
        notes += ("no Mosaic kernel",)
    if result.diagnostics:
        number = sum(warning.count for warning in result.diagnostics)
        notes += ("1 warning" if number == 1 else f"{number:,} warnings",)
    if result.remote:
        notes += ("from the remote store",)
    place, seconds, error = variant.location, result.seconds, result.error
    outcome = Outcome(
        variant.id, variant.name, place, status, seconds, error=error, notes=notes, result=result
    )
    if status == "failed":
        return outcome._replace(problem="failure", message=error_line(result.error))
    if status in _NOT_DONE:
        return outcome._replace(problem="skipped", message=_NOT_DONE[status])
    return outcome


def has_remarks(result: VariantResult) -> bool:
    """Return True if a variant has warnings, has kernels of XLA, or has no kernels."""
    if result.diagnostics or result.artifact is None:
        return bool(result.diagnostics)
    kernels = result.artifact.kernels
    return not kernels or any(kernel.origin != "mosaic" for kernel in kernels)


def _holds_no_kernel(result: VariantResult) -> bool:
    if result.artifact is None or result.variant.program is not None:
        return False
    return all(kernel.origin != "mosaic" for kernel in result.artifact.kernels)


def xla_kernels(artifact: Artifact) -> tuple[str, ...]:
    """Return the names of the kernels that XLA generated, in order of first launch."""
    return tuple(dict.fromkeys(k.name for k in artifact.kernels if k.origin != "mosaic"))


def kernel_facts(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact's digest, its number of Pallas kernels, and its XLA kernels' names."""
    return {
        "digest": artifact.digest,
        "pallas_kernels": sum(kernel.origin == "mosaic" for kernel in artifact.kernels),
        "xla_kernels": list(xla_kernels(artifact)),
    }


def _checked(check: VariantCheck, report: CheckReport) -> list[Outcome]:
    outcomes = []
    if check.built is not None and (error := check.built.error) is not None:
        outcomes.append(unbuilt(check.id, check.place, error))
    for result in check.results:
        error, from_store = check.errors.get(result.level), result.level in check.from_store
        outcomes.append(checked(check.id, check.place, result, error, from_store=from_store))
    for level in report.missing(check):
        outcomes.append(Outcome(check.id, level, check.place, problem="error", message=INTERRUPTED))
    return outcomes


def unbuilt(name: str, place: Location | None, error: PallascError) -> Outcome:
    """Return the outcome of a variant that a check could not compile."""
    return Outcome(name, UNBUILT, place, problem="error", message=error.message, error=error)


def checked(
    name: str,
    place: Location | None,
    result: LevelResult,
    error: PallascError | None = None,
    *,
    from_store: bool,
) -> Outcome:
    """Return the outcome of a variant at one level of a check."""
    outcome = Outcome(name, result.level, place, result.status, result.seconds)._replace(
        notes=result.notes, findings=result.findings, from_store=from_store
    )
    failing = [finding for finding in result.findings if finding.severity != "note"]
    if failing:
        more = f" (and {len(failing) - 1:,} more)" if len(failing) > 1 else ""
        return outcome._replace(problem="failure", message=f"{failing[0].message}{more}")
    if result.status == "not checked":
        problem: Literal["error", "skipped"] = "error" if result.stopped else "skipped"
        return outcome._replace(problem=problem, message=result.reason, error=error)
    return outcome


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Group items by key, in order of first appearance."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
