"""Riegeli files as XLA writes them; everything else is refused by name."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.compiler.lowering.serialized import SIGNATURE, read_varint, records
from pallasc.errors import CompileError

BLOCK = 1 << 16


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def chunk(kind: bytes, body: bytes, count: int) -> bytes:
    """Return a chunk with its 40-byte header; the hashes are not looked at."""
    header = bytes(8) + len(body).to_bytes(8, "little") + bytes(8) + kind
    return header + count.to_bytes(7, "little") + bytes(8) + body


def simple(values: list[bytes], compression: bytes = b"\0") -> bytes:
    """Return the body of a simple chunk."""
    compress = {
        b"\0": bytes,
        b"s": lambda raw: varint(len(raw)) + bytes(cramjam.snappy.compress_raw(raw)),
    }[compression]
    sizes = compress(b"".join(varint(len(value)) for value in values))
    return compression + varint(len(sizes)) + sizes + compress(b"".join(values))


def file(*chunks: bytes) -> bytes:
    """Return a file: the chunks with a header of 24 bytes at the start of each block of 64 KiB."""
    stream = chunk(b"s", b"", 0) + b"".join(chunks)
    step = BLOCK - 24
    blocks = [stream[at : at + step] for at in range(0, len(stream), step)]
    header = SIGNATURE + bytes(16)
    return b"".join(header + block for block in blocks)


@pytest.mark.parametrize("compression", [b"\0", b"s"])
def test_records_come_back_in_order(compression: bytes) -> None:
    values = [b"", b"one", bytes(range(256)) * 3]
    data = file(chunk(b"r", simple(values, compression), 3), chunk(b"r", simple([b"x"]), 1))
    assert records(data) == [*values, b"x"]
    # Padding and metadata hold no records.
    data = file(chunk(b"m", b"about", 0), chunk(b"p", bytes(99), 0), chunk(b"r", simple([b"x"]), 1))
    assert records(data) == [b"x"]


@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(0, 3 * BLOCK))
def test_records_that_cross_blocks_come_back(values: list[bytes], size: int) -> None:
    long = bytes(index * 7 & 0xFF for index in range(size))
    data = file(chunk(b"r", simple([long, *values]), len(values) + 1))
    assert records(data) == [long, *values]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (file(chunk(b"t", b"transposed", 1)), "Riegeli chunk of type b't'"),
        (file(chunk(b"r", b"x\1\1", 1)), "uses Riegeli compression b'x'"),
        (file(chunk(b"r", simple([b"abc"]), 2)), "ends inside a varint"),
        (file(chunk(b"r", b"\0\xff\xff\xff", 1)), "ends inside a varint"),
        (file(chunk(b"r", simple([b"abc"]), 1))[:-1], "ends inside a Riegeli chunk"),
    ],
)
def test_what_is_not_known_or_does_not_fit_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        records(data)


def test_a_varint_of_more_than_64_bits_is_refused() -> None:
    assert read_varint(b"\x96\x01x", 0) == (150, 2)
    with pytest.raises(CompileError, match="ends inside a varint"):
        read_varint(b"\xff" * 11, 0)
