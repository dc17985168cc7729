"""The record of source lines: what it says comes back, and nothing malformed is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.source_lines import (
    Frame,
    KernelLines,
    SharedMemory,
    SourceFile,
    SourceLines,
    from_json,
    to_json,
)

INNER, OUTER = Frame("k.py", 3, "outer.inner"), Frame("k.py", 9, "")
FILE = SourceFile("k.py", "spec", "a" * 64, {3: "three", 4: "four", 9: "nine"})
PART = SharedMemory("scratch", "a_smem", "f16[64, 64]", 8192, 0, 2)
KERNEL = KernelLines("k", "b" * 64, "c" * 64, (1, 1, 2, 0), (2, 1), (PART,))
LINES = SourceLines((KERNEL,), ((INNER, OUTER), (OUTER,)), (FILE,))


def test_a_record_comes_back() -> None:
    assert from_json(to_json(LINES)) == LINES
    assert json.loads(to_json(LINES))["kernels"][0]["ptx_lines"] == [2, 1, 1, 2, 1, 0]


def damaged(*path: Any, to: object) -> bytes:
    """Return the record with another value in a place."""
    body = json.loads(to_json(LINES))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("path", "to", "why"),
    [
        (("schema",), 2, "schema 2 instead of 1"),
        (("files", 0, "place"), "/etc", "got '/etc'"),
        (("files", 0, "text"), [[3]], "expected 2 values, got 1"),
        (("files", 0, "text"), [[3, ["a\nb"]]], "a line of source has several lines"),
        (("frames", 0, 0), 7, "out of range"),
        (("frames", 0, 1), -1, "a whole number from 0, got -1"),
        (("kernels", 0, "ptx_lines"), [2], "runs of a wrong length"),
        (("kernels", 0, "ptx_lines"), [2**40, 1], "runs of a wrong length"),
        (("kernels", 0, "shared_memory", 0), {}, "'what' is missing"),
    ],
)
def test_a_damaged_record_is_refused(path: Any, to: object, why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        from_json(damaged(*path, to=to))


def test_runs_are_bounded_in_all_kernels_together(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = SourceLines((KERNEL, KERNEL), LINES.stacks, LINES.files)
    monkeypatch.setattr("pallasc.specs.artifacts.source_lines._MOST_RUNS", 12)
    assert from_json(to_json(twice)) == twice
    monkeypatch.setattr("pallasc.specs.artifacts.source_lines._MOST_RUNS", 11)
    with pytest.raises(CorruptError, match="runs of a wrong length"):
        from_json(to_json(twice))
