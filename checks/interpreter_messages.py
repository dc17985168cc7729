"""Turns messages of JAX's interpreter, which are only text, into findings.

An unknown message does not become a finding: the kernel is `not checked`.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from typing import NamedTuple

from pallasc.checks.findings import (
    BARRIER_MISUSE,
    OUT_OF_BOUNDS,
    RACE,
    UNFINISHED_COPY,
    Finding,
    Place,
    Rule,
)
from pallasc.errors import Location, message_of

_KEY = r"HostAllocationKey\((?P<{0}key>[^)]*)\)"
_ACCESS = (
    r"(?P<{0}act>read|write) of " + _KEY + r"\[(?P<{0}range>.*)\] from "
    r"(?P<{0}thread>\w+\([^)]*\)|\d+, \d+|[^\n]*?)"
    r"(?:,? (?P<{0}file>[^\s,()][^\n()]*?):(?P<{0}line>\d+)(?::(?P<{0}column>\d+))?"
    r"(?: \([^\n]*\))?|,? ?(?:pallas_call)?)"
)
_RACE = re.compile(
    "RACE DETECTED\n  " + _ACCESS.format("a") + r"\n  clock: (?:.|\n)*?\n  "
    + _ACCESS.format("b") + r"\n  clock: "
)  # fmt: skip
_CLOCK = re.compile(r"\n  clock: (?:.|\n)*?(?=\n  (?:read|write) |\Z)")
_SPACE = re.compile(r"memory_space_id=(\d+)")
_THREAD = re.compile(r"block_id=(\d+), warpgroup_id=(\d+)(?:,? warp_id=(\d+))?")
_NUMBERS = re.compile(r"^(\d+), (\d+)")
_ALLOCATION = re.compile(r"HostAllocationKey\([^)]*\)")
_ADDRESS = re.compile(r"(?<=\bbarrier )\d{6,}")
_UNIT = re.compile(r"Warpgroup\([^)]*\)|Warp\([^)]*\)")
_SLICE = re.compile(r"slice\((-?\d+), (-?\d+), (\d+|None)\)")
_UNFINISHED = re.compile(r"^Not all (copy_smem_to_gmem) read-side .* finished on thread (.+)$")
_RANGE = re.compile(r"\[(?:Access\(range=)?\(([^()]*?),?\)(?:, permutation=None\))?\]")
_OPERAND = re.compile(r"^assert ([ab]) is not None$")
"""Assertion in JAX that fails only if an operand of an MMA was read out of bounds."""
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception): ", re.MULTILINE)

_KNOWN: tuple[tuple[str, Rule], ...] = (
    (r"^Out-of-bounds |^assert [ab] is not None$", OUT_OF_BOUNDS),
    (r"^Not all copy_smem_to_gmem ", UNFINISHED_COPY),
    (r"^Reading .* through alias group", RACE),
    (r"^Barrier completed phase |^Barrier deallocated with ", BARRIER_MISUSE),
    (r"^Barrier arrival was completed again ", BARRIER_MISUSE),
    (r"^Thread .* did not observe all phases ", BARRIER_MISUSE),
    (r"^Thread .* (?:is awaiting phase|only observed barrier) ", BARRIER_MISUSE),
    (r"^Thread .* is waiting at barrier .* for the first time", BARRIER_MISUSE),
    (r"^Thread .* allocated a barrier after ", BARRIER_MISUSE),
    (r"^Warpgroup-thread .* is waiting at barrier ", BARRIER_MISUSE),
    (r"^Named barrier .* is used with ", BARRIER_MISUSE),
)
"""Patterns of messages in the supported versions of JAX, and the rules of their findings."""


_MISSING = (
    ("core_count", "it asks the GPU for the number of its multiprocessors"),
    ("semaphore", "it uses semaphores"),
    ("has_trivial_window", "it has blocks (BlockSpec)"),
)
"""Features that the interpreter lacks, by a word in the error that it raises."""


_ARRAY = re.compile(r"\s*(\w+)(?:\.at)?\[")
_ONE_THREAD = (
    "If the read uses copied data, barrier_wait is missing between the two. If a copy reads the "
    "written data, commit_smem() is missing. If the write overwrites data that a copy or an MMA "
    "still reads, a wait for this copy or MMA is missing. JAX's interpreter requires commit_smem() "
    "between a read and a copy that overwrites the data, even where a barrier orders them on a "
    "GPU; `--level artifact` decides if this kernel needs it."
)


class _Access(NamedTuple):
    """One of the two accesses of a race; sortable, so that reports of a race are stable."""

    placeless: bool
    file: str
    line: int
    column: int
    act: str
    space: str
    thread: str

    @property
    def location(self) -> Location | None:
        return Location(self.file, self.line, self.column) if self.file else None


def race_findings(texts: Iterable[str]) -> list[Finding]:
    """Return a finding for each pair of racing places, and one for all texts of unknown form."""
    found: dict[object, Finding] = {}
    for text in texts:
        match = _RACE.search(text)
        if match is None:
            plain = _plain(_CLOCK.sub("", text))
            found.setdefault("", Finding(rule=RACE.name, message=plain))
            continue
        first, second = sorted(_access(match, name) for name in "ab")
        key = (first[:5], second[:5])
        found.setdefault(
            key,
            Finding(
                rule=RACE.name,
                message=_race(first, second),
                location=first.location,
                hint=_hint(first, second),
                places=(Place(_place(first, second), second.location),),
            ),
        )
    return [found[key] for key in sorted(found, key=str)]


def _hint(first: _Access, second: _Access) -> str:
    """Return a hint for a read and a write of shared memory by one thread.

    The interpreter does not report which of the two comes first.
    """
    is_shared = first.space == second.space == "SMEM"
    if not is_shared or first.thread != second.thread or first.act == second.act:
        return ""
    return _ONE_THREAD


def _race(first: _Access, second: _Access) -> str:
    """Return the message of a race.

    The interpreter's clocks order the synchronous accesses of a thread, block after block, so a
    race of a thread with itself involves an asynchronous operation.
    """
    if first.thread != second.thread:
        return (
            f"the {first.act} of {first.space} by {first.thread} races with the {second.act} by "
            f"{second.thread}"
        )
    other = "another" if first.act == second.act else "a"
    return (
        f"a {first.act} of {first.space} races with {other} {second.act}, both by {first.thread}: "
        "one of them is asynchronous, a copy or an MMA"
    )


def _place(first: _Access, second: _Access) -> str:
    if first.thread != second.thread:
        return f"the {second.act} by {second.thread}"
    return f"the other {second.act}" if first.act == second.act else f"the {second.act}"


def failure_finding(text: str, location: Location | None) -> Finding | None:
    """Return the finding for an error of the interpreter, None if the error is not a finding."""
    for pattern, rule in _KNOWN:
        if re.search(pattern, text):
            plain = _plain(text)
            if rule is OUT_OF_BOUNDS and location and (name := _ARRAY.match(_source(location))):
                plain = re.sub(r"(?<= of )([A-Z]+)(?=:)", rf"{name[1]} (\1)", plain, count=1)
            return Finding(rule=rule.name, message=plain, location=location)
    return None


def missing_part(reason: str) -> str:
    """Return the feature that the interpreter lacks, "" if its error does not name it."""
    return next((words for part, words in _MISSING if part in reason), "")


def raised_text(error: BaseException) -> str:
    """Return the raised message; errors from callbacks contain it after a traceback's text."""
    text = message_of(error)
    raised = [*_RAISED.finditer(text)] if "CpuCallback error" in text else []
    return text[raised[-1].end() :].strip() if raised else text


def _source(location: Location) -> str:
    """Return the text of a line from its column on, "" if there is no such file."""
    return linecache.getline(location.file, location.line)[max(location.column - 1, 0) :]


def _access(match: re.Match[str], name: str) -> _Access:
    part = {k.removeprefix(name): v for k, v in match.groupdict().items() if k.startswith(name)}
    return _Access(
        not part["file"],
        part["file"] or "",
        int(part["line"] or 0),
        int(part["column"]) + 1 if part["column"] else 0,  # JAX counts columns from 0
        part["act"],
        _space(part["key"]),
        _thread(part["thread"]),
    )


def _space(key: str) -> str:
    number = _SPACE.search(key)
    if number is None:
        return "memory"
    from jax._src.pallas.mosaic_gpu import core

    spaces = [space.name for space in core.MemorySpace]
    return spaces[int(number[1])] if int(number[1]) < len(spaces) else "memory"


def _thread(text: str) -> str:
    match = _THREAD.search(text)
    if match is None:
        numbers = _NUMBERS.match(text)
        return f"warpgroup {numbers[2]}" if numbers else "another thread"
    block, group, warp = match.groups()
    own = f"warpgroup {group}" if warp is None else f"warp {warp} of warpgroup {group}"
    return own if block == "0" else f"{own} of block {block} of the cluster"


def _plain(text: str) -> str:
    """Return a message of the interpreter as one line, without parts that vary between runs."""
    text = _ALLOCATION.sub(lambda match: _space(match[0]), text)
    text = _ADDRESS.sub("", text).replace("barrier  ", "barrier ").replace("barrier ,", "barrier,")
    text = _RANGE.sub(r"[\1]", _SLICE.sub(r"\1:\2", text))
    text = _UNIT.sub(lambda match: _thread(match[0]), text)
    text = _OPERAND.sub(r"Out-of-bounds read of operand \1 of the MMA", text)
    text = " ".join(text.split()).rstrip(". ")
    text = _UNFINISHED.sub(r"the kernel ends while \1 of \2 may still read shared memory", text)
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
