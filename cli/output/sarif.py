"""SARIF 2.1.0 report of a check, which code hosts show at the lines of a change.

Format: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. The report has one run.
Its driver lists all rules of the requested levels, with or without findings, so that a host can
distinguish fixed findings from findings that are no longer checked for. Paths of files in the
repository are relative to it (`%SRCROOT%`); other paths are absolute. A finding without a line is
located at its kernel in the spec, or at its bundle. An artifact named by its action key has no
file, so its findings become notifications of the invocation, as do variants that could not be
checked or compiled. The run is unsuccessful if a check was stopped or a variant failed to compile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pallasc.cli.output.check_text import interrupted_lines, place_texts
from pallasc.cli.output.outcome import INTERRUPTED, UNBUILT, grouped
from pallasc.cli.output.text import relative_file
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.spelling import printable

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, Place, Rule
    from pallasc.cli.output.outcome import Found, Run
    from pallasc.errors import Location

VERSION = "2.1.0"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
_FINGERPRINT = "pallasc/v1"


def sarif(run: Run, rules: Mapping[str, Rule], root: Path, *, version: str) -> bytes:
    """Return a check as SARIF.

    Args:
        run: record of the check.
        rules: rules of the requested levels, by name.
        root: folder of the repository.
        version: version of pallasc.
    """
    numbers = {name: number for number, name in enumerate(rules)}
    notes = list(_notifications(run, root))
    # A host shows equal results at one line separately, so a matrix would flood it. Hosts also
    # reject results without a location; `_notifications` reports those.
    shared = grouped(run.found, lambda found: (_fingerprint(found, root), found.finding.location))
    results = (_result(group, numbers, root) for group in shared if _location(group[0]))
    record = {
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
        # Python counts code points; SARIF's default is UTF-16 code units.
        "columnKind": "unicodeCodePoints",
        "results": list(results),
    }
    text = json.dumps({"$schema": SCHEMA, "version": VERSION, "runs": [record]}, indent=1)
    return f"{text}\n".encode("ascii")  # json has escaped all other characters


def _rule(rule: Rule) -> dict[str, object]:
    """Return a rule, without `helpUri` because the documentation has no public address."""
    return {
        "id": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.help}"},
        "help": {"text": rule.help},
    }


def _location(found: Found) -> Location | None:
    return found.finding.location or found.place


def _result(group: list[Found], numbers: Mapping[str, int], root: Path) -> dict[str, object]:
    """Return one SARIF result for a finding shared by variants and levels."""
    finding = group[0].finding
    names = [found.id for found in group]
    text = printable(f"{_words(finding)}\n\nVariants: {', '.join(names)}")
    result: dict[str, object] = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": text},
        "locations": _locations(_location(group[0]), root),
        "partialFingerprints": {_FINGERPRINT: _fingerprint(group[0], root)},
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
    # Places with a location become related locations.
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
    region = {"startLine": location.line or 1}  # hosts require a line, also for a bundle
    if location.column:  # SARIF columns start at 1; 0 means unknown here
        region["startColumn"] = location.column
    return {"artifactLocation": file, "region": region}


def _locations(location: Location | None, root: Path) -> list[dict[str, object]]:
    return [{"physicalLocation": _physical(location, root)}] if location else []


def _fingerprint(found: Found, root: Path) -> str:
    """Return an id that does not depend on the line: digest of rule, file, kernel and message."""
    finding = found.finding
    file = relative_file(finding.location.file, root) if finding.location else None
    return digest(canonical_json([finding.rule, file or "", found.kernel, finding.message]))


def _notifications(run: Run, root: Path) -> Iterator[dict[str, object]]:
    for found in run.found:
        finding = found.finding
        if _location(found) is None:
            level = "note" if finding.severity == "note" else "warning"
            yield _notification(f"{found.id}: {finding.rule}: {_words(finding)}", level)
    for outcome in run.outcomes:
        if outcome.problem in ("error", "skipped") and outcome.message != INTERRUPTED:
            # A level that does not apply must not make the run unsuccessful.
            level = "error" if outcome.problem == "error" else "note"
            suite = "" if outcome.suite == UNBUILT else f"{outcome.suite}: "
            note = _notification(f"{outcome.id}: {suite}{outcome.message}", level)
            if outcome.place is not None:
                note["locations"] = _locations(outcome.place, root)
            yield note
    for error in run.errors:
        yield _notification(str(error), "error")
    if run.report.interrupted:
        yield _notification("\n".join(["interrupted", *interrupted_lines(run)]), "error")


def _notification(text: str, level: str) -> dict[str, object]:
    return {"level": level, "message": {"text": printable(text)}}
