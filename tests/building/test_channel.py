"""The channel to a worker: what is no message is noticed."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallasc.compiler.workers import messages
from pallasc.compiler.workers.messages import Messages, decode, encode, send

MESSAGES = [{"pid": 7}, {"ok": True, "value": ["\n", "é", 1.5, None]}, {"ok": False}]


def sent(*sending: dict[str, object]) -> bytes:
    """Return the bytes that one worker sends."""
    ends, answers = os.pipe()
    try:
        for message in sending:
            send(answers, message)
        os.close(answers)
        with os.fdopen(ends, "rb") as file:
            return file.read()
    except BaseException:
        os.close(ends)
        raise


def test_messages_come_back_in_order_however_they_are_cut() -> None:
    data = sent(*MESSAGES)
    for size in (1, 2, 7, 64, len(data)):
        received = Messages()
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert [m for part in parts for m in received.feed(part)] == MESSAGES


@pytest.mark.parametrize("text", [b"[]", b"{", b"[" * 200_000, b'{"a": "\xff"}', b"rubbish", b""])
def test_a_line_that_is_no_message_is_none(text: bytes) -> None:
    assert list(Messages().feed(text + b"\n")) == [None]


@pytest.mark.parametrize("stray", [b"\n", b'"', b"x\nx"])
def test_a_message_that_was_garbled_is_noticed(stray: bytes) -> None:
    """A thread of a kernel may write into the middle of a long message."""
    data = sent({"ok": True, "value": "x" * 100}, {"ok": False})
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


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(), values))
def test_a_message_comes_back_as_it_was_on_one_line(message: dict[str, object]) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message
    assert list(decode(line)) == list(message)


@pytest.mark.parametrize("line", [b"", b"[]", b"1", b'{"a":', b"\xff", b"no"])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(line)
