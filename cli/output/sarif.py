"""A check's report as SARIF 2.1.0, which code hosts show at the lines of a change.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. One run; its driver has every rule
of the levels that were asked for, found or not, so that a host can tell a fixed finding from one
that is no longer looked for. Files below the repository are named relative to it (`%SRCROOT%`),
others by their whole path. A finding without a line is at its kernel in the spec, or at its bundle;
what only has an action key has no file, and its findings are notifications of the invocation. So is
what could not be checked, and what did not compile: the run is not successful where the check was
stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pallasc.checks.merge import distinct_findings
from pallasc.cli.output.check_text import interrupted_lines, place_texts
from pallasc.cli.output.text import relative_file
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.plain_text import printable

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, Place, Rule
    from pallasc.checks.report import Report, VariantCheck
    from pallasc.errors import Location, PallascError

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
_FINGERPRINT = "pallasc/v1"


def sarif(
    report: Report,
    rules: Mapping[str, Rule],
    root: Path,
    *,
    version: str,
    error: PallascError | None = None,
) -> bytes:
    """Return a report as SARIF.

    Args:
        report: what was found.
        rules: those of the levels that were asked for, by name.
        root: the folder with the repository.
        version: of pallasc.
        error: what ended the whole check, if something did.
    """
    numbers = {name: number for number, name in enumerate(rules)}
    notes = [
        *_notifications(report, root),
        *([_notification(str(error), "error")] if error else []),
    ]
    run = {
        "tool": {
            "driver": {
                "name": "pallasc",
                "semanticVersion": version,
                "rules": [_rule(rule) for rule in rules.values()],
            }
        },
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.as_uri()}/"}},
        "invocations": [
            {
                "executionSuccessful": not any(note["level"] == "error" for note in notes),
                "toolExecutionNotifications": notes,
            }
        ],
        # Python counts code points; the default of SARIF is UTF-16 code units.
        "columnKind": "unicodeCodePoints",
        "results": list(_results(report, numbers, root)),
    }
    text = json.dumps({"$schema": SCHEMA, "version": VERSION, "runs": [run]}, indent=1)
    return f"{text}\n".encode("ascii")  # json has escaped everything else


def _rule(rule: Rule) -> dict[str, object]:
    """Return a rule; it has no `helpUri`, as the documentation has no public address."""
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.help}"},
        "help": {"text": rule.help},
    }


def _results(report: Report, numbers: Mapping[str, int], root: Path) -> Iterator[dict[str, object]]:
    """Yield a result for each finding; variants and levels that share one share the result.

    Hosts refuse results without a place: `_placeless` has those.
    """
    shared: dict[object, tuple[Finding, list[VariantCheck]]] = {}
    for check in report.checks:
        for finding in distinct_findings(check.results):
            # A host shows equal results at one line once for each: a matrix would flood it.
            same = (_fingerprint(finding, check, root), finding.location)
            shared.setdefault(same, (finding, []))[1].append(check)
    for finding, checks in shared.values():
        location = finding.location or checks[0].place
        if location is not None:
            yield _result(finding, location, checks, numbers, root)


def _result(
    finding: Finding,
    location: Location,
    checks: list[VariantCheck],
    numbers: Mapping[str, int],
    root: Path,
) -> dict[str, object]:
    names = [check.id for check in checks]
    text = printable(f"{_words(finding)}\n\nVariants: {', '.join(names)}")
    result: dict[str, object] = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [{"physicalLocation": _physical(location, root)}],
        "partialFingerprints": {_FINGERPRINT: _fingerprint(finding, checks[0], root)},
    }
    if finding.rule in numbers:
        result["ruleIndex"] = numbers[finding.rule]
    related = list(_related(finding.places, root))
    if related:
        result["relatedLocations"] = related
    return result


def _words(finding: Finding) -> str:
    at = f" (at {finding.instruction})" if finding.instruction else ""
    hint = f" {finding.hint}" if finding.hint else ""
    # Others become related locations.
    placeless = tuple(place for place in finding.places if place.location is None)
    texts = "".join(f"\n- {text}" for text in place_texts(replace(finding, places=placeless)))
    return f"{finding.message.rstrip('.')}{at}.{hint}{texts}"


def _related(places: Iterable[Place], root: Path) -> Iterator[dict[str, object]]:
    for number, place in enumerate(places):
        if place.location is not None:
            yield {
                "id": number,
                "message": {"text": printable(place.text)},
                "physicalLocation": _physical(place.location, root),
            }


def _physical(location: Location, root: Path) -> dict[str, object]:
    inside = relative_file(location.file, root)
    if inside is not None:
        file: dict[str, object] = {"uri": quote(os.fsencode(inside)), "uriBaseId": _ROOT}
    else:
        file = {"uri": Path(os.path.abspath(location.file)).as_uri()}
    region = {"startLine": location.line or 1}  # hosts refuse a file without a line: a bundle
    if location.column:  # SARIF counts from 1; 0 is unknown here
        region["startColumn"] = location.column
    return {"artifactLocation": file, "region": region}


def _fingerprint(finding: Finding, check: VariantCheck, root: Path) -> str:
    """Return what stays the same while a finding moves with its line: rule, file, kernel, words."""
    file = relative_file(finding.location.file, root) if finding.location else None
    kernel = check.variant.name if check.variant else check.id
    return digest(canonical_json([finding.rule, file or "", kernel, finding.message]))


def _placeless(check: VariantCheck) -> Iterator[dict[str, object]]:
    """Yield a notification for each finding that no file can be named for: it has only a key."""
    if check.place is not None:
        return
    for finding in distinct_findings(check.results):
        if finding.location is None:
            level = "note" if finding.severity == "note" else "warning"
            yield _notification(f"{check.id}: {finding.rule}: {_words(finding)}", level)


def _notifications(report: Report, root: Path) -> Iterator[dict[str, object]]:
    for check in report.checks:
        place = check.place
        yield from _placeless(check)
        built = check.built.error if check.built is not None else None
        if built is not None:
            yield _notification(f"{check.id}: {built.message}", "error", place, root)
        for result in check.results:
            if result.status == "not checked":
                # A level that does not apply must not make the run unsuccessful.
                level = "error" if result.stopped else "note"
                text = f"{check.id}: {result.level}: {result.reason}"
                yield _notification(text, level, place, root)
    for failed in report.errors:
        yield _notification(str(failed), "error")
    if report.interrupted:
        left = f"{report.left:,} of {len(report.checks):,} variants"
        lines = [f"interrupted: {left} lack results of a level", *interrupted_lines(report)]
        yield _notification("\n".join(lines), "error")


def _notification(
    text: str, level: str, place: Location | None = None, root: Path | None = None
) -> dict[str, object]:
    note: dict[str, object] = {"level": level, "message": {"text": printable(text)}}
    if place is not None and root is not None:
        note["locations"] = [{"physicalLocation": _physical(place, root)}]
    return note
