"""Loading cubins: what is checked before the driver sees them, and what the driver is asked."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import CorruptError, DeviceError
from pallasc.runtime.calls.plain import check_cubin, launch_config, ready_function
from pallasc.runtime.device.devices import active, get_device, open_driver
from pallasc.specs.artifacts.cubin import Cubin


@pytest.mark.parametrize(
    ("toolkit", "driver", "fits"),
    [("12.9", 12000, True), ("13.0", 12090, False), ("13.5", 13000, True), ("", 12000, True)],
)
def test_within_a_major_version_minor_ones_mix(toolkit: str, driver: int, fits: bool) -> None:
    cubin = Cubin(90, toolkit, {}, "")
    artifact = made.add(code=b"none")
    if fits:
        check_cubin(cubin, artifact, driver)
        return
    with pytest.raises(DeviceError, match=r"made by CUDA toolkit 13\.0, and the driver is for"):
        check_cubin(cubin, artifact, driver)


def test_an_untested_toolkit_is_named_in_the_hint() -> None:
    with pytest.raises(DeviceError) as caught:
        check_cubin(Cubin(90, "14.1", {}, ""), made.add(code=b"none"), 13000)
    assert caught.value.hint == "Install NVIDIA driver for CUDA 14.1 or newer."


@pytest.mark.parametrize(("arch", "sm"), [("sm_90a", 80), ("sm_100f", 103), ("sm_86", 80)])
def test_a_cubin_for_another_architecture_is_refused(arch: str, sm: int) -> None:
    artifact = made.add(code=b"none", arch=arch)
    with pytest.raises(CorruptError, match=f"for {arch}, but its cubin is for sm_{sm}"):
        check_cubin(Cubin(sm, "13.0", {}, ""), artifact, 13000)


def test_the_steps_of_loading_come_in_order(runtime: Any) -> None:
    artifact = made.artifact(made.launch("three", 0, 1, 2, dynamic_smem_bytes=100_000))
    device = get_device(0)
    (launch,) = artifact.plan.launches
    ready_function(open_driver(), artifact, launch, device)
    names = [
        call.name for call in runtime.calls() if call.name.startswith(("cuLib", "cuK", "cuFunc"))
    ]
    assert list(dict.fromkeys(names)) == [
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuKernelGetParamInfo",
        "cuKernelGetAttribute",
        "cuKernelSetAttribute",
        "cuKernelGetFunction",
        "cuFuncLoad",
    ]


def test_a_configuration_has_what_the_launch_says(runtime: Any) -> None:
    driver = open_driver()
    get_device(0)
    step = made.launch("three", grid=(6, 5, 4), block=(32, 3, 2), cluster=(2, 1, 1), pdl=True)
    config = launch_config(driver, step, 48)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (6, 5, 4)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (32, 3, 2)
    assert (int(config.hStream), config.numAttrs) == (48, 2)


def test_the_thread_has_the_context_that_it_had_before(runtime: Any) -> None:
    runtime.devices("9.0", "9.0")
    first, second = get_device(0), get_device(1)
    artifact = made.add()
    (launch,) = artifact.plan.launches
    with active(first) as driver:
        ready_function(driver, artifact, launch, second)
        assert int(driver.call("cuCtxGetDevice", what="the device")) == 0
