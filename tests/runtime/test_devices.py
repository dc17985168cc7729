"""The GPUs of a process, which one is current, and handles of streams."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import standin as control

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import active, device_count, get_device
from pallasc.runtime.device.streams import stream_handle
from pallasc.runtime.kernel import device_ordinal


def test_a_device_has_its_figures(runtime: Any) -> None:
    runtime.devices("9.0", control.Device("10.0", name="Small", sms=20, smem_optin_bytes=100_000))
    assert device_count() == 2
    device = get_device(1)
    assert (device.name, device.major, device.minor) == ("Small", 10, 0)
    assert (device.sm_count, device.smem_optin_bytes) == (20, 100_000)
    assert (device.has_pools, device.driver_version) == (True, 13000)
    assert str(device) == "GPU 1 (Small, sm_100)"


class _Like:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("device", "ordinal"),
    [
        (None, 1),
        (0, 0),
        ("cuda:0", 0),
        ("gpu:2", 2),
        ("cuda", 1),
        (_Like(type="cuda", index=3), 3),
        (_Like(type="cuda", index=None), 1),
        (_Like(id=4), 4),
        (_Like(device_id=5, name="a GPU"), 5),
        (_Like(platform="gpu", local_hardware_id=0, id=8), 0),
        (np.int64(6), 6),
    ],
)
def test_a_device_has_the_names_of_frameworks(device: Any, ordinal: int, runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    with active(get_device(1)):
        assert device_ordinal(device) == ordinal


@pytest.mark.parametrize(
    "device",
    ["cpu", "cuda:", "cuda:x", "0", True, 1.0, b"cuda:0", _Like(type="cpu", index=0),
     _Like(platform="cpu", id=0), object()],
)  # fmt: skip
def test_what_is_no_gpu_is_refused(device: Any, runtime: Any) -> None:
    with pytest.raises(ArgumentError, match="device must be a GPU, not"):
        device_ordinal(device)


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
