"""Arrays of CuPy, by a module that has what the adapter asks CuPy for."""

from __future__ import annotations

from typing import Any

import foreign
import made
import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.device_arrays import DeviceArray

TEXT = "f32[4, 64]"


@pytest.fixture
def cupy(framework: Any, monkeypatch: pytest.MonkeyPatch) -> foreign.Cupy:
    return foreign.install_cupy(framework, monkeypatch)


def test_results_are_arrays_of_cupy(cupy: foreign.Cupy, adds: Any, slow: list[str]) -> None:
    a, b = (cupy.array(TEXT, values=n) for n in (1, 2))
    adds(a, b)
    for _ in range(3):
        out = adds(a, b)
        assert type(out) is cupy.ndarray
        assert (out.tensor.numpy() == 3).all()
        into = cupy.array(TEXT)
        assert adds.into(a, b, out=into) is into
        assert (into.tensor.numpy() == 3).all()
    assert slow == []


def test_a_call_goes_to_the_stream_of_cupy_or_to_its_own(
    cupy: foreign.Cupy, adds: Any, runtime: Any
) -> None:
    a, b, out = (cupy.array(TEXT) for _ in range(3))
    first, other = made.stream(), made.stream()
    for _ in range(2):
        cupy.current = 0
        adds.into(a, b, out=out)
        cupy.current = first
        adds.into(a, b, out=out)
        adds(a, b, stream=other)
    assert [launch.stream for launch in runtime.launches] == [0, first, other] * 2
    assert cupy.streams == [other, other]


def test_arrays_of_cupy_are_checked_at_each_call(cupy: foreign.Cupy, adds: Any) -> None:
    a, b, gaps = (cupy.array(TEXT) for _ in range(3))
    gaps.flags.c_contiguous = False
    for _ in range(2):
        adds(a, b)
        for wrong, message in (
            (cupy.array("f16[4, 64]"), "made: b has dtype f16"),
            (cupy.array("f32[64, 4]"), r"made: b has shape \[64, 4\]"),
            (gaps, "made: b is not contiguous"),
        ):
            with pytest.raises(ArgumentError, match=message):
                adds(a, wrong)


def test_frameworks_keep_their_fast_ways_and_meet_in_one_call(
    cupy: foreign.Cupy, adds: Any, framework: Any, slow: list[str]
) -> None:
    theirs = [cupy.array(TEXT, values=n) for n in (1, 2, 0)]
    ours = [framework.tensor(TEXT, values=n) for n in (1, 2, 0)]
    own = [DeviceArray((4, 64), "f32") for _ in range(3)]
    for n, array in enumerate(own[:2], 1):
        array.copy_from(np.full((4, 64), n, np.float32))
    for arrays in (theirs, ours, own) * 2:
        adds.into(*arrays[:2], out=arrays[2])
    slow.clear()
    for arrays in (theirs, ours, own):
        assert adds.into(*arrays[:2], out=arrays[2]) is arrays[2]
    assert slow == []
    ours[2].numpy()[...] = 0
    adds.into(theirs[0], own[1], out=ours[2])
    assert (ours[2].numpy() == 3).all()
    assert len(slow) == 1
    assert np.frombuffer(own[2].to_bytes(), np.float32).tolist() == [3] * 256
