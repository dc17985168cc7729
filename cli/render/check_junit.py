"""A check's report as JUnit XML, in the schema of `cli/render/junit.py`.

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

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pallasc.cli.render.check_text import finding_lines
from pallasc.cli.render.junit import clean, document, ended, seconds_text
from pallasc.cli.terminal.workspace import relative_file

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, LevelResult
    from pallasc.checks.report import Report, VariantCheck
    from pallasc.compiler.builds.shard import Shard
    from pallasc.errors import Location, PallascError

_BUILD = "build"


def check_junit(
    report: Report, root: Path, error: PallascError | None = None, shard: Shard | None = None
) -> bytes:
    """Return a report as XML; files below `root` are named relative to it."""
    suites = [_suite(report, name, root) for name in report.levels]
    failed = [check for check in report.checks if _build_error(check) is not None]
    if failed:
        suites.append(_build_suite(failed, root))
    suites += [ended(each, "check") for each in [*report.errors, *([error] if error else [])]]
    top = ElementTree.Element("testsuites", _totals("pallasc check", suites))
    top.set("time", seconds_text(report.seconds))
    top.extend(suites)
    if shard is not None:
        for element in (top, *suites):
            element.set("name", f"{element.get('name')} (shard {shard})")
    return document(top)


def _totals(name: str, parts: Sequence[ElementTree.Element]) -> dict[str, str]:
    names = ("tests", "failures", "errors", "skipped")
    sums = {key: str(sum(int(part.get(key, "0")) for part in parts)) for key in names}
    return {"name": clean(name), **sums}


def _suite(report: Report, level: str, root: Path) -> ElementTree.Element:
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
        case = _case(check, level, result.seconds, root)
        _add_result(case, result, check.place)
        suite.append(case)
    for check in left:
        case = _case(check, level, 0.0, root)
        ElementTree.SubElement(case, "error", message="not checked: interrupted")
        suite.append(case)
    return suite


def _case(check: VariantCheck, level: str, seconds: float, root: Path) -> ElementTree.Element:
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
        case = _case(check, _BUILD, 0.0, root)
        error = _build_error(check)
        if error is not None:
            element = ElementTree.SubElement(
                case, "error", message=clean(error.message), type=type(error).__name__
            )
            element.text = clean(str(error))
        suite.append(case)
    return suite
