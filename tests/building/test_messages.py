"""Messages between a build and its workers, and the channel that carries them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pallasc.compiler.workers import messages
from pallasc.compiler.workers.diagnostics import MOST, Diagnostic
from pallasc.compiler.workers.messages import (
    Compile,
    Compiled,
    Failed,
    Messages,
    Request,
    decode,
    encode,
)
from pallasc.errors import CompileError, Location, SpecError

WARNING = Diagnostic("compile", "UserWarning", "k.py:3", "slow", 2)
COMPILED = Compiled(
    action="0" * 64, status="compiled", seconds=0.5, warnings={"read": "w"}, uncached="", task=3,
    record={"plan": [1, {"x": None}]}, blobs={"k": b"\x00data"}, diagnostics=(WARNING,),
    digest="1" * 64, missed={"HOME": "k.py:1"},
)  # fmt: skip
COMPILE = Compile(
    variant=None, request="r", fields={"a": "b"}, data={}, env={"X": None}, trusted_records=None,
    task=3,
)  # type: ignore[arg-type]  # fmt: skip


def carried(message: Any) -> Any:
    """Return the plain data that comes out of the channel."""
    return json.loads(json.dumps(message.to_json()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ok", 1), ("action", "../x"), ("action", None), ("status", "hit!"), ("seconds", -1),
        ("seconds", float("nan")), ("seconds", float("inf")), ("seconds", True), ("warnings", [1]),
        ("diagnostics", [{}]), ("diagnostics", [WARNING.to_json()] * (MOST + 1)), ("record", []),
        ("blobs", {"k": 1}), ("blobs", {"k": "=!"}), ("digest", "1"), ("task", 4), ("task", "3"),
    ],
)  # fmt: skip
def test_a_reply_with_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        COMPILE.read_reply({**carried(COMPILED), field: value})


# ---- errors


def sent(error: CompileError | SpecError) -> Failed:
    reply = Request().read_reply(carried(Failed.because_of(error)))
    assert isinstance(reply, Failed)
    return reply


def test_an_error_knows_whether_memory_ran_out() -> None:
    for cause, expected in ((MemoryError(), True), (ValueError("MemoryError"), False)):
        error = CompileError("MemoryError: no")
        error.__cause__ = SpecError("in between")
        error.__cause__.__cause__ = cause
        assert sent(error).out_of_memory is expected
    error.__cause__ = error
    assert not sent(error).out_of_memory


@pytest.mark.parametrize(
    "change",
    [
        None, [], {"exit_code": 0}, {"exit_code": "2"}, {"message": None}, {"hint": 1},
        {"location": "a.yaml"}, {"location": ["a"]}, {"type": 5},
    ],
)  # fmt: skip
def test_an_error_of_another_form_is_refused(change: Any) -> None:
    data = carried(Failed.because_of(SpecError("no", location=Location("a.yaml", 1, 2))))
    data["error"] = {**data["error"], **change} if change else change
    with pytest.raises(ValueError, match=r"."):
        COMPILE.read_reply(data)


# ---- the channel

LINES: list[dict[str, object]] = [
    {"pid": 7},
    {"ok": True, "value": ["\n", "é", 1.5, None]},
    {"ok": False},
]


def test_messages_come_back_in_order_however_they_are_cut() -> None:
    data = b"".join(map(encode, LINES))
    for size in (1, 2, 7, 64, len(data)):
        received = Messages()
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert [m for part in parts for m in received.feed(part)] == [*LINES]


@pytest.mark.parametrize("text", [b"[]", b"{", b"[" * 200_000, b'{"a": "\xff"}', b"rubbish", b""])
def test_a_line_that_is_no_message_is_none(text: bytes) -> None:
    assert list(Messages().feed(text + b"\n")) == [None]
    with pytest.raises((ValueError, RecursionError)):
        decode(text)


@pytest.mark.parametrize("stray", [b"\n", b'"', b"x\nx"])
def test_a_message_that_was_garbled_is_noticed(stray: bytes) -> None:
    """A thread of a kernel may write into the middle of a long message."""
    data = encode({"ok": True, "value": "x" * 100}) + encode({"ok": False})
    *garbled, last = Messages().feed(data.replace(b"xxx", b"x" + stray + b"xx", 1))
    assert set(garbled) == {None}
    assert last == {"ok": False}


def test_what_has_no_end_takes_no_more_room_than_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "_LONGEST_LINE_BYTES", 1000)
    received = Messages()
    found = []
    for _ in range(50):
        found += received.feed(b"x" * 100)
        assert len(received._buffer) <= 1000
    assert set(found) == {None}
