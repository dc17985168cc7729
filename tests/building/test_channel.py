"""The channel to a worker: answers come through whatever else is written there."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallasc.compiler.workers import channel
from pallasc.compiler.workers.channel import Channel, Messages, decode, encode, read_token

MESSAGES = [{"pid": 7}, {"ok": True, "value": ["\n", "é", 1.5, None]}, {"ok": False}]
TOKEN = b"0123456789abcdef" * 2


def sent(*messages: dict[str, object], token: bytes = TOKEN) -> bytes:
    """Return the bytes that one worker sends."""
    ends, answers = os.pipe()
    try:
        worker = Channel(answers, token)
        for message in messages:
            worker.send(message)
        os.close(answers)
        with os.fdopen(ends, "rb") as file:
            return file.read()
    except BaseException:
        os.close(ends)
        raise


def test_messages_come_back_in_order_however_they_are_cut() -> None:
    data = sent(*MESSAGES)
    for size in (1, 2, 7, 64, len(data)):
        messages = Messages(TOKEN)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert [m for part in parts for m in messages.feed(part)] == MESSAGES
        assert messages.stray_bytes == 0


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40) | st.just(b'{"ok":true}\n') | st.just(b"\n0 "), max_size=6))
def test_stray_bytes_between_messages_are_counted_and_left_out(strays: list[bytes]) -> None:
    messages, found = Messages(TOKEN), []
    pieces = sent(*MESSAGES).split(b"\n\n")
    data = b"\n\n".join(
        piece + b"\n" + (strays[n] if n < len(strays) else b"") for n, piece in enumerate(pieces)
    )
    found = list(messages.feed(data + b"\n"))
    assert found == MESSAGES
    assert bool(messages.stray_bytes) == any(s.strip(b"\n") for s in strays[: len(pieces)])


@pytest.mark.parametrize(
    "data",
    [
        b'{"ok":true}\n' * 3,
        sent({"ok": True}, token=b"f" * 32),
        b"\n" + b"9" * 400 + b" " + b"f" * 64 + b" {}\n",
        sent({"ok": True}).removeprefix(b"\n" + TOKEN),
    ],
)
def test_a_line_without_the_token_is_no_message(data: bytes) -> None:
    messages = Messages(TOKEN)
    assert list(messages.feed(data)) == []
    assert messages.stray_bytes


@pytest.mark.parametrize("text", [b"[]", b"{", b"[" * 200_000, b'{"a": "\xff"}'])
def test_a_message_that_is_malformed_is_none(text: bytes) -> None:
    messages = Messages(TOKEN)
    assert list(messages.feed(b"\n%s %d %s\n" % (TOKEN, len(text), text))) == [None]
    assert messages.stray_bytes == 0


@pytest.mark.parametrize("stray", [b"x", b"x\nx", b"\n", b"\\u0000"])
def test_a_message_that_was_garbled_is_noticed(stray: bytes) -> None:
    """A thread of a kernel may write into the middle of a long message."""
    data = sent({"ok": True, "value": "x" * 100}, {"ok": False})
    garbled = data.replace(b"xxx", b"x" + stray + b"xx", 1)
    assert list(Messages(TOKEN).feed(garbled)) == [None, {"ok": False}]


def test_what_has_no_end_takes_no_more_room_than_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "_LONGEST_LINE_BYTES", 1000)
    messages = Messages(TOKEN)
    for _ in range(50):
        assert list(messages.feed(b"x" * 100)) == []
        assert len(messages._buffer) <= 1000
    assert list(messages.feed(sent({"ok": True}))) == [{"ok": True}]
    assert messages.stray_bytes > 4000


def test_the_token_is_all_that_is_read_of_what_is_sent() -> None:
    ends, given = os.pipe()
    with os.fdopen(ends, "rb", buffering=0) as file:
        os.write(given, TOKEN + b"\nrest")
        assert read_token(file.fileno()) == TOKEN
        os.close(given)
        assert file.read() == b"rest"
        with pytest.raises(EOFError):
            read_token(file.fileno())


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
