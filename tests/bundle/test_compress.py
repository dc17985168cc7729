"""Frames: what they hold comes back, and nothing makes more of them than was said."""

import random
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import CorruptError
from pallasc.specs.bundle.compress import RAW, ZSTD, compress, decompress, store

TEXT = b"variants of a kernel share most of their bytes; " * 40


@given(st.binary(min_size=1, max_size=3000), st.binary(max_size=2000), st.integers(1, 22))
def test_a_content_comes_back(content: bytes, dictionary: bytes, level: int) -> None:
    stored = compress(content, level, dictionary)
    assert decompress(stored, len(content), dictionary) == content


def test_what_zstd_does_not_help_is_stored_as_it_is() -> None:
    noise = random.Random(1).randbytes(500)
    assert store(noise, 19) == (RAW, noise)
    assert store(b"", 19) == (RAW, b"")
    assert store(TEXT, 19)[0] == ZSTD
    assert store(noise, 19, TEXT)[0] == ZSTD  # whoever has it as base must know its path


def test_with_the_magic_number_it_is_a_frame_for_any_library() -> None:
    stored = compress(TEXT, 19)
    assert stored[0] == 0
    standard = b"\x28\xb5\x2f\xfd" + stored
    assert zstandard.ZstdDecompressor().decompressobj().decompress(standard) == TEXT


FRAME, SIZE = compress(TEXT, 19), len(TEXT)


@pytest.mark.parametrize(
    ("stored", "size"),
    [(b"", 10), (FRAME, 0), (FRAME, SIZE - 1), (FRAME, SIZE + 1), (FRAME[:-1], SIZE),
     (FRAME + b"\0", SIZE), (FRAME * 2, SIZE), (zstandard.compress(TEXT), SIZE),
     (b"\xff" * 50, 50), (b"\0" * 50, 50), (FRAME, 2**40)],
)  # fmt: skip
def test_what_is_no_frame_of_this_size_is_refused(stored: bytes, size: int) -> None:
    with pytest.raises(CorruptError, match="bytes"):
        decompress(stored, size)


def test_a_frame_that_would_become_too_large_costs_no_memory() -> None:
    bomb = compress(bytes(2**26), 19)
    tracemalloc.start()
    with pytest.raises(CorruptError):
        decompress(bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_frame_that_asks_for_a_large_window_is_refused() -> None:
    frame = bytearray(compress(TEXT, 19))
    frame[1] = 0xF8  # windows of 2 TiB
    with pytest.raises(CorruptError, match="decompressed"):
        decompress(bytes(frame), len(TEXT))
