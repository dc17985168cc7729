"""Failures and findings for code hosts: GitHub workflow commands, and SARIF 2.1.0.

Hosts show both at the lines of a change. A workflow command is `::error file=F,line=N,col=N,title=T
::message` on a separate line. `%`, carriage return and line feed are escaped in all values, and `:`
and `,` in all values except the message. GitHub shows at most 10 errors, 10 warnings and 10 notices
per step, and silently drops the rest:
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands

Only checks write SARIF: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html. The file
has one run. Its driver lists all rules of the requested levels, with or without findings, so that a
host can distinguish fixed findings from findings that are no longer checked for. Paths of files in
the repository are relative to it (`%SRCROOT%`); other paths are absolute. A finding without a line
is located at its kernel in the spec, or at its bundle. An artifact named by its action key has no
file, so its findings become notifications of the invocation, as do variants that could not be
checked or compiled. The run is unsuccessful if a check was stopped or a variant failed to compile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import quote

from pallasc.cli.output.build_text import names, output_tail
from pallasc.cli.output.check_text import finding_lines, interrupted_lines, place_texts
from pallasc.cli.output.outcome import INTERRUPTED, UNBUILT, grouped
from pallasc.cli.output.text import count, first_of, relative_file
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.spelling import listed, one_line, printable

if TYPE_CHECKING:
    from pallasc.checks.findings import Finding, Place, Rule
    from pallasc.cli.output.outcome import Found, Outcome, Run
    from pallasc.errors import Location

Kind = Literal["error", "warning", "notice"]

_SHOWN = 10  # GitHub's limit for each kind, per step
_NAMED = 10
_IN_MESSAGE = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
_KINDS: Mapping[str, Kind] = {"error": "error", "warning": "warning", "note": "notice"}
"""GitHub's name for each severity, in print order."""


class Annotation(NamedTuple):
    """One annotation, shown at the first of its places that is in the repository, if any."""

    kind: Kind
    title: str
    message: str
    places: Sequence[Location | None] = ()

    def command(self, root: Path) -> str:
        """Return the workflow command, with file names relative to `root`."""
        values: dict[str, object] = {"title": self.title}
        for place in filter(None, self.places):
            if file := relative_file(place.file, root):
                values = {"file": file, "line": place.line, "col": place.column, **values}
                break
        shown = ",".join(
            f"{name}={one_line(str(value)).translate(_IN_PROPERTY)}"
            for name, value in values.items()
            if value
        )
        return f"::{self.kind} {shown}::{printable(self.message).translate(_IN_MESSAGE)}"


def github_commands(run: Run, root: Path) -> list[str]:
    """Return the workflow commands for a build or a check, within GitHub's limit for each kind.

    The order is: errors that ended the command, failures, findings, spills, warnings, notes.
    Variants that fail at the same place for the same reason share an annotation, even if their
    messages contain different variants, digests or numbers, such as messages about locks. Variants
    with the same finding share one, too. Spills that the variant's budget allows are omitted.
    """
    ended = [Annotation("error", "pallasc", str(e), [e.location]) for e in run.errors]
    failed = [o for o in run.outcomes if o.result is not None and o.problem == "failure"]
    shared = [_failure(group) for group in grouped(failed, _cause)]
    stopped = [
        Annotation("error", f"{o.id}: {o.suite}", str(o.error), [o.error.location, o.place])
        for o in run.outcomes
        if o.result is None and o.error is not None
    ]
    found = grouped(run.found, lambda f: (f.finding.rule, f.finding.location, f.finding.message))
    annotations = [*shared, *stopped, *map(_finding, found), *_warnings(run)]
    return [a.command(root) for a in (*ended, *_most(annotations))]


def _most(annotations: Sequence[Annotation]) -> Iterator[Annotation]:
    """Yield at most ten annotations of each kind; the tenth lists titles of the omitted ones."""
    for kind in _KINDS.values():
        shown = [annotation for annotation in annotations if annotation.kind == kind]
        if len(shown) > _SHOWN:
            shown, rest = shown[: _SHOWN - 1], shown[_SHOWN - 1 :]
            titles = "\n".join(annotation.title for annotation in rest)
            shown.append(Annotation(kind, f"{count(len(rest), f'more {kind}')}", titles))
        yield from shown


def _cause(outcome: Outcome) -> object:
    """Return a key that is equal for failures with the same reason at the same place."""
    error = outcome.error
    return error and (error.location, type(error), error.kind or error.reason or error.message)


def _failure(group: Sequence[Outcome]) -> Annotation:
    first, others = group[0], group[1:]
    error = first.error
    title = f"{first.id} failed{f' and {len(others):,} more' if others else ''}"
    parts = [str(error or ""), *output_tail(first)]
    reasons = {each.error.reason or each.error.message for each in group if each.error}
    if len(reasons) > 1:
        parts += listed([f"{each.id}: {each.message}" for each in others], _NAMED)
    elif others:
        parts.append(f"Variants: {names(group)}")
    places = [error.location if error else None, first.place]
    return Annotation("error", title, "\n".join(parts), places)


def _warnings(run: Run) -> Iterator[Annotation]:
    """Yield spills that no budget allows, variants without a Pallas kernel, warnings, and notes."""
    for group in grouped(filter(_unexpected_spills, run.outcomes), lambda outcome: outcome.place):
        yield Annotation(
            "warning",
            f"{group[0].suite} spills registers",
            f"up to {count(max(map(_unexpected_spills, group)), 'byte')} per thread: "
            f"{names(group)}\nAllow intended spills in the spec with a budget for spill_bytes.",
            [group[0].place],
        )
    without_kernel = [outcome for outcome in run.outcomes if outcome.holds_no_kernel]
    for group in grouped(without_kernel, lambda outcome: outcome.place):
        title = f"{group[0].suite} holds no Pallas Mosaic GPU kernel"
        message = f"XLA wrote the code of: {names(group)}"
        yield Annotation("warning", title, message, [group[0].place])
    told = [
        (warning, outcome)
        for outcome in run.outcomes
        if outcome.result is not None and not outcome.problem
        for warning in outcome.result.diagnostics
    ]
    for pairs in grouped(told, lambda p: (p[0].kind, p[0].source, p[0].text, p[1].place)):
        warning, first = pairs[0]
        message = f"{warning.text}\nVariants: {names([outcome for _, outcome in pairs])}"
        base = first.result.variant.base_dir if first.result else ""
        places = [warning.place(base), first.place]
        yield Annotation("warning", f"{first.suite}: {warning.kind}", message, places)
    for note in run.report.notes if run.command == "build" else ():
        yield Annotation("warning", "pallasc", note)


def _unexpected_spills(outcome: Outcome) -> int:
    """Return the spills of a newly compiled variant that has no budget for them."""
    result, artifact = outcome.result, outcome.artifact
    if result is None or artifact is None or outcome.status != "compiled":
        return 0
    return 0 if "spill_bytes" in result.variant.budget else artifact.spill_bytes


def _finding(group: Sequence[Found]) -> Annotation:
    finding, name, _, place = group[0]
    others = first_of([each.id for each in group], _NAMED, "other")
    lines = [line.strip() for line in finding_lines(finding, place)]
    return Annotation(
        _KINDS[finding.severity],
        f"{finding.rule}: {name}",
        "\n".join([*lines, f"Variants: {others}"]),
        [finding.location, place],
    )


# ---- SARIF

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
    # Grouped, because a matrix could have hundreds of equal results at one line. Hosts reject
    # results without a location; `_notifications` reports those.
    shared = grouped(run.found, lambda found: (_fingerprint(found, root), found.finding.location))
    results = (_result(group, numbers, root) for group in shared if _found_location(group[0]))
    listed = [_rule(rule) for rule in rules.values()]
    driver = {"name": "pallasc", "semanticVersion": version, "rules": listed}
    is_whole = not any(note["level"] == "error" for note in notes)
    invocation = {"executionSuccessful": is_whole, "toolExecutionNotifications": notes}
    record = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.as_uri()}/"}},
        "invocations": [invocation],
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


def _found_location(found: Found) -> Location | None:
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
        "locations": _locations(_found_location(group[0]), root),
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
        if _found_location(found) is None:
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
