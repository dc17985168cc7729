"""The GPUs of a process, and which one is current."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import standin as control

from pallasc.errors import ArgumentError
from pallasc.runtime.device.devices import active, device_count, get_device
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
