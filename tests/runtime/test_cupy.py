"""Arrays of CuPy, by a module that has what the adapter asks CuPy for."""

from __future__ import annotations

from typing import Any

import foreign
import made
import pytest

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
