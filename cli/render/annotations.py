"""Failures and findings as workflow commands, which GitHub shows at the lines of a change.

A command is `::error file=F,line=N,col=N,title=T::message`, alone on its line. In the message `%`,
carriage return and line feed are escaped, in the other values `:` and `,` too; nothing else is.
GitHub shows 10 errors, 10 warnings and 10 notices of a step, and drops the others silently:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pallasc.checks.merge import distinct_findings
from pallasc.cli.render.check_text import finding_lines
from pallasc.cli.render.remarks import holds_no_kernel, names
from pallasc.cli.render.result_text import output_tail, spill_bytes
from pallasc.cli.terminal.output import count, relative_file, workspace_root
from pallasc.errors import BudgetError
from pallasc.specs.plain_text import one_line, printable

if TYPE_CHECKING:
    from pathlib import Path

    from pallasc.checks.findings import Finding
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.workers.diagnostics import Diagnostic
    from pallasc.errors import Location, PallascError


_SHOWN = 10  # of each kind in a step, by GitHub
_NAMED = 10
_IN_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})


@dataclass(frozen=True, slots=True)
class Annotation:
    """One remark at a place of a file, or at none."""

    kind: Literal["error", "warning", "notice"]
    title: str
    message: str
    file: str | None = None
    line: int = 0
    column: int = 0

    def command(self) -> str:
        """Return it as a workflow command."""
        places = {"file": self.file, "line": self.line, "col": self.column} if self.file else {}
        values = {**places, "title": self.title}
        shown = ",".join(
            f"{name}={one_line(str(value)).translate(_IN_PROPERTY)}"
            for name, value in values.items()
            if value
        )
        return f"::{self.kind} {shown}::{printable(self.message).translate(_IN_MESSAGE)}"


def github_commands(report: Report, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the lines that annotate a build: its failures, then spills, warnings and notes.

    Variants that fail at one place for one reason share an annotation, even where their messages
    differ in variant, digest or numbers, as those about locks and budgets do. A spill that the
    variant's budget allows for is left out.

    Args:
        report: what the build did.
        environment: says where the repository is.
    """
    root = workspace_root(environment)
    errors = [_failure(results, root) for results in _by_cause(report.failed)]
    warnings = [
        *(_spills(results, root) for results in _by_kernel(report.compiled)),
        *_no_kernels(report.results, root),
        *(_warning(warning, results, root) for warning, results in _by_text(report.results)),
        *(Annotation("warning", "pallasc", note) for note in report.notes),
    ]
    return [annotation.command() for annotation in (*at_most(errors), *at_most(warnings))]


def github_command(error: PallascError, environment: Mapping[str, str] = os.environ) -> str:
    """Return the line that annotates an error which ends the whole build."""
    place = place_in([error.location], workspace_root(environment))
    return Annotation("error", "pallasc", str(error), *place).command()


def _by_cause(failed: Iterable[VariantResult]) -> list[list[VariantResult]]:
    """Group failures of one kind at one place, those without a kind by their reason."""
    groups: dict[tuple[object, type, str], list[VariantResult]] = {}
    for result in failed:
        error = result.error
        place = error.location if error else result.variant.location
        cause = (place, type(error), _cause(error))
        groups.setdefault(cause, []).append(result)
    return list(groups.values())


def _cause(error: PallascError | None) -> str:
    """Return what errors at one place have in common; whatever is over a budget is one thing."""
    if error is None or isinstance(error, BudgetError):
        return ""
    return error.kind or _reason(error)


def _by_kernel(compiled: Iterable[VariantResult]) -> list[list[VariantResult]]:
    """Group variants that spill, and whose budget does not allow for it, by kernel."""
    groups: dict[Location, list[VariantResult]] = {}
    for result in compiled:
        allowed = result.variant.budget.spill_bytes is not None
        if result.artifact is not None and spill_bytes(result.artifact) and not allowed:
            groups.setdefault(result.variant.location, []).append(result)
    return list(groups.values())


def _by_text(
    results: Iterable[VariantResult],
) -> list[tuple[Diagnostic, list[VariantResult]]]:
    """Group warnings that kernels were compiled with by their text and by the kernel."""
    groups: dict[object, tuple[Diagnostic, list[VariantResult]]] = {}
    for result in results:
        for warning in result.diagnostics if result.status != "failed" else ():
            key = (warning.kind, warning.source, warning.text, result.variant.location)
            groups.setdefault(key, (warning, []))[1].append(result)
    return list(groups.values())


def _warning(warning: Diagnostic, results: Sequence[VariantResult], root: Path) -> Annotation:
    kernel = results[0].variant
    place = place_in([warning.place(kernel.base_dir), kernel.location], root)
    message = f"{warning.text}\nVariants: {names(results)}"
    return Annotation("warning", f"{kernel.name}: {warning.kind}", message, *place)


def _no_kernels(results: Sequence[VariantResult], root: Path) -> list[Annotation]:
    """Return an annotation for each kernel whose variants hold no Mosaic kernel."""
    groups: dict[Location, list[VariantResult]] = {}
    for result in filter(holds_no_kernel, results):
        groups.setdefault(result.variant.location, []).append(result)
    return [
        Annotation(
            "warning",
            f"{own[0].variant.name} holds no Pallas Mosaic GPU kernel",
            f"XLA wrote the code of: {names(own)}",
            *place_in([place], root),
        )
        for place, own in groups.items()
    ]


def _failure(results: Sequence[VariantResult], root: Path) -> Annotation:
    first = results[0]
    parts = [str(first.error or ""), *output_tail(first)]
    if len(results) > 1:
        parts.append(_each(results) if _differ(results) else f"Variants: {names(results)}")
    own = first.error.location if first.error else None
    place = place_in([own, first.variant.location], root)
    return Annotation("error", _title(results), "\n".join(parts), *place)


def _title(results: Sequence[VariantResult]) -> str:
    first = results[0]
    if len(results) == 1:
        return f"{first.variant.id} failed"
    if isinstance(first.error, BudgetError):
        return f"{first.variant.name}: {len(results):,} variants are over their budget"
    return f"{first.variant.id} failed and {len(results) - 1:,} more"


def _differ(results: Sequence[VariantResult]) -> bool:
    """Tell whether the messages of failures differ in more than the names of the variants."""
    return len({_reason(result.error) for result in results}) > 1


def _reason(error: PallascError | None) -> str:
    """Return an error's message without the name of the variant."""
    return "" if error is None else error.reason or error.message


def _each(results: Sequence[VariantResult]) -> str:
    """Return why each of the variants failed, a line each."""
    shown = results[1 : _NAMED + 1]
    lines = [_line(r.variant.id, r.error) for r in shown if r.error]
    more = len(results) - 1 - len(shown)
    return "\n".join([*lines, *([f"and {more:,} more"] if more else [])])


def _line(name: str, error: PallascError) -> str:
    message = error.message.partition("\n")[0]
    if isinstance(error, BudgetError):
        message = error.message.replace("\n", ", ")
    return message if error.reason else f"{name}: {message}"


def _spills(results: Sequence[VariantResult], root: Path) -> Annotation:
    worst = max(spill_bytes(result.artifact) for result in results if result.artifact)
    kernel = results[0].variant
    return Annotation(
        "warning",
        f"{kernel.name} spills registers",
        f"up to {count(worst, 'byte')} a thread: {names(results)}\n"
        "If that is intended, allow it in the spec with a budget for spill_bytes.",
        *place_in([kernel.location], root),
    )


def place_in(
    locations: Iterable[Location | None], root: Path
) -> tuple[str, int, int] | tuple[None, int, int]:
    """Return the first place that lies in the repository, as file, line and column."""
    for location in locations:
        file = relative_file(location.file, root) if location else None
        if location is not None and file is not None:
            return file, location.line, location.column
    return None, 0, 0


def at_most(annotations: Sequence[Annotation]) -> list[Annotation]:
    """Return as many as GitHub shows; the last of them lists the titles of the others."""
    if len(annotations) <= _SHOWN:
        return list(annotations)
    shown, rest = annotations[: _SHOWN - 1], annotations[_SHOWN - 1 :]
    titles = "\n".join(annotation.title for annotation in rest)
    return [*shown, Annotation(rest[0].kind, f"{count(len(rest), f'more {rest[0].kind}')}", titles)]


_MOST_NAMED = 10
_KINDS: Mapping[str, Literal["error", "warning", "notice"]] = MappingProxyType(
    {"error": "error", "warning": "warning", "note": "notice"}
)
"""GitHub's word for each severity, in the order in which they are printed."""


def check_commands(report: CheckReport, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the lines that annotate a check: findings, what did not compile, what was stopped.

    Variants with the same finding at one place share an annotation.
    """
    root = workspace_root(environment)
    shared: dict[object, tuple[Finding, list[VariantCheck]]] = {}
    for check in report.checks:
        for finding in distinct_findings(check.results):
            key = (finding.rule, finding.location, finding.message)
            shared.setdefault(key, (finding, []))[1].append(check)
    found = [_annotation(finding, checks, root) for finding, checks in shared.values()]
    found = [*_failures(report, root), *found]
    kinds = [[each for each in found if each.kind == kind] for kind in _KINDS.values()]
    return [each.command() for own in kinds for each in at_most(own)]


def _annotation(finding: Finding, checks: list[VariantCheck], root: Path) -> Annotation:
    names = [check.id for check in checks[:_MOST_NAMED]]
    more = len(checks) - len(names)
    named = ", ".join([*names, *([f"and {count(more, 'other')}"] if more else [])])
    lines = [line.strip() for line in finding_lines(finding, checks[0].place)]
    return Annotation(
        _KINDS[finding.severity],
        f"{finding.rule}: {checks[0].id}",
        "\n".join([*lines, f"Variants: {named}"]),
        *place_in([finding.location, checks[0].place], root),
    )


def _failures(report: CheckReport, root: Path) -> list[Annotation]:
    """Return an annotation for each variant that did not compile, or whose check was stopped."""
    failures = []
    for check in report.checks:
        built = check.built.error if check.built is not None else None
        named = {"build": built} if built is not None else {}
        for level, error in {**named, **check.errors}.items():
            place = place_in([error.location, check.place], root)
            failures.append(Annotation("error", f"{check.id}: {level}", str(error), *place))
    return failures
