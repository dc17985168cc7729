"""A build's report as JUnit XML, which GitLab, Jenkins and actions for GitHub read.

There is no standard. This is Jenkins' schema `junit-10.xsd` with what most readers accept besides:
`skipped` of `testsuites`, `file` and `line` of a `testcase`, and its `properties`, as pytest writes
them:

    testsuites  name tests failures errors skipped time
      testsuite   one a kernel, in the order of the specs: name tests failures errors skipped time;
                  the name of a shard's suite ends with it: `matmul (shard 3/8)`
        testcase    one a variant: name (its id), classname (the kernel), time, file and line of
                    the kernel in its spec; one more a kernel that has a budget, `matmul: budget`,
                  which fails for all variants that are over it, and they do not
          properties  those of `report_rows.junit_properties`: pallas_kernels is 0 where XLA
                      wrote all of them
          failure     message (its first line), type; its text is the whole message
          skipped     message
          system-out  the end of what the compiling process wrote, where it failed
          system-err  the warnings, a line each
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from pallasc.cli.render.failures import error_text
from pallasc.cli.render.report_rows import junit_properties
from pallasc.cli.terminal.output import write_report
from pallasc.cli.terminal.workspace import relative_file, workspace_root
from pallasc.errors import BudgetError
from pallasc.specs.plain_text import printable
from pallasc.specs.spec import Budget

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.shard import Shard
    from pallasc.errors import PallascError
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
