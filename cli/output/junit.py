"""JUnit XML report of a build or a check, for GitLab, Jenkins, and GitHub actions.

JUnit XML has no standard. The format here is Jenkins' schema `junit-10.xsd` plus elements that most
readers accept: `skipped` of `testsuites`, `file` and `line` of a `testcase`, and `properties` of a
`testcase`, as written by pytest:

    testsuites  name tests failures errors skipped time
      testsuite   name tests failures errors skipped time; for a shard, the name ends with it:
                  `matmul (shard 3/8)`
        testcase    name, classname (the suite), time, file and line of the kernel in its spec, or
                    the file of its bundle
          properties, failure or error or skipped, system-out, system-err

In a build, each kernel is a suite, in the order of the specs, and each variant is a case.
Properties are listed in `_properties`; pallas_kernels is 0 if XLA generated all kernels. A
failure has the first line of the message, the error's type, and the full message as text.
system-out has the end of the compiling process's output, system-err the warnings, one per line.

In a check, each level is a suite. A failure has the message and type (the rule) of the first error
or warning, and all errors and warnings as text. system-out has the notes, which do not fail a case.
An error is a check that was stopped or interrupted, or a variant that failed to compile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from pallasc.cli.output.check_text import finding_lines
from pallasc.cli.output.outcome import Outcome, kernel_facts
from pallasc.cli.output.text import error_text, relative_file
from pallasc.specs.spelling import printable

if TYPE_CHECKING:
    from pallasc.cli.output.outcome import Run
    from pallasc.compiler.builds.report import VariantResult

_FORBIDDEN = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""


def junit_xml(run: Run, root: Path) -> bytes:
    """Return a build or a check as JUnit XML, with paths of files below `root` relative to it."""
    of_shard = "" if run.share is None else f" (shard {run.share.shard})"
    suites: dict[str, list[Outcome]] = {name: [] for name in run.suites}
    for outcome in run.outcomes:
        suites.setdefault(outcome.suite, []).append(outcome)
    if run.errors:
        suites["pallasc"] = [
            Outcome(run.command, "pallasc", problem="error", message=error.message, error=error)
            for error in run.errors
        ]
    top = ElementTree.Element("testsuites")
    for name, outcomes in suites.items():
        cases = [_case(outcome, root) for outcome in outcomes]
        seconds = sum(outcome.seconds for outcome in outcomes)
        totals = _totals(f"{name}{of_shard}", cases, seconds)
        ElementTree.SubElement(top, "testsuite", totals).extend(cases)
    name = f"pallasc {run.command}{of_shard}"
    top.attrib.update(_totals(name, list(top.iter("testcase")), run.report.seconds))
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


def _case(outcome: Outcome, root: Path) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        name=clean(outcome.id),
        classname=clean(outcome.suite),
        time=f"{outcome.seconds:.3f}",
    )
    if (place := outcome.place) is not None:
        case.set("file", clean(relative_file(place.file, root) or place.file))
        if place.line:
            case.set("line", str(place.line))
    result, output, warnings = outcome.result, _findings_text(outcome, notes=True), ""
    if result is not None:
        output = result.output
        properties = ElementTree.SubElement(case, "properties")
        for name, value in _properties(outcome, result).items():
            ElementTree.SubElement(properties, "property", name=name, value=clean(value))
        warnings = "\n".join(map(str, result.diagnostics))
    if outcome.problem:
        element = ElementTree.SubElement(case, outcome.problem, message=clean(outcome.message))
        kind, text = _details(outcome)
        if kind:
            element.set("type", clean(kind))
        element.text = clean(text) or None
    for tag, text in (("system-out", output), ("system-err", warnings)):
        if (text := clean(text)).strip():
            ElementTree.SubElement(case, tag).text = text
    return case


def _properties(outcome: Outcome, result: VariantResult) -> dict[str, str]:
    """Return a variant's properties for JUnit XML, omitting missing values."""
    properties: dict[str, Any] = {
        "status": outcome.status,
        "reason": result.reason,
        "target": result.variant.target.name,
        "arch": result.variant.target.arch,
        "action_key": result.action_key,
    }
    if outcome.resources is not None:
        properties |= outcome.resources._asdict()
    if result.artifact is not None:
        properties |= kernel_facts(result.artifact)
        properties["xla_kernels"] = ", ".join(properties["xla_kernels"])
    properties["warnings"] = outcome.warnings or None
    return {name: str(value) for name, value in properties.items() if value not in (None, "")}


def clean(text: str) -> str:
    """Remove escape sequences and characters that XML does not allow; line ends become LF."""
    return _FORBIDDEN.sub("", printable(text))


def _details(outcome: Outcome) -> tuple[str, str]:
    """Return the type and full text of a problem."""
    if outcome.problem == "failure" and outcome.findings:
        first = next(finding for finding in outcome.findings if finding.severity != "note")
        return first.rule, _findings_text(outcome, notes=False)
    if outcome.error is None:
        return "", ""
    return type(outcome.error).__name__, error_text(outcome.error)


def _findings_text(outcome: Outcome, *, notes: bool) -> str:
    return "\n".join(
        line.removeprefix("  ")
        for finding in outcome.findings
        if (finding.severity == "note") == notes
        for line in finding_lines(finding, outcome.place)
    )
