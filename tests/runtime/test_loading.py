"""Loading cubins: what is checked before the driver sees them, and what the driver is asked."""

from __future__ import annotations

from typing import Any

import made
import pytest

from pallasc.errors import CorruptError, DeviceError
from pallasc.runtime.calls.program import check_cubin, ready_function
from pallasc.runtime.device.devices import get_device, open_driver
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
