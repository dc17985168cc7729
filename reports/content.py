"""The content of a report, as data. `gather` creates it, `page` shows it.

Paths are relative to the folder of their spec, or to site-packages, so that a report of the same
inputs is the same in every folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from pallasc.analysis.metrics.kernel_metrics import KernelMetrics
from pallasc.reports.figures import Figures
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spelling import one_line

_SLUG_DIGITS = 12
_INSTALLED = "site-packages"


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding of a stored check: its level, rule and severity, message and place."""

    level: str
    rule: str
    severity: str
    message: str
    place: str
    hint: str


@dataclass(frozen=True, slots=True)
class LevelRow:
    """The stored result of a level: passed, found or not checked, with notes on its coverage."""

    level: str
    status: str
    reason: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A variant.

    Attributes:
        slug: the name of its page: letters, digits and dashes.
        id, kernel, target, arch, params: as in its spec, safe for display.
        status: "compiled", or why there is no artifact: "failed", "missing", "skipped".
        error: why it failed.
        place: where its kernel is declared.
        base_dir: the folder that its files are relative to.
        figures: its figures.
        seconds: its compile time, according to the store; None if unknown.
        digest, action_key: of its artifact; "" if unknown.
        artifact: the artifact, None if there is none.
        metrics: the metrics of each of its launches.
        levels: results of checks that the store has.
        findings: the findings of these checks.
        warnings: messages from its compilation.
        damage: why its artifact cannot be read, "" if it can.
    """

    slug: str
    id: str
    kernel: str
    target: str
    arch: str
    params: Mapping[str, str]
    status: str
    error: str = ""
    place: str = ""
    base_dir: str = ""
    figures: Figures = field(default_factory=Figures)
    seconds: float | None = None
    digest: str = ""
    action_key: str = ""
    artifact: Artifact | None = None
    metrics: tuple[KernelMetrics, ...] = ()
    levels: tuple[LevelRow, ...] = ()
    findings: tuple[FindingRow, ...] = ()
    warnings: tuple[str, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """A kernel and its variants; `params` are the names of its parameters."""

    slug: str
    name: str
    params: tuple[str, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """Date, machine and times: all that differs between reports of the same inputs."""

    seconds: float
    counts: Mapping[str, int]
    saved_s: float
    machine: str
    date: str


@dataclass(frozen=True, slots=True)
class Content:
    """The whole content of a report.

    Attributes:
        title: its heading.
        groups: kernels with their variants, in the order of the specs.
        facts: toolchain, drivers, specs: names and values.
        notes: warnings of the build.
        errors: of specs that could not be read.
        timing: see `Timing`; None to omit it.
    """

    title: str
    groups: tuple[Group, ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    timing: Timing | None = None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All variants."""
        return tuple(entry for group in self.groups for entry in group.entries)


def slug(kind: str, name: str, taken: set[str]) -> str:
    """Return the name of a page, the same in every report with this page, and add it to `taken`."""
    text, number = name, 1
    while True:
        found = (
            f"{kind}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:_SLUG_DIGITS]}"
        )
        if found not in taken:
            taken.add(found)
            return found
        number += 1
        text = f"{name}\0{number}"


def shown_path(file: str, base_dir: str) -> str:
    """Return a path relative to the folder of the spec, or to site-packages, else its name."""
    parts = PurePath(file).parts
    if _INSTALLED in parts:
        return "/".join(parts[parts.index(_INSTALLED) + 1 :])
    if base_dir and os.path.isabs(file):
        relative = os.path.relpath(file, base_dir)
        if not relative.startswith(os.pardir):
            return one_line(relative)
    return one_line(parts[-1] if os.path.isabs(file) and parts else file)


def grouped(entries: Sequence[Entry]) -> tuple[Group, ...]:
    """Return the kernels of variants, in the order of their first variants."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.kernel, []).append(entry)
    taken: set[str] = set()
    return tuple(
        Group(
            slug("k", name, taken),
            name,
            tuple(dict.fromkeys(param for entry in members for param in entry.params)),
            tuple(members),
        )
        for name, members in found.items()
    )
