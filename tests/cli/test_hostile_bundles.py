"""Bundles with changed records: an exit code and a message, and nothing that a terminal obeys."""

from __future__ import annotations

import copy
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle" / "programs"))

from made_bundles import make_artifact
from taken_apart import Parts

from pallasc.specs.bundle.format import Kind
from pallasc.specs.bundle.manifest import Item, Provenance
from pallasc.specs.bundle.writer import build_bundle

HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n::error file=x::owned\n##[add-mask]x \ud800 \u202eexe\x9b31m"
VALUES = (HOSTILE, None, -1, [HOSTILE], 2**60, {HOSTILE: HOSTILE}, "x" * 100_000, 1.5, True)
OTHERS = itertools.cycle(VALUES)
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]|^[ \t]*::|##\\[", re.MULTILINE
)
COMMANDS = (
    ("inspect", "{}"),
    ("inspect", "{}", "--json"),
    ("inspect", "{}", "--plan"),
    ("list", "{}"),
    ("bundle", "show", "{}"),
    ("bundle", "verify", "{}"),
)
SLOW_COMMANDS = (("report", "{}", "-o", "{}.html"), ("check", "{}"), ("run", "{}", "--emulate"))
"""Seconds each for a bundle that they accept."""


@pytest.fixture(scope="module")
def sound() -> bytes:
    """Return a bundle with a constant, PTX, and provenance."""
    item = Item("table", {"m": 16}, make_artifact(9, constant=bytes(range(256))))
    origin = Provenance("pallasc 1.0", {"ptxas": "13.5"}, {"a.yaml": "0" * 64}, "c0ffee", True)
    return build_bundle([item], provenance=[origin], keep_ptx=True)


@pytest.fixture
def judge(run: Any, tmp_path: Path) -> Callable[..., int]:
    """Run a command on a bundle; return its exit code where its output is as it should be."""
    file = tmp_path / "k.pallasc"

    def judged(bundle: bytes, command: tuple[str, ...]) -> int:
        file.write_bytes(bundle)
        ended = run(*(part.format(file) for part in command))
        assert "Traceback" not in ended.err
        assert OBEYED.search(ended.out + ended.err) is None
        assert ended.code in (0, 1, 5)
        return int(ended.code)

    return judged


def mutants(value: Any, whole: Any = None) -> Iterator[Any]:
    """Yield the value with an unknown key in each object, and with another value in each place."""
    whole = value if whole is None else whole
    keys = [*value, HOSTILE] if isinstance(value, dict) else range(len(value))
    for key in keys:
        before = None if key == HOSTILE else value[key]
        value[key] = next(OTHERS)
        yield copy.deepcopy(whole)
        if key == HOSTILE:
            del value[key]
        else:
            value[key] = before
        if isinstance(before, dict | list):
            yield from mutants(before, whole)


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _record(parts: Parts) -> tuple[int, Any]:
    contents = parts.contents()
    number = next(n for n, row in enumerate(parts.rows) if row.kind is Kind.RECORD)
    return number, json.loads(contents[number])


def with_records(data: bytes) -> Iterator[bytes]:
    """Yield the bundle with each mutant of its record, and digests that fit."""
    number, record = _record(Parts.of(data))
    for changed in mutants(record):
        parts = Parts.of(data)
        parts.contents()
        parts.set_content(number, _text(changed))
        yield parts.data()


def with_entries(data: bytes) -> Iterator[bytes]:
    """Yield the bundle with each mutant of what its entry says, and of its provenance."""
    found: list[Any] = []
    Parts.of(data).change_entry(0, lambda about: (found.append(about), _text(about))[1])
    for changed in mutants(found[0]):
        parts = Parts.of(data)
        parts.change_entry(0, lambda _, changed=changed: _text(changed))
        yield parts.data()
    for changed in mutants(json.loads(Parts.of(data).provenance)):
        parts = Parts.of(data)
        parts.provenance = _text(changed)
        yield parts.data()


@pytest.mark.parametrize("change", [with_records, with_entries])
def test_a_changed_field_ends_in_a_message_or_in_harmless_text(
    change: Callable[[bytes], Iterator[bytes]], sound: bytes, judge: Callable[..., int]
) -> None:
    codes = []
    for number, bundle in enumerate(change(sound)):
        codes.append(judge(bundle, COMMANDS[0]))
        judge(bundle, COMMANDS[1 + number % (len(COMMANDS) - 1)])
    assert codes.count(5) > len(codes) / 2


@pytest.mark.parametrize("command", [*COMMANDS, *SLOW_COMMANDS], ids=" ".join)
def test_an_unknown_key_of_the_target_is_refused_by_every_command(
    command: tuple[str, ...], sound: bytes, judge: Callable[..., int]
) -> None:
    parts = Parts.of(sound)
    number, record = _record(parts)
    record["target"][HOSTILE] = 1
    parts.set_content(number, _text(record))
    reads_records = command[0] != "list" and command[:2] != ("bundle", "show")
    assert judge(parts.data(), command) == (5 if reads_records else 0)
