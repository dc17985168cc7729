"""The output of a check: findings, and the result of one level for one variant.

A level never raises for a mistake in a kernel: it returns a `LevelResult`. A variant that it could
not check is `not checked` with a reason, never `passed`.

`to_json` and `result_from_json` are the only conversion to and from JSON: between processes, in the
store, and in `--json`. In the store, file paths are relative to the spec's folder (`moved_to`,
`moved_from`), so that a result is valid in every clone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pallasc.errors import Location

Severity = Literal["error", "warning", "note"]
"""With an error or a warning, `pallasc check` exits with 1; with only notes it does not."""

CALLED = "called from here"
"""The text of a place that calls the function containing the finding's line."""

Status = Literal["passed", "found", "not checked"]

CONSEQUENCES = ("uninitialized-read", "wrong-numbers", "compiled-wrongly")
"""Rules about results; another finding may be the cause."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of mistake that a level finds, documented in `docs/check.md`.

    Attributes:
        name: lower-case words joined by "-": `deadlock`, `missing-wait`. A kind of mistake has the
            same name in every level.
        summary: the mistake in one sentence.
        help: why it matters and how to fix it, in one or two sentences.
    """

    name: str
    summary: str
    help: str


@dataclass(frozen=True, slots=True)
class Place:
    """A place that takes part in a finding, such as the other access of a race.

    Attributes:
        text: what happens there.
        location: the user's source line, None if unknown.
        ptx_line: its line of the PTX, 0 for none.
        kernel: the kernel of that line, "" for the finding's kernel.
        cubin: the digest of that kernel's cubin, "" for the finding's cubin.
        waits: True if threads wait there; the line's caller becomes a place, too (`checks.locate`).
    """

    text: str
    location: Location | None = None
    ptx_line: int = 0
    kernel: str = ""
    cubin: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A mistake in a kernel.

    Attributes:
        rule: the name of a `Rule` of its level.
        message: what is wrong, with values, without the location and without a period at the end.
        severity: see `Severity`.
        location: the user's source line, None if unknown.
        instruction: the instruction in its own language: `wgmma.wait_group.sync.aligned` with its
            line of the PTX, or the name of a JAX primitive; "" if there is none.
        hint: how to fix it, "" for the help of the rule.
        kernel: the kernel that contains it, if the level reads PTX.
        cubin: the digest of that kernel's cubin; kernels of one artifact may share a name.
        ptx_line: its line of the PTX, 0 for none.
        places: other places that take part: the write that a read races with, the threads that
            wait.
        subject: distinguishes it from other findings of its rule at its line, such as the affected
            result or memory; findings share it if only the numbers in their messages differ.
    """

    rule: str
    message: str
    severity: Severity = "error"
    location: Location | None = None
    instruction: str = ""
    hint: str = ""
    kernel: str = ""
    cubin: str = ""
    ptx_line: int = 0
    places: tuple[Place, ...] = ()
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """The result of one level for one variant.

    Attributes:
        level: the name of the level.
        status: `found` if and only if there are findings other than notes.
        findings: what is wrong, and notes.
        reason: why the level did not check it; "" otherwise.
        stopped: the level did not check it because it was stopped or failed: time, memory, a crash,
            an error in the user's reference. Such a result is not stored, and the command does not
            end with 0.
        seconds: duration in seconds.
        notes: the scope of the result if it is not the whole variant: "for m=128, n=128".
    """

    level: str
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    stopped: bool = False
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.status == "found") != any(map(_is_fault, self.findings)):
            raise ValueError(f"{self.status!r} with {len(self.findings)} findings")
        if (self.status == "not checked") != bool(self.reason):
            raise ValueError(f"{self.status!r} because {self.reason!r}")

    @property
    def fails(self) -> bool:
        """Return True if the command must not exit with 0 because of this result."""
        return self.stopped or self.status == "found"


def _is_fault(finding: Finding) -> bool:
    return finding.severity != "note"


def from_findings(level: str, findings: Iterable[Finding]) -> LevelResult:
    """Return the result of a level that has checked everything within its reach.

    Causes are listed first: memory may be uninitialized because of a missing wait.
    """
    ordered = tuple(sorted(findings, key=lambda each: each.rule in CONSEQUENCES))
    return LevelResult(level=level, status=status_of(ordered), findings=ordered)


def status_of(findings: Iterable[Finding]) -> Status:
    """Return the status of a level that has these findings."""
    return "found" if any(map(_is_fault, findings)) else "passed"


def not_checked(level: str, reason: str, *, stopped: bool = False) -> LevelResult:
    """Return the result of a level that could not check; `reason` has no period at the end."""
    return LevelResult(level=level, status="not checked", reason=reason, stopped=stopped)


def to_json(result: LevelResult) -> dict[str, object]:
    """Return a result as plain data."""
    from pallasc.compiler.workers.messages import plain

    return {name: plain(getattr(result, name)) for name in LevelResult.__slots__}


def result_from_json(data: Mapping[str, object]) -> LevelResult:
    """Convert the output of `to_json` back to a result.

    Raises:
        ValueError: the data is malformed.
    """
    if (plain_result := _without_findings(data)) is not None:
        return plain_result
    from pallasc.compiler.workers.messages import read_object

    try:
        result: LevelResult = read_object(LevelResult, data)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"not the result of a level: {error}") from error
    return result


def _without_findings(data: Mapping[str, object]) -> LevelResult | None:
    """Return a result without findings, else None: a fast path, as a check reads thousands."""
    level, status, reason = data.get("level"), data.get("status"), data.get("reason")
    seconds, stopped, notes = data.get("seconds"), data.get("stopped"), data.get("notes")
    if data.get("findings") != [] or status not in ("passed", "not checked"):
        return None
    if not (type(level) is str and type(reason) is str and type(seconds) is float):
        return None
    if type(stopped) is not bool or not isinstance(notes, list):
        return None
    if any(type(note) is not str for note in notes):
        return None
    return LevelResult(
        level=level,
        status="passed" if status == "passed" else "not checked",
        reason=reason,
        stopped=stopped,
        seconds=seconds,
        notes=tuple(notes),
    )


def moved_from(result: LevelResult, folder: str) -> LevelResult:
    """Return a result with file paths relative to a folder, as stored."""
    return _with_files(result, lambda file: os.path.relpath(file, folder))


def moved_to(result: LevelResult, folder: str) -> LevelResult:
    """Return a stored result with absolute paths, given the folder that they are relative to."""
    return _with_files(result, lambda file: os.path.normpath(os.path.join(folder, file)))


def files_of(result: LevelResult) -> set[str]:
    """Return the files that the places of a result refer to."""
    places = [
        place
        for finding in result.findings
        for place in (finding.location, *(each.location for each in finding.places))
    ]
    return {place.file for place in places if place is not None}


def _with_files(result: LevelResult, change: Callable[[str], str]) -> LevelResult:
    def moved(place: Location | None) -> Location | None:
        return None if place is None else replace(place, file=change(place.file))

    findings = tuple(
        replace(
            finding,
            location=moved(finding.location),
            places=tuple(replace(p, location=moved(p.location)) for p in finding.places),
        )
        for finding in result.findings
    )
    return replace(result, findings=findings)
