"""Frames of packs that are read from a remote."""

from __future__ import annotations

import hashlib
import random

import pytest

from pallasc.cache.packs.format import Frame
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.guard import Guard
from pallasc.cache.remote.index import PackedFrame
from pallasc.cache.remote.objects import Got, OnBytes
from pallasc.cache.remote.reading import SMALL_BYTES, FrameReader
from pallasc.cache.remote.stats import RemoteStats

PACK = random.Random(7).randbytes(2 * SMALL_BYTES)
DIGEST = hashlib.sha256(PACK).hexdigest()
SIZE = SMALL_BYTES // 2


class Breaking:
    """A remote that sends half of what it is asked for, and then fails."""

    has_versions = has_listing = False

    def __init__(self, *, has_ranges: bool) -> None:
        self.has_ranges = has_ranges

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        return Got(self.get_part(name, 0, len(PACK), on_bytes=on_bytes), "1")

    def get_part(self, name: str, start: int, size: int, *, on_bytes: OnBytes) -> bytes:
        on_bytes(PACK[start : start + size // 2])
        raise RemoteError(f"GET {name}: the connection was reset", Failure.BROKEN)


@pytest.mark.parametrize("has_ranges", [False, True])
def test_frames_that_arrived_before_the_answer_broke_are_read(has_ranges: bool) -> None:
    starts = range(0, len(PACK), SIZE)
    digests = [hashlib.sha256(PACK[start : start + SIZE]).hexdigest() for start in starts]
    frames = [Frame(*of) for of in zip(starts, [SIZE] * 4, [SIZE] * 4, digests, strict=True)]
    guard = Guard(Breaking(has_ranges=has_ranges), RemoteStats(url="s3://b"))  # type: ignore[arg-type]
    guard.expect(len(frames))
    reader = FrameReader(guard, {DIGEST: len(PACK)})
    found = list(reader.read([PackedFrame(DIGEST, frame) for frame in frames], worth=True))
    assert found == [(PackedFrame(DIGEST, f), PACK[f.offset : f.offset + SIZE]) for f in frames[:2]]
    assert "the connection was reset" in str(guard.failed)
    guard.close()
