"""The GPUs of a process, and which one is current."""

from __future__ import annotations

from typing import Any

import pytest
import standin as control

from pallasc.errors import ArgumentError, DriverError
from pallasc.runtime.devices import (
    active,
    current_device,
    device_count,
    device_of,
    get_device,
    is_open,
    make_current,
)


def test_a_device_has_its_figures(runtime: Any) -> None:
    runtime.devices("9.0", control.Device("10.0", name="Small", sms=20, smem_optin_bytes=100_000))
    assert device_count() == 2
    device = get_device(1)
    assert (device.name, device.major, device.minor) == ("Small", 10, 0)
    assert (device.sm_count, device.smem_optin_bytes) == (20, 100_000)
    assert (device.has_pools, device.driver_version) == (True, 13000)
    assert str(device) == "GPU 1 (Small, sm_100)"


def test_a_device_is_read_once(runtime: Any) -> None:
    assert get_device(0) is get_device(0)
    assert runtime.count("cuDevicePrimaryCtxRetain") == 1
    assert is_open(get_device(0))


@pytest.mark.parametrize("ordinal", [-1, 1, 7])
def test_a_device_that_is_not_there_is_refused(ordinal: int, runtime: Any) -> None:
    with pytest.raises(ArgumentError, match=f"there is no GPU {ordinal}: the driver counts 1"):
        get_device(ordinal)


def test_the_current_device_is_that_of_the_current_context(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    assert current_device() == 0
    with active(get_device(1)):
        assert current_device() == 1
        with active(get_device(0)):
            assert current_device() == 0
        assert current_device() == 1
    assert current_device() == 0


def test_the_context_is_given_back_after_an_error(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    with active(get_device(0)):
        with pytest.raises(KeyError), active(get_device(1)):
            raise KeyError
        assert current_device() == 0


def test_a_context_is_made_current_only_where_there_is_none(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    assert make_current(get_device(1))
    assert current_device() == 1
    assert not make_current(get_device(0))
    assert current_device() == 1


def test_an_address_belongs_to_its_device(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    with active(get_device(1)) as driver:
        address = int(driver.call("cuMemAlloc", 256, what="memory"))
    assert device_of(address) == 1
    assert device_of(address + 100) == 1
    assert device_of(0) == 0
    with pytest.raises(DriverError, match="no GPU has memory at 0x10"):
        device_of(16)
