"""Frames are found in an answer as soon as they are whole, whatever its pieces are."""

from __future__ import annotations

import hashlib
import random

import pytest

from pallasc.cache.packs.arriving import Arriving
from pallasc.cache.packs.format import Frame

DATA = random.Random(5).randbytes(1000)


def _frame(start: int, end: int) -> Frame:
    return Frame(start, end - start, end - start, hashlib.sha256(DATA[start:end]).hexdigest())


def _arrived(frames: list[Frame], data: bytes, *, start: int = 0, step: int) -> list[Frame]:
    told: list[Frame] = []
    arriving = Arriving(frames, told.append)
    take = arriving.begin(start)
    for at in range(0, len(data), step):
        take(data[at : at + step])
    assert arriving.right() == [(f, DATA[f.offset : f.offset + f.size]) for f in told]
    return told


@pytest.mark.parametrize("step", [1, 7, 100, 1000])
def test_frames_are_found_in_pieces_of_any_size(step: int) -> None:
    frames = [_frame(0, 10), _frame(10, 300), _frame(450, 451), _frame(700, 1000)]
    assert _arrived(frames, DATA, step=step) == frames
    assert _arrived(frames, DATA[:999], step=step) == frames[:3]
    assert _arrived(frames[1:], DATA[10:], start=10, step=step) == frames[1:]


@pytest.mark.parametrize("step", [1, 64, 1000])
def test_a_damaged_frame_and_one_that_overlaps_are_left_out(step: int) -> None:
    frames = [_frame(0, 100), _frame(50, 150), _frame(200, 300), _frame(300, 400)]
    damaged = DATA[:250] + b"?" + DATA[251:]
    assert _arrived(frames, damaged, step=step) == [frames[0], frames[3]]


def test_another_attempt_begins_anew() -> None:
    told: list[Frame] = []
    frames = [_frame(0, 100), _frame(100, 200)]
    arriving = Arriving(frames, told.append)
    arriving.begin(0)(DATA[:150])
    arriving.begin(0)(DATA[:200])
    assert told == [frames[0], *frames]
    assert [frame for frame, _ in arriving.right()] == frames
