"""A check's findings as workflow commands of GitHub, in the form of `cli/render/annotations.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pallasc.checks.merge import distinct_findings
from pallasc.cli.render.annotations import Annotation, at_most, place_in
from pallasc.cli.render.check_text import finding_lines
from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.workspace import workspace_root

if TYPE_CHECKING:
    from pathlib import Path

    from pallasc.checks.findings import Finding
    from pallasc.checks.report import Report, VariantCheck

_MOST_NAMED = 10
_KINDS: Mapping[str, Literal["error", "warning", "notice"]] = MappingProxyType(
    {"error": "error", "warning": "warning", "note": "notice"}
)
"""GitHub's word for each severity, in the order in which they are printed."""


def check_commands(report: Report, environment: Mapping[str, str] = os.environ) -> list[str]:
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


def _failures(report: Report, root: Path) -> list[Annotation]:
    """Return an annotation for each variant that did not compile, or whose check was stopped."""
    failures = []
    for check in report.checks:
        built = check.built.error if check.built is not None else None
        named = {"build": built} if built is not None else {}
        for level, error in {**named, **check.errors}.items():
            place = place_in([error.location, check.place], root)
            failures.append(Annotation("error", f"{check.id}: {level}", str(error), *place))
    return failures
