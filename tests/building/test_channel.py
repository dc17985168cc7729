"""The channel to a worker: answers come through whatever else is written there."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallasc.compiler.workers import channel
from pallasc.compiler.workers.channel import (
    Channel,
    Frames,
    decode,
    encode,
    key_line,
    make_key,
    read_key,
)

MESSAGES = [{"pid": 7}, {"ok": True, "value": ["\n", "é", 1.5, None]}, {"ok": False}]
KEY = make_key()


def sent(*messages: dict[str, object], key: bytes = KEY) -> bytes:
    """Return the bytes that one worker sends."""
    ends, answers = os.pipe()
    try:
        worker = Channel(answers, key)
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
        frames = Frames(KEY)
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        assert [m for part in parts for m in frames.feed(part)] == MESSAGES
        assert frames.stray_bytes == 0


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40) | st.just(b'{"ok":true}\n') | st.just(b"\n0 "), max_size=6))
def test_stray_bytes_between_messages_are_counted_and_left_out(strays: list[bytes]) -> None:
    frames, found = Frames(KEY), []
    pieces = sent(*MESSAGES).split(b"\n\n")
    data = b"\n\n".join(
        piece + b"\n" + (strays[n] if n < len(strays) else b"") for n, piece in enumerate(pieces)
    )
    found = list(frames.feed(data + b"\n"))
    assert found == MESSAGES
    assert bool(frames.stray_bytes) == any(s.strip(b"\n") for s in strays[: len(pieces)])


@pytest.mark.parametrize(
    "forge",
    [
        lambda data: data.replace(b"true", b"null"),
        lambda data: data.replace(b"\n0 ", b"\n1 ", 1),
        lambda data: b'{"ok":true}\n' * 3,
        lambda data: sent({"ok": True}, key=make_key()),
        lambda data: b"\n0 " + b"f" * 64 + b' {"ok":true}\n',
        lambda data: b"\n" + b"9" * 400 + b" " + b"f" * 64 + b" {}\n",
    ],
)
def test_a_forged_frame_is_none(forge: Callable[[bytes], bytes]) -> None:
    frames = Frames(KEY)
    assert [m for m in frames.feed(forge(sent({"ok": True}))) if m] == []
    assert frames.stray_bytes


@pytest.mark.parametrize("text", [b"[]", b"{", b"[" * 200_000, b'{"a": "\xff"}'])
def test_a_signed_message_that_is_malformed_is_none(text: bytes) -> None:
    signed = b"0 " + text
    code = hmac.digest(KEY, signed, "sha256").hex().encode()
    frames = Frames(KEY)
    data = b"\n0 " + code + b" " + text + b"\n"
    assert list(frames.feed(data + sent({"ok": True}).partition(b"\n\n")[2])) == [None]
    assert frames.stray_bytes == 0


def test_a_frame_that_is_sent_again_counts_once() -> None:
    data = sent({"ok": True})
    frames = Frames(KEY)
    assert list(frames.feed(data + data)) == [{"ok": True}]
    assert frames.stray_bytes


def test_a_message_that_was_garbled_is_noticed() -> None:
    """A thread of a kernel may write into the middle of a long message."""
    data = sent({"ok": True, "value": "x" * 100}, {"ok": False})
    frames = Frames(KEY)
    assert list(frames.feed(data.replace(b"xxx", b"x\nx", 1))) == [None, {"ok": False}]


def test_what_has_no_end_takes_no_more_room_than_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "_LONGEST_FRAME_BYTES", 1000)
    frames = Frames(KEY)
    for _ in range(50):
        assert list(frames.feed(b"x" * 100)) == []
        assert len(frames._buffer) <= 1000
    assert list(frames.feed(sent({"ok": True}))) == [{"ok": True}]
    assert frames.stray_bytes > 4000


def test_the_key_is_all_that_is_read_of_what_is_sent() -> None:
    ends, given = os.pipe()
    with os.fdopen(ends, "rb", buffering=0) as file:
        os.write(given, key_line(KEY) + b"rest")
        assert read_key(file.fileno()) == KEY
        os.close(given)
        assert file.read() == b"rest"
        with pytest.raises(EOFError):
            read_key(file.fileno())


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
