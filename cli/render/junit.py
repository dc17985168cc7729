"""Reports of builds and checks as JUnit XML.

A build's report as JUnit XML, which GitLab, Jenkins and actions for GitHub read.

There is no standard. This is Jenkins' schema `junit-10.xsd` with what most readers accept besides:
`skipped` of `testsuites`, `file` and `line` of a `testcase`, and its `properties`, as pytest writes
them:

    testsuites  name tests failures errors skipped time
      testsuite   one a kernel, in the order of the specs: name tests failures errors skipped time;
                  the name of a shard's suite ends with it: `matmul (shard 3/8)`
        testcase    one a variant: name (its id), classname (the kernel), time, file and line of
                    the kernel in its spec; one more a kernel that has a budget, `matmul: budget`,
                  which fails for all variants that are over it, and they do not
          properties  those of `junit_properties`: pallas_kernels is 0 where XLA
                      wrote all of them
          failure     message (its first line), type; its text is the whole message
          skipped     message
          system-out  the end of what the compiling process wrote, where it failed
          system-err  the warnings, a line each

A check's report as JUnit XML, in the schema of `cli/render/junit.py`.

testsuites  name tests failures errors skipped time
testsuite   one a level: name tests failures errors skipped time; the name of a shard's suite ends
            with it: `artifact (shard 3/8)`
testcase    one a variant: name (its id), classname (the level), time, file and line of the
kernel in its spec, or the file of its bundle
failure     one a variant with errors or warnings: message and type (the rule) of the first; its
            text has all of them, with places and what to do
system-out  notes, which fail nothing
error       message: the check of this variant was stopped or interrupted, or it did not compile
skipped     message: why it was not checked
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pallasc.cli.render.check_text import finding_lines
from pallasc.cli.render.failures import error_text
from pallasc.cli.render.report_rows import junit_properties
from pallasc.cli.terminal.output import relative_file, workspace_root, write_report
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
    from pallasc.specs.spec import Variant


_NOT_DONE = {
    "skipped": "the build stopped before",
    "missing": "not in the store, and nothing was to be compiled",
}
_UNLIMITED = Budget()
_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""


def write_junit(
    report: Report,
    path: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    error: PallascError | None = None,
    shard: Shard | None = None,
) -> None:
    """Write a report to `path`: the whole file, or nothing.

    Args:
        report: what the build did.
        path: the file; folders above it are made.
        environment: tells where the repository is, to which file names are relative.
        error: what ended the whole build, if something did.
        shard: the shard that was built, None for all variants.

    Raises:
        SpecError: it cannot be written.
    """
    data = junit_xml(report, workspace_root(environment), error, shard)
    write_report(data, path, "--junit")


def junit_xml(
    report: Report, root: Path, error: PallascError | None = None, shard: Shard | None = None
) -> bytes:
    """Return a report as XML; files below `root` are named relative to it."""
    of_shard = "" if shard is None else f" (shard {shard})"
    suites: dict[str, list[VariantResult]] = {}
    for result in report.results:
        suites.setdefault(result.variant.name, []).append(result)
    top = ElementTree.Element("testsuites")
    for name, results in suites.items():
        cases = [*(_case(result, root) for result in results), *_budget_cases(results, root)]
        seconds = sum(result.seconds for result in results)
        suite = ElementTree.SubElement(
            top, "testsuite", _totals(f"{name}{of_shard}", cases, seconds)
        )
        suite.extend(cases)
    errors = [*report.errors, *([error] if error else [])]
    top.extend(ended(each, "build") for each in errors)
    totals = _totals(f"pallasc build{of_shard}", list(top.iter("testcase")), report.seconds)
    top.attrib.update(totals)
    return document(top)


def ended(error: PallascError, name: str) -> ElementTree.Element:
    """Return a suite of one case: the error that ended the whole build, or what is named."""
    suite = ElementTree.Element(
        "testsuite", name="pallasc", tests="1", failures="0", errors="1", skipped="0", time="0.000"
    )
    case = ElementTree.SubElement(suite, "testcase", name=name, classname="pallasc", time="0.000")
    element = ElementTree.SubElement(
        case, "error", message=clean(error.message), type=type(error).__name__
    )
    element.text = clean(error_text(error))
    return suite


def _totals(name: str, cases: Sequence[ElementTree.Element], seconds: float) -> dict[str, str]:
    def having(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    return {
        "name": clean(name),
        "tests": str(len(cases)),
        "failures": having("failure"),
        "errors": having("error"),
        "skipped": having("skipped"),
        "time": seconds_text(seconds),
    }


def seconds_text(seconds: float) -> str:
    """Return a time as JUnit has it."""
    return f"{seconds:.3f}"


def _empty_case(name: str, variant: Variant, root: Path, seconds: float) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        name=clean(name),
        classname=clean(variant.name),
        time=seconds_text(seconds),
        file=clean(relative_file(variant.location.file, root) or variant.location.file),
    )
    if variant.location.line:
        case.set("line", str(variant.location.line))
    return case


def _budget_cases(results: Sequence[VariantResult], root: Path) -> list[ElementTree.Element]:
    """Return the case of a kernel's budget, none where it has no budget."""
    over = [result for result in results if isinstance(result.error, BudgetError)]
    variant = results[0].variant
    if not over and all(result.variant.budget == _UNLIMITED for result in results):
        return []
    case = _empty_case(f"{variant.name}: budget", variant, root, 0.0)
    if len(over) == 1:
        _add_failure(case, over[0])
    elif over:
        failure = ElementTree.SubElement(case, "failure", type=BudgetError.__name__)
        failure.set("message", f"{len(over):,} variants are over their budget")
        lines = [f"{each.variant.id}: {each.error.message}" for each in over if each.error]
        failure.text = clean("\n".join(lines))
    return [case]


def _case(result: VariantResult, root: Path) -> ElementTree.Element:
    case = _empty_case(result.variant.id, result.variant, root, result.seconds)
    properties = ElementTree.SubElement(case, "properties")
    for name, value in junit_properties(result).items():
        ElementTree.SubElement(properties, "property", name=name, value=clean(value))
    if result.status == "failed" and not isinstance(result.error, BudgetError):
        _add_failure(case, result)
    elif result.status in _NOT_DONE:
        ElementTree.SubElement(case, "skipped", message=_NOT_DONE[result.status])
    if result.diagnostics:
        warnings = clean("\n".join(map(str, result.diagnostics)))
        ElementTree.SubElement(case, "system-err").text = warnings
    return case


def _add_failure(case: ElementTree.Element, result: VariantResult) -> None:
    failure = ElementTree.SubElement(case, "failure")
    if result.error is not None:
        lines = clean(result.error.message).strip().splitlines()
        failure.set("message", lines[0] if lines else "")
        failure.set("type", type(result.error).__name__)
        failure.text = clean(error_text(result.error))
    output = clean(result.output)
    if output.strip():
        ElementTree.SubElement(case, "system-out").text = output


def document(top: ElementTree.Element) -> bytes:
    """Return an element with all that is in it as a file."""
    ElementTree.indent(top)
    text: bytes = ElementTree.tostring(top, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def clean(text: str) -> str:
    """Return text that XML can hold, without escape sequences; lines end in a line feed."""
    return _FORBIDDEN.sub("", printable(text))


_BUILD = "build"


def check_junit(
    report: CheckReport, root: Path, error: PallascError | None = None, shard: Shard | None = None
) -> bytes:
    """Return a report as XML; files below `root` are named relative to it."""
    suites = [_suite(report, name, root) for name in report.levels]
    failed = [check for check in report.checks if _build_error(check) is not None]
    if failed:
        suites.append(_build_suite(failed, root))
    suites += [ended(each, "check") for each in [*report.errors, *([error] if error else [])]]
    top = ElementTree.Element("testsuites", _check_totals("pallasc check", suites))
    top.set("time", seconds_text(report.seconds))
    top.extend(suites)
    if shard is not None:
        for element in (top, *suites):
            element.set("name", f"{element.get('name')} (shard {shard})")
    return document(top)


def _check_totals(name: str, parts: Sequence[ElementTree.Element]) -> dict[str, str]:
    names = ("tests", "failures", "errors", "skipped")
    sums = {key: str(sum(int(part.get(key, "0")) for part in parts)) for key in names}
    return {"name": clean(name), **sums}


def _suite(report: CheckReport, level: str, root: Path) -> ElementTree.Element:
    pairs = [
        (check, result)
        for check in report.checks
        for result in check.results
        if result.level == level
    ]
    results = [result for _, result in pairs]
    left = [check for check in report.checks if level in report.missing(check)]
    suite = ElementTree.Element(
        "testsuite",
        name=clean(level),
        tests=str(len(pairs) + len(left)),
        failures=str(sum(result.fails and not result.stopped for result in results)),
        errors=str(sum(result.stopped for result in results) + len(left)),
        skipped=str(sum(r.status == "not checked" and not r.stopped for r in results)),
        time=seconds_text(sum(result.seconds for result in results)),
    )
    for check, result in pairs:
        case = _check_case(check, level, result.seconds, root)
        _add_result(case, result, check.place)
        suite.append(case)
    for check in left:
        case = _check_case(check, level, 0.0, root)
        ElementTree.SubElement(case, "error", message="not checked: interrupted")
        suite.append(case)
    return suite


def _check_case(check: VariantCheck, level: str, seconds: float, root: Path) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", name=clean(check.id), classname=clean(level), time=seconds_text(seconds)
    )
    place = check.place
    if place is not None:
        case.set("file", clean(relative_file(place.file, root) or place.file))
        if place.line:
            case.set("line", str(place.line))
    return case


def _add_result(case: ElementTree.Element, result: LevelResult, place: Location | None) -> None:
    failing = [finding for finding in result.findings if finding.severity != "note"]
    if failing:
        more = f" (and {len(failing) - 1:,} more)" if len(failing) > 1 else ""
        first = failing[0]
        element = ElementTree.SubElement(
            case, "failure", message=clean(f"{first.message}{more}"), type=clean(first.rule)
        )
        element.text = _text(failing, place)
    if result.status == "not checked":
        kind = "error" if result.stopped else "skipped"
        ElementTree.SubElement(case, kind, message=clean(result.reason))
    notes = [finding for finding in result.findings if finding.severity == "note"]
    if notes:
        ElementTree.SubElement(case, "system-out").text = _text(notes, place)


def _text(findings: Sequence[Finding], place: Location | None) -> str:
    lines = [line for finding in findings for line in finding_lines(finding, place)]
    return clean("\n".join(line.removeprefix("  ") for line in lines))


def _build_error(check: VariantCheck) -> PallascError | None:
    return check.built.error if check.built is not None else None


def _build_suite(failed: Sequence[VariantCheck], root: Path) -> ElementTree.Element:
    """Return a suite of the variants that did not compile."""
    suite = ElementTree.Element(
        "testsuite",
        name=_BUILD,
        tests=str(len(failed)),
        failures="0",
        errors=str(len(failed)),
        skipped="0",
        time=seconds_text(0.0),
    )
    for check in failed:
        case = _check_case(check, _BUILD, 0.0, root)
        error = _build_error(check)
        if error is not None:
            element = ElementTree.SubElement(
                case, "error", message=clean(error.message), type=type(error).__name__
            )
            element.text = clean(str(error))
        suite.append(case)
    return suite
