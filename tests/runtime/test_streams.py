"""Streams of all kinds, and order between them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.device.streams import stream_handle


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 48


class _Number:
    def __int__(self) -> int:
        return 64


@pytest.mark.parametrize(
    ("stream", "handle"),
    [(0, 0), (16, 16), (SimpleNamespace(cuda_stream=32), 32), (SimpleNamespace(ptr=40), 40),
     (_Protocol(), 48), (SimpleNamespace(__cuda_stream__=(0, 56)), 56), (_Number(), 64), (1, 1),
     (2, 2), (np.uint64(72), 72), (2**64 - 1, 2**64 - 1)],
)  # fmt: skip
def test_a_stream_of_any_library_has_a_handle(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


@pytest.mark.parametrize(
    "stream",
    [
        "fast", -1, 1.5, object(), True, b"x", b"1", 2**64, [], (0, 1), {}, 1j,
        np.float32(2), np.bool_(True), np.arange(2),
        SimpleNamespace(cuda_stream=-1), SimpleNamespace(cuda_stream=True),
        SimpleNamespace(cuda_stream="16"), SimpleNamespace(ptr=1.0), SimpleNamespace(ptr=None),
        SimpleNamespace(__cuda_stream__=None), SimpleNamespace(__cuda_stream__=7),
        SimpleNamespace(__cuda_stream__=(0, 1, 2)), SimpleNamespace(__cuda_stream__=(0, None)),
        SimpleNamespace(__cuda_stream__=(0, -1)), SimpleNamespace(__cuda_stream__=(0, True)),
        SimpleNamespace(__cuda_stream__=lambda: "no"),
    ],
)  # fmt: skip
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    with pytest.raises(ArgumentError, match="stream must be a CUDA stream, not"):
        stream_handle(stream)
