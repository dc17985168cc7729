"""Messages between a check and its workers: a level for one variant, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pallasc.checks.findings import LevelResult
from pallasc.compiler.workers.messages import Reply, Request
from pallasc.specs.spec import Variant


class Checked(Reply, frozen=True, kw_only=True):
    """The result of a level.

    Attributes:
        result: the result.
        sources: files read by the user's code, as fields of a manifest; empty for a level without
            source.
        uncached: why the store must not keep the result, "" if it may.
    """

    result: LevelResult
    sources: Mapping[str, object] = {}
    uncached: str = ""


class Check(Request, frozen=True, kw_only=True):
    """Run a level.

    Attributes:
        level: its name.
        id: the variant's display name.
        variant: the variant it was compiled from, None without source.
        record: the artifact's record.
        blobs: the blobs that the record names, by digest.
        xla_ptx, why_no_ptx: see `subject.Subject`.
        seed, schedules, inputs: see `subject.Options`.
        timeout_s, memory_bytes: limits of the level, None for no limit.
        env: the values of the variables that the variant declares, None if not set.
    """

    reply: ClassVar[type[Reply]] = Checked
    level: str
    id: str
    variant: Variant | None
    record: Mapping[str, object]
    blobs: Mapping[str, bytes]
    seed: int
    schedules: int
    inputs: Mapping[str, Path] = {}
    xla_ptx: Mapping[str, str] = {}
    why_no_ptx: str = ""
    timeout_s: float | None = None
    memory_bytes: int | None = None
    env: Mapping[str, str | None] = {}
