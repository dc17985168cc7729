"""The output of a check: findings, their rules, and the result of one level for one variant.

For a mistake in a kernel, a level never raises an error: it returns a `LevelResult`. If a level
could not check a variant, the status is `not checked` with a reason, never `passed`.

`to_json` and `result_from_json` are the only conversion to and from JSON: between processes, in the
store, and in `--json`. In the store, file paths are relative to the spec's folder (`moved_to`,
`moved_from`), so that a result is valid in every clone.

Equivalent findings are merged, such as those of an unrolled loop, or a race found from both of its
accesses. Levels share rules: a kind of mistake has the same rule in every level.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

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
        ptx_line: line of the PTX, 0 for none.
        kernel: the kernel with this PTX line, "" for the finding's kernel.
        cubin: digest of this kernel's cubin, "" for the finding's cubin.
        waits: True if threads wait there; `checks.locate` then adds the caller of the line, too.
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
        rule: name of one of the level's rules.
        message: what is wrong, with values, without the location and without a period at the end.
        severity: see `Severity`.
        location: the user's source line, None if unknown.
        instruction: the PTX instruction with its line, such as `wgmma.wait_group.sync.aligned`, or
            the name of a JAX primitive; "" if there is none.
        hint: how to fix the mistake, "" for the help of the rule.
        kernel: the kernel with the mistake, if the level reads PTX.
        cubin: digest of this kernel's cubin; kernels of one artifact may share a name.
        ptx_line: line of the PTX, 0 for none.
        places: other places that take part: the write that a read races with, the threads that
            wait.
        subject: what the finding is about, such as the affected result or memory. It separates
            findings of one rule at one line. Findings whose messages differ only in numbers have
            the same subject.
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
        reason: why the level did not check the variant; "" if it did.
        stopped: True if the level failed or was stopped before it could check the variant: because
            of a limit on time or memory, a crash, or an error in the user's reference. Such a
            result is not stored, and the command does not end with 0.
        seconds: duration in seconds.
        notes: remarks on the result, such as the sizes that were checked: "for m=128, n=128".
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
    """Return the result of a level that completed.

    Possible causes come first: for example, a missing wait may be why memory is uninitialized.
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
    data: dict[str, object] = msgspec.to_builtins(result)
    return data


def result_from_json(data: Mapping[str, object]) -> LevelResult:
    """Convert the output of `to_json` back to a result.

    Raises:
        ValueError: the data is malformed.
    """
    try:
        return msgspec.convert(data, LevelResult)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not the result of a level: {error}") from error


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


WRONG_NUMBERS = Rule(
    "wrong-numbers",
    "A result differs from the reference by more than the tolerance.",
    "The message has the first element that differs. The same --seed gives the same inputs.",
)
NOTHING_COMPARED = Rule(
    "nothing-compared",
    "All elements of a result are NaN, and so are those of the reference.",
    "The comparison proves nothing about the kernel. Use other inputs: --input, --inputs, or "
    "another --seed.",
)
OTHER_KIND = Rule(
    "other-kind",
    "The reference returns numbers of another kind than the kernel, such as floating-point numbers "
    "for integers.",
    "They are compared by value. If the other kind is intended, convert the result in the "
    "reference; a different precision needs no conversion.",
)
UNINITIALIZED = Rule(
    "uninitialized-read",
    "A result depends on memory that was never written.",
    "In a check, such memory holds NaN, or values that differ between schedules. Write it first, "
    "or wait for the copy that writes it.",
)
OUT_OF_BOUNDS = Rule(
    "out-of-bounds",
    "An access is out of bounds.",
    "On a GPU it reads or overwrites other memory, or fails. Clamp the index, or mask the access.",
)
RACE = Rule(
    "race",
    "Two accesses to the same memory, one of them a write, are not ordered by synchronization.",
    "Their order is undefined. Add synchronization: a wait for the copy or MMA (barrier_wait, "
    "wait_smem_to_gmem, wgmma_wait), a barrier, or a fence (commit_smem).",
)
DEADLOCK = Rule(
    "deadlock",
    "All threads that still run are waiting, and nothing can wake them.",
    "On a GPU the kernel hangs. Compare the arrivals of each barrier with the number it expects, "
    "and the phases that complete with the phases that each thread waits for.",
)
BARRIER_MISUSE = Rule(
    "barrier-misuse",
    "A barrier is misused: a thread misses a phase, or arrivals or bytes are left over.",
    "A thread that waits on a barrier must wait for each of its phases, and no arrivals or bytes "
    "may be pending when the kernel ends.",
)
UNFINISHED_COPY = Rule(
    "unfinished-copy",
    "A kernel ends while a copy into or out of its shared memory, or an MMA, may be in flight.",
    "The next block may get the shared memory while it is still in use. Before the kernel ends, "
    "wait for copies into it on their barrier (barrier_wait), for copies out of it with "
    "wait_smem_to_gmem, and for MMAs with wgmma_wait.",
)
NOT_EXECUTED = Rule(
    "not-executed",
    "No schedule executed these lines.",
    "The check holds for the rest of the kernel. Try other sizes or inputs: `check` in the spec, "
    "--input, --inputs, or another --seed.",
)


ACCUMULATOR_BEFORE_WAIT = Rule(
    "accumulator-before-wait",
    "An accumulator is used before its MMA has completed.",
    "Commit the MMA, and wait for it, before its accumulator is read.",
)
OPERAND_OVERWRITTEN = Rule(
    "operand-overwritten",
    "Registers that hold the left operand of an MMA are overwritten while the MMA may read them.",
    "MMAs are asynchronous. Wait for them (wgmma_wait) before the value changes.",
)
MISSING_PROXY_FENCE = Rule(
    "missing-proxy-fence",
    "A copy or an MMA reads shared memory without a fence after the stores to it.",
    "Copies and tensor cores do not see the stores of threads without a fence. Call commit_smem() "
    "after the stores.",
)
MEMORY_LIMIT = Rule(
    "memory-limit",
    "A kernel asks for more memory or registers than the device has, or for an invalid amount.",
    "Use smaller tiles or fewer stages.",
)
COMPILED_WRONGLY = Rule(
    "compiled-wrongly",
    "The compiled kernel does not compute what its source describes.",
    "JAX's interpreter gives the numbers of the reference, and the PTX does not: JAX or XLA has "
    "compiled it wrongly, or a synchronization is missing that the interpreter does not see.",
)
DEPENDS_ON_ORDER = Rule(
    "depends-on-order",
    "A result depends on the order in which blocks or warps run.",
    "A GPU runs blocks in any order, so the result may change from run to run. Let each block "
    "write a separate part, or combine parts in a fixed order. If any order is right, as in a "
    "list of unordered entries, use --schedules 1: then no schedules are compared.",
)
MISALIGNED = Rule(
    "misaligned",
    "An address is not a multiple of the alignment that the instruction requires.",
    "On a GPU the kernel ends with an error. Keep offsets and row lengths multiples of 16 bytes "
    "where arrays are copied.",
)
FAILED_ASSERTION = Rule(
    "failed-assertion",
    "An assertion of the kernel fails, or the kernel executes a trap.",
    "On a GPU the kernel ends with an error. The inputs of this check make the condition false.",
)
INVALID_INSTRUCTION = Rule(
    "invalid-instruction",
    "An instruction is executed with invalid operands, or by the wrong threads.",
    "Its behavior on a GPU is undefined.",
)
ARTIFACT_RULES: tuple[Rule, ...] = (
    WRONG_NUMBERS,
    NOTHING_COMPARED,
    OTHER_KIND,
    COMPILED_WRONGLY,
    DEPENDS_ON_ORDER,
    UNINITIALIZED,
    OUT_OF_BOUNDS,
    RACE,
    MISSING_PROXY_FENCE,
    ACCUMULATOR_BEFORE_WAIT,
    OPERAND_OVERWRITTEN,
    UNFINISHED_COPY,
    DEADLOCK,
    BARRIER_MISUSE,
    MEMORY_LIMIT,
    MISALIGNED,
    FAILED_ASSERTION,
    INVALID_INSTRUCTION,
    NOT_EXECUTED,
)


INTERPRETER_RULES: tuple[Rule, ...] = (
    WRONG_NUMBERS,
    NOTHING_COMPARED,
    OTHER_KIND,
    UNINITIALIZED,
    OUT_OF_BOUNDS,
    RACE,
    DEADLOCK,
    BARRIER_MISUSE,
    UNFINISHED_COPY,
)


MOST_PLACES = 28
_ASYNCHRONOUS = frozenset({"cp", "tcgen05", "wgmma"})
_OF_PAIRS = frozenset({"race", "missing-proxy-fence", "accumulator-before-wait"})
"""Rules about two accesses; which one comes second depends on the schedule and the level."""


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Merge equivalent findings; the message of a merged finding contains their number.

    Findings of a rule about two accesses are equivalent if both lines match, in either order; other
    findings if their subject, their line and the lines of their places match.
    """
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        same = pair_of(finding) or _what_of(finding)
        groups.setdefault((finding.rule, finding.severity, same), []).append(finding)
    return tuple(_joined(*group) for group in groups.values())


def pair_of(finding: Finding) -> frozenset[object] | None:
    """Return the two places of a finding, None if its rule is not about two accesses."""
    partner = next((place for place in finding.places if place.text != CALLED), None)
    if finding.rule not in _OF_PAIRS or partner is None:
        return None
    own = Place(finding.instruction, finding.location, finding.ptx_line)
    return frozenset(_at(place, finding) for place in (own, partner))


def distinct_findings(results: Iterable[LevelResult]) -> Iterator[Finding]:
    """Yield the findings of a variant's levels; a pair of accesses is yielded only once."""
    told: set[object] = set()
    for result in results:
        own = [(pair_of(finding), finding) for finding in result.findings]
        yield from (f for pair, f in own if pair is None or (f.rule, pair) not in told)
        told.update((f.rule, pair) for pair, f in own)


def distinct(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return at most `MOST_PLACES` places, without repeats of the same text at the same line."""
    found: dict[object, Place] = {}
    for place in places:
        at = place.location
        where = (at.file, at.line) if at else (place.cubin, place.kernel, place.ptx_line)
        found.setdefault((place.text, where), place)
    return tuple(found.values())[:MOST_PLACES]


def _joined(*group: Finding) -> Finding:
    """Return the first of equivalent findings, with the lines that only the others have.

    In a race between an asynchronous operation and an access that should wait for it, the access is
    first.
    """
    if len(group) == 1:
        return group[0]
    first, *more = sorted(group, key=_is_asynchronous)
    known = {_line(first.location), *(_line(place.location) for place in first.places)}
    others = [
        place
        for finding in more
        for place in finding.places
        if place.location is not None and _line(place.location) not in known
    ]
    places = distinct((*first.places, *others))
    return replace(first, message=f"{first.message}; {len(more)} more like it", places=places)


def _is_asynchronous(finding: Finding) -> bool:
    return _opcode(finding).partition(".")[0] in _ASYNCHRONOUS


def _what_of(finding: Finding) -> object:
    """Return a key that is equal for equivalent findings: subject and source lines.

    Without a source line, the kernel and the opcode replace it: an unrolled loop repeats the
    opcode. Without an instruction, the key is the message.
    """
    own = _line(finding.location)
    places = tuple(line for place in finding.places if (line := _line(place.location)))
    if own is None and not finding.instruction:
        return finding.kernel, finding.message
    return finding.subject, own or (finding.cubin, finding.kernel, _opcode(finding)), places


def _opcode(finding: Finding) -> str:
    """Return the opcode of an instruction, skipping its guard."""
    words = finding.instruction.split()
    return next((word.rstrip(",;") for word in words if not word.startswith("@")), "")


def _at(place: Place, finding: Finding) -> object:
    if place.location is None and place.ptx_line:
        return place.cubin or finding.cubin, place.kernel or finding.kernel, place.ptx_line
    return _line(place.location) or place.text


def _line(location: Location | None) -> tuple[str, int] | None:
    return None if location is None else (location.file, location.line)
