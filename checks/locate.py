"""Adds the user's source lines to findings in PTX.

Variants with findings are compiled again to get these lines (`compiler/lowering/line_tables`). A
result is stored with the lines, and is invalid once a file with one of them changes
(`stored_results`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from pallasc.checks.findings import (
    BARRIER_MISUSE,
    CALLED,
    DEADLOCK,
    NOT_EXECUTED,
    Finding,
    LevelResult,
    Place,
    distinct,
    merged,
    status_of,
)
from pallasc.checks.levels import Subject
from pallasc.errors import Location, PallascError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.lowering import LineTable
    from pallasc.specs.artifacts.artifact import Artifact


_MOST_CALLS = 2
_MOST_BETWEEN = 3
"""Maximum lines without code, such as comments, within a range of unexecuted lines."""

_ABOUT_COUNTS = (BARRIER_MISUSE.name, DEADLOCK.name)
_SHARED = re.compile(
    r"(?P<at> at )?bytes (?P<bytes>0x\w+) to (?P<last>0x\w+) of shared memory"
    r"(?: of block \([^)]*\))?"
    r"|mbarrier at shared address (?P<barrier>0x\w+)"
)
_DYNAMIC_MEMORY = 1024
"""Address of dynamic shared memory in Mosaic kernels, which have no static shared memory."""

Tables = Mapping[tuple[str, str], "LineTable"]
"""Line tables of kernels by cubin digest and kernel name, as several kernels may share a name."""


def with_source_lines(
    results: Sequence[tuple[LevelResult, Subject]], store: Store, limits: Options
) -> Iterator[tuple[LevelResult, bool]]:
    """Yield results with the lines of their findings, and True if no line is missing.

    Args:
        results: each result, with the variant that it is about.
        store: the build's store.
        limits: the number of compiling processes and their time limit.
    """
    wanted = {
        _key(subject): subject
        for result, subject in results
        if subject.variant is not None and any(map(_names_ptx, result.findings))
    }
    found = dict(zip(wanted, _find([*wanted.values()], store, limits), strict=True))
    for result, subject in results:
        tables, why_none = found.get(_key(subject), ({}, ""))
        findings = merged([each for f in result.findings for each in _shown(f, tables)])
        is_complete, notes = True, result.notes
        if subject.variant is not None and any(map(_names_ptx, findings)) and not tables:
            is_complete, notes = False, (*notes, f"no source lines: {why_none}")
        status = status_of(findings) if result.status == "found" else result.status
        yield replace(result, status=status, findings=findings, notes=notes), is_complete


def _find(wanted: Sequence[Subject], store: Store, limits: Options) -> Iterator[tuple[Tables, str]]:
    """Yield the line tables of each variant, and the reason to show if there are none."""
    if not wanted:
        return
    from pallasc.compiler.toolchain.setup import prepare
    from pallasc.compiler.workers.pool import find_capacity, find_lines

    texts = [(each.variant, _ptx(each.artifact)) for each in wanted if each.variant is not None]
    jobs = limits.jobs or find_capacity().jobs(len(wanted))
    found: Sequence[Mapping[str, LineTable] | PallascError]
    try:
        with prepare() as setup:
            found = find_lines(texts, setup, store, jobs=jobs, timeout_s=limits.timeout_s)
    except PallascError as error:  # no compiler: findings have no source lines
        found = [error] * len(wanted)
    for subject, tables in zip(wanted, found, strict=True):
        if isinstance(tables, PallascError):
            yield {}, tables.message.strip().partition("\n")[0].rstrip(".")
        else:
            why = "compiling again gave different code"
            kernels = [k for k in subject.artifact.kernels if k.ptx in tables]
            yield {(k.cubin, k.name): tables[k.ptx] for k in kernels if k.ptx}, why


def _names_ptx(finding: Finding) -> bool:
    of_places = any(place.ptx_line for place in finding.places)
    return bool(finding.ptx_line or of_places or finding.rule == NOT_EXECUTED.name)


def _key(subject: Subject) -> tuple[str, str] | None:
    variant = subject.variant
    return None if variant is None else (variant.id, variant.base_dir)


def _ptx(artifact: Artifact) -> dict[str, str]:
    return {k.ptx: artifact.blob(k.ptx).decode() for k in artifact.kernels if k.ptx}


def with_lines(finding: Finding, tables: Tables) -> Finding:
    """Return a finding with the user's source lines for its PTX lines.

    Places with the same text and the same line are merged.
    """
    own = (finding.cubin, finding.kernel)
    loops = _loops(tables, own, finding.ptx_line)
    places = []
    for place in finding.places:
        kernel = (place.cubin or finding.cubin, place.kernel or finding.kernel)
        stack = _stack(tables, kernel, place.ptx_line)
        text = _with_arrays(place.text, tables.get(kernel))
        at = place.location or next(iter(stack), None)
        places.append(replace(place, text=text, location=at))
        if place.waits:
            places += _callers(stack, 1)
        loops += _loops(tables, kernel, place.ptx_line)
    if finding.rule in _ABOUT_COUNTS:
        places = [*loops, *places]
    stack = _stack(tables, own, finding.ptx_line)
    finding = replace(finding, message=_with_arrays(finding.message, tables.get(own)))
    if stack and finding.location is None:
        finding = replace(finding, location=stack[0])
        places = [*_callers(stack, _MOST_CALLS), *places]  # next to the line that they lead to
    if finding.location is None:  # the place of an error, such as the kernel's end, may lack a line
        known = (place.location for place in places if place.location is not None)
        finding = replace(finding, location=next(known, None))
    return replace(finding, places=distinct(places))


def _with_arrays(text: str, table: LineTable | None) -> str:
    """Add the names of arrays and barriers to the shared-memory addresses in a text."""
    memory = table.memory if table else ()
    parts = [(part.offset, part) for part in memory if part.offset is not None and part.name]

    def name(address: str) -> str:
        at = int(address, 16) - _DYNAMIC_MEMORY
        begin, part = max((p for p in parts if p[0] <= at), default=(0, None), key=itemgetter(0))
        if part is None:
            return ""
        past = "past the end of " if at >= begin + part.bytes else ""
        which = f"[{(at - begin) // 8}]" if part.what == "barrier" else f" {part.type}"
        return f"{past}{part.name}{which}"

    def named(found: re.Match[str]) -> str:
        first = name(found["bytes"] or found["barrier"])
        if not first or not found["at"]:
            return f"{found[0]} ({first})" if first else found[0]
        last = name(found["last"])
        return f" of {first}" if last == first else f" from {first} to {last}"

    return _SHARED.sub(named, text)


def _shown(finding: Finding, tables: Tables) -> list[Finding]:
    """Return a finding with its source lines.

    A finding about PTX that was not executed keeps only the source lines of which no instruction
    was executed; if there are none, the result is empty.
    """
    if finding.rule != NOT_EXECUTED.name:
        return [with_lines(finding, tables)]
    table = tables.get((finding.cubin, finding.kernel))
    if table is None:
        return [replace(finding, subject="")]
    numbers = set(map(int, finding.subject.split()))
    reached = {_line(table.place(n + 1)) for n in range(len(table.numbers)) if n + 1 not in numbers}
    left = {_line(table.place(number)) for number in numbers} - reached
    lines = sorted(line for line in left if line is not None)
    if not lines:
        return []
    ranges: list[list[tuple[str, int]]] = []
    for line in lines:
        file, number = ranges[-1][-1] if ranges else ("", 0)
        between = range(number + 1, line[1])
        is_near = file == line[0] and len(between) <= _MOST_BETWEEN
        if is_near and not any((file, each) in reached for each in between):
            ranges[-1].append(line)
        else:
            ranges.append([line])
    return [
        replace(
            finding,
            message=f"not executed: {', '.join(_range_text(own[0], own[-1]) for own in ranges)}",
            location=Location(*lines[0]),
            subject="",
        )
    ]


def _line(location: Location | None) -> tuple[str, int] | None:
    return None if location is None else (location.file, location.line)


def _range_text(first: tuple[str, int], last: tuple[str, int]) -> str:
    end = f"-{last[1]}" if last != first else ""
    return f"{os.path.basename(first[0])}:{first[1]}{end}"


def _stack(tables: Tables, kernel: tuple[str, str], line: int) -> Sequence[Location]:
    table = tables.get(kernel)
    return table.stack(line) if table is not None else ()


def _loops(tables: Tables, kernel: tuple[str, str], line: int) -> list[Place]:
    """Return the loops around a line; a wrong number of iterations can be the kernel's mistake."""
    table = tables.get(kernel)
    calls = table.loops_around(line) if table is not None else ()
    return [Place("a loop around these lines", at) for at in calls]


def _callers(stack: Sequence[Location], most: int) -> list[Place]:
    """Return the calls that lead to the innermost line, nearest first; omit the kernel's call."""
    return [Place(CALLED, at) for at in stack[1:-1][:most]]
