"""The first page: the build's kernels, and the variants that need attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.reports.content import Content, Entry, FindingRow, Group

_TOP = 8

Range = tuple[float | None, float | None]


class KernelRow(NamedTuple):
    """A kernel, with the minimum and maximum of its variants' figures."""

    group: Group
    registers: Range
    occupancy: Range
    smem: Range
    cubin: Range
    spilling: int
    findings: int
    seconds: float


@dataclass(slots=True)
class SharedFinding:
    """A finding, and the variants that have it."""

    row: FindingRow
    entries: list[Entry] = field(default_factory=list)


class Overview(NamedTuple):
    """The data of the first page, over all variants."""

    kernels: tuple[KernelRow, ...]
    failures: tuple[Entry, ...]
    spilling: tuple[Entry, ...]
    largest: tuple[Entry, ...]
    slowest: tuple[Entry, ...]
    findings: tuple[SharedFinding, ...]
    finding_count: int
    checked: int
    seconds: float
    cubin_bytes: int
    changes: str = ""

    @property
    def not_compiled(self) -> str:
        """Return `2 not compiled`, or ""."""
        return f"{len(self.failures):,} not compiled" if self.failures else ""

    @property
    def checked_note(self) -> str:
        """Return the number of variants that were checked."""
        return f"{self.checked:,} checked" if self.checked else "not checked"


def overview_of(content: Content, changes: str = "") -> Overview:
    """Return the data of the first page; `changes` is the result of a comparison, as HTML."""
    entries = content.entries
    findings = _findings(entries)
    return Overview(
        tuple(map(_kernel, content.groups)),
        tuple(entry for entry in entries if entry.status != "compiled" or entry.damage),
        _top(entries, lambda entry: entry.figures.spill_bytes, len(entries)),
        _top(entries, lambda entry: entry.figures.cubin_bytes),
        _top(entries, lambda entry: entry.seconds),
        tuple(findings),
        sum(len(entry.findings) for entry in entries),
        sum(bool(entry.levels) for entry in entries),
        sum(entry.seconds or 0 for entry in entries),
        sum(entry.figures.cubin_bytes or 0 for entry in entries),
        changes,
    )


def _kernel(group: Group) -> KernelRow:
    figures = [entry.figures for entry in group.entries]
    return KernelRow(
        group,
        _range([each.registers for each in figures]),
        _range([each.occupancy for each in figures]),
        _range([each.smem_bytes for each in figures]),
        _range([each.cubin_bytes for each in figures]),
        sum(bool(each.spill_bytes) for each in figures),
        sum(len(entry.findings) for entry in group.entries),
        sum(entry.seconds or 0 for entry in group.entries),
    )


def _range(values: Sequence[float | None]) -> Range:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else (None, None)


def _top(
    entries: Sequence[Entry], value: Callable[[Entry], float | None], most: int = _TOP
) -> tuple[Entry, ...]:
    """Return the variants with the highest values above zero; ties keep their order."""
    ranked = sorted(entries, key=lambda entry: -(value(entry) or 0))
    return tuple(entry for entry in ranked[:most] if value(entry))


def _findings(entries: Sequence[Entry]) -> list[SharedFinding]:
    """Return findings, each once, errors first."""
    found: dict[tuple[str, ...], SharedFinding] = {}
    for entry in entries:
        for row in entry.findings:
            key = (entry.kernel, row.level, row.rule, row.place)
            shared = found.setdefault(key, SharedFinding(row))
            if entry not in shared.entries[-1:]:
                shared.entries.append(entry)
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found.values(), key=lambda each: order.get(each.row.severity, 3))
