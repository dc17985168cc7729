"""Outcomes of a build or a check as JUnit XML, which GitLab, Jenkins and actions for GitHub read.

There is no standard. This is Jenkins' schema `junit-10.xsd` with what most readers accept besides:
`skipped` of `testsuites`, `file` and `line` of a `testcase`, and its `properties`, as pytest writes
them:

    testsuites  name tests failures errors skipped time
      testsuite   name tests failures errors skipped time; the name of a shard's suite ends with
                  it: `matmul (shard 3/8)`
        testcase    name, classname (the suite), time, file and line of the kernel in its spec, or
                    the file of its bundle
          properties, failure or error or skipped, system-out, system-err

Of a build, a suite is a kernel, in the order of the specs, and a case is a variant; one more case a
kernel that has a budget, `matmul: budget`, fails for all variants that are over it, and they do
not. Properties are those of `junit_properties`: pallas_kernels is 0 where XLA wrote all of them. A
failure has the first line of the message, its type, and the whole message as text; system-out has
the end of what the compiling process wrote, system-err the warnings, a line each.

Of a check, a suite is a level. A failure has message and type (the rule) of the first error or
warning, and all of them as text; system-out has notes, which fail nothing. An error is a check of a
variant that was stopped or interrupted, or a variant that did not compile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from xml.etree import ElementTree

from pallasc.cli.output.check_text import finding_lines
from pallasc.cli.output.exits import error_text
from pallasc.cli.output.json import junit_properties
from pallasc.cli.output.text import relative_file
from pallasc.errors import BudgetError
from pallasc.specs.plain_text import printable
from pallasc.specs.spec import Budget

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.shard import Shard
    from pallasc.errors import Location, PallascError

_NOT_DONE = {
    "skipped": "the build stopped before",
    "missing": "not in the store, and nothing was to be compiled",
}
_UNLIMITED = Budget()
_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""


class Problem(NamedTuple):
    """Why an outcome is not a success: the element and attributes of JUnit."""

    tag: Literal["failure", "error", "skipped"]
    message: str
    kind: str = ""
    text: str = ""


class Outcome(NamedTuple):
    """What happened to one variant in a build, or at one level of a check."""

    id: str
    seconds: float = 0.0
    place: Location | None = None
    problem: Problem | None = None
    properties: Mapping[str, str] | None = None
    output: str = ""
    warnings: str = ""


Suites = Iterable[tuple[str, Sequence[Outcome]]]


def junit_xml(
    report: Report, root: Path, error: PallascError | None = None, shard: Shard | None = None
) -> bytes:
    """Return the report of a build as XML; files below `root` are named relative to it."""
    return _document("build", report, _build_suites(report), root, error, shard)


def check_junit(
    report: CheckReport, root: Path, error: PallascError | None = None, shard: Shard | None = None
) -> bytes:
    """Return the report of a check as XML; files below `root` are named relative to it."""
    return _document("check", report, _check_suites(report), root, error, shard)


def _document(
    command: str,
    report: Report | CheckReport,
    suites: Suites,
    root: Path,
    error: PallascError | None,
    shard: Shard | None,
) -> bytes:
    of_shard = "" if shard is None else f" (shard {shard})"
    ended = [("pallasc", [_not_done(command, each)]) for each in report.errors]
    ended += [("pallasc", [_not_done(command, error)])] if error else []
    top = ElementTree.Element("testsuites")
    for name, outcomes in [*suites, *ended]:
        cases = [_case(name, outcome, root) for outcome in outcomes]
        seconds = sum(outcome.seconds for outcome in outcomes)
        totals = _totals(f"{name}{of_shard}", cases, seconds)
        ElementTree.SubElement(top, "testsuite", totals).extend(cases)
    name = f"pallasc {command}{of_shard}"
    top.attrib.update(_totals(name, list(top.iter("testcase")), report.seconds))
    ElementTree.indent(top)
    text: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _totals(name: str, cases: Sequence[ElementTree.Element], seconds: float) -> dict[str, str]:
    def having(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    return {
        "name": clean(name),
        "tests": str(len(cases)),
        "failures": having("failure"),
        "errors": having("error"),
        "skipped": having("skipped"),
        "time": f"{seconds:.3f}",
    }


def _case(suite: str, outcome: Outcome, root: Path) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", name=clean(outcome.id), classname=clean(suite), time=f"{outcome.seconds:.3f}"
    )
    if (place := outcome.place) is not None:
        case.set("file", clean(relative_file(place.file, root) or place.file))
        if place.line:
            case.set("line", str(place.line))
    if outcome.properties is not None:
        properties = ElementTree.SubElement(case, "properties")
        for name, value in outcome.properties.items():
            ElementTree.SubElement(properties, "property", name=name, value=clean(value))
    if (problem := outcome.problem) is not None:
        element = ElementTree.SubElement(case, problem.tag, message=clean(problem.message))
        if problem.kind:
            element.set("type", clean(problem.kind))
        element.text = clean(problem.text) or None
    for tag, text in (("system-out", outcome.output), ("system-err", outcome.warnings)):
        if (text := clean(text)).strip():
            ElementTree.SubElement(case, tag).text = text
    return case


def clean(text: str) -> str:
    """Return text that XML can hold, without escape sequences; lines end in a line feed."""
    return _FORBIDDEN.sub("", printable(text))


def _not_done(name: str, error: PallascError, place: Location | None = None) -> Outcome:
    """Return the outcome of what could not be done at all."""
    problem = Problem("error", error.message, type(error).__name__, error_text(error))
    return Outcome(name, place=place, problem=problem)


def _build_suites(report: Report) -> Suites:
    suites: dict[str, list[VariantResult]] = {}
    for result in report.results:
        suites.setdefault(result.variant.name, []).append(result)
    for name, results in suites.items():
        yield name, [*map(_built, results), *_budget(results)]


def _built(result: VariantResult) -> Outcome:
    problem, output = None, ""
    if result.status == "failed" and not isinstance(result.error, BudgetError):
        problem, output = _failure(result), result.output
    elif result.status in _NOT_DONE:
        problem = Problem("skipped", _NOT_DONE[result.status])
    return Outcome(
        result.variant.id,
        result.seconds,
        result.variant.location,
        problem,
        junit_properties(result),
        output,
        "\n".join(map(str, result.diagnostics)),
    )


def _failure(result: VariantResult) -> Problem:
    error = result.error
    if error is None:
        return Problem("failure", "")
    first = "".join(clean(error.message).strip().splitlines()[:1])
    return Problem("failure", first, type(error).__name__, error_text(error))


def _budget(results: Sequence[VariantResult]) -> list[Outcome]:
    """Return the outcome of a kernel's budget, none where it has no budget."""
    over = [result for result in results if isinstance(result.error, BudgetError)]
    variant = results[0].variant
    if not over and all(result.variant.budget == _UNLIMITED for result in results):
        return []
    problem = _failure(over[0]) if over else None
    if len(over) > 1:
        lines = [f"{each.variant.id}: {each.error.message}" for each in over if each.error]
        message = f"{len(over):,} variants are over their budget"
        problem = Problem("failure", message, BudgetError.__name__, "\n".join(lines))
    output = over[0].output if len(over) == 1 else ""
    place = variant.location
    return [Outcome(f"{variant.name}: budget", 0.0, place, problem, output=output)]


def _check_suites(report: CheckReport) -> Suites:
    for level in report.levels:
        outcomes = [
            _checked(check, result)
            for check in report.checks
            for result in check.results
            if result.level == level
        ]
        interrupted = Problem("error", "not checked: interrupted")
        outcomes += [
            Outcome(check.id, place=check.place, problem=interrupted)
            for check in report.checks
            if level in report.missing(check)
        ]
        yield level, outcomes
    failed = [
        _not_done(check.id, check.built.error, check.place)
        for check in report.checks
        if check.built is not None and check.built.error is not None
    ]
    if failed:
        yield "build", failed


def _checked(check: VariantCheck, result: LevelResult) -> Outcome:
    place, problem = check.place, None
    failing = [finding for finding in result.findings if finding.severity != "note"]
    notes = [finding for finding in result.findings if finding.severity == "note"]
    if failing:
        first = failing[0]
        more = f" (and {len(failing) - 1:,} more)" if len(failing) > 1 else ""
        problem = Problem("failure", f"{first.message}{more}", first.rule, _text(failing, place))
    elif result.status == "not checked":
        problem = Problem("error" if result.stopped else "skipped", result.reason)
    return Outcome(check.id, result.seconds, place, problem, output=_text(notes, place))


def _text(findings: Sequence[Finding], place: Location | None) -> str:
    lines = [line for finding in findings for line in finding_lines(finding, place)]
    return "\n".join(line.removeprefix("  ") for line in lines)
