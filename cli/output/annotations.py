"""Failures and findings as workflow commands, which GitHub shows at the lines of a change.

A command is `::error file=F,line=N,col=N,title=T::message`, alone on its line. In the message `%`,
carriage return and line feed are escaped, in the other values `:` and `,` too; nothing else is.
GitHub shows 10 errors, 10 warnings and 10 notices of a step, and drops the others silently:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from pallasc.checks.merge import distinct_findings
from pallasc.cli.output.build_text import holds_no_kernel, names, output_tail
from pallasc.cli.output.check_text import finding_lines
from pallasc.cli.output.text import count, relative_file, workspace_root
from pallasc.errors import BudgetError
from pallasc.specs.plain_text import one_line, printable

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.errors import Location, PallascError

T = TypeVar("T")
Kind = Literal["error", "warning", "notice"]

_SHOWN = 10  # of each kind in a step, by GitHub
_NAMED = 10
_IN_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
_KINDS: Mapping[str, Kind] = MappingProxyType(
    {"error": "error", "warning": "warning", "note": "notice"}
)
"""GitHub's word for each severity, in the order in which they are printed."""


class Annotation(NamedTuple):
    """One remark at a place of a file, or at none."""

    kind: Kind
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


def github_command(error: PallascError, environment: Mapping[str, str] = os.environ) -> str:
    """Return the line that annotates an error which ends the whole build."""
    place = _place([error.location], workspace_root(environment))
    return Annotation("error", "pallasc", str(error), *place).command()


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
    failures = [_failure(results, root) for results in _grouped(report.failed, _cause)]
    return _commands([*failures, *_warnings(report, root)])


def check_commands(report: CheckReport, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the lines that annotate a check: findings, what did not compile, what was stopped.

    Variants with the same finding at one place share an annotation.
    """
    root = workspace_root(environment)
    found = [(f, check) for check in report.checks for f in distinct_findings(check.results)]
    shared = _grouped(found, lambda pair: (pair[0].rule, pair[0].location, pair[0].message))
    findings = [_finding(group, root) for group in shared]
    return _commands([*_check_failures(report, root), *findings])


def _commands(annotations: Iterable[Annotation]) -> list[str]:
    """Return as many of each kind as GitHub shows; the last lists the titles of the others."""
    lines = []
    for kind in _KINDS.values():
        shown = [annotation for annotation in annotations if annotation.kind == kind]
        if len(shown) > _SHOWN:
            shown, rest = shown[: _SHOWN - 1], shown[_SHOWN - 1 :]
            titles = "\n".join(annotation.title for annotation in rest)
            shown.append(Annotation(kind, f"{count(len(rest), f'more {kind}')}", titles))
        lines += [annotation.command() for annotation in shown]
    return lines


def _grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Return items with equal keys together, in the order of the first of each."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _place(
    locations: Iterable[Location | None], root: Path
) -> tuple[str, int, int] | tuple[None, int, int]:
    """Return the first place that lies in the repository, as file, line and column."""
    for location in locations:
        file = relative_file(location.file, root) if location else None
        if location is not None and file is not None:
            return file, location.line, location.column
    return None, 0, 0


def _cause(result: VariantResult) -> object:
    """Return what failures for one reason share; whatever is over a budget is one reason."""
    error = result.error
    if error is None:
        return result.variant.location
    reason = "" if isinstance(error, BudgetError) else error.kind or _reason(error)
    return error.location, type(error), reason


def _reason(error: PallascError) -> str:
    """Return an error's message without the name of the variant."""
    return error.reason or error.message


def _failure(results: Sequence[VariantResult], root: Path) -> Annotation:
    first, others = results[0], results[1:]
    error, variant = first.error, first.variant
    title = f"{variant.id} failed"
    parts = [str(error or ""), *output_tail(first)]
    if others:
        title += f" and {len(others):,} more"
        if isinstance(error, BudgetError):
            title = f"{variant.name}: {len(results):,} variants are over their budget"
        if len({_reason(result.error) for result in results if result.error}) > 1:
            parts += [_line(r.variant.id, r.error) for r in others[:_NAMED] if r.error]
            parts += [f"and {len(others) - _NAMED:,} more"] if len(others) > _NAMED else []
        else:
            parts.append(f"Variants: {names(results)}")
    place = _place([error.location if error else None, variant.location], root)
    return Annotation("error", title, "\n".join(parts), *place)


def _line(name: str, error: PallascError) -> str:
    message = error.message.partition("\n")[0]
    if isinstance(error, BudgetError):
        message = error.message.replace("\n", ", ")
    return message if error.reason else f"{name}: {message}"


def _warnings(report: Report, root: Path) -> Iterator[Annotation]:
    """Yield spills that no budget allows for, kernels that are XLA's alone, warnings and notes."""

    def place_of(result: VariantResult) -> Location:
        return result.variant.location

    spilling = [
        result
        for result in report.compiled
        if result.artifact is not None
        and result.artifact.spill_bytes
        and result.variant.budget.spill_bytes is None
    ]
    for results in _grouped(spilling, place_of):
        worst = max(result.artifact.spill_bytes for result in results if result.artifact)
        kernel = results[0].variant
        yield Annotation(
            "warning",
            f"{kernel.name} spills registers",
            f"up to {count(worst, 'byte')} a thread: {names(results)}\n"
            "If that is intended, allow it in the spec with a budget for spill_bytes.",
            *_place([kernel.location], root),
        )
    for results in _grouped(filter(holds_no_kernel, report.results), place_of):
        kernel = results[0].variant
        title = f"{kernel.name} holds no Pallas Mosaic GPU kernel"
        message = f"XLA wrote the code of: {names(results)}"
        yield Annotation("warning", title, message, *_place([kernel.location], root))
    told = [(w, r) for r in report.results if r.status != "failed" for w in r.diagnostics]
    for group in _grouped(told, lambda p: (p[0].kind, p[0].source, p[0].text, place_of(p[1]))):
        warning, kernel = group[0][0], group[0][1].variant
        message = f"{warning.text}\nVariants: {names([result for _, result in group])}"
        place = _place([warning.place(kernel.base_dir), kernel.location], root)
        yield Annotation("warning", f"{kernel.name}: {warning.kind}", message, *place)
    for note in report.notes:
        yield Annotation("warning", "pallasc", note)


def _finding(group: Sequence[tuple[Finding, VariantCheck]], root: Path) -> Annotation:
    finding, check = group[0]
    more = len(group) - _NAMED
    named = [each.id for _, each in group[:_NAMED]]
    named += [f"and {count(more, 'other')}"] if more > 0 else []
    lines = [line.strip() for line in finding_lines(finding, check.place)]
    return Annotation(
        _KINDS[finding.severity],
        f"{finding.rule}: {check.id}",
        "\n".join([*lines, f"Variants: {', '.join(named)}"]),
        *_place([finding.location, check.place], root),
    )


def _check_failures(report: CheckReport, root: Path) -> Iterator[Annotation]:
    """Yield an annotation for each variant that did not compile, or whose check was stopped."""
    for check in report.checks:
        built = check.built.error if check.built is not None else None
        named = {"build": built} if built is not None else {}
        for level, error in {**named, **check.errors}.items():
            place = _place([error.location, check.place], root)
            yield Annotation("error", f"{check.id}: {level}", str(error), *place)
