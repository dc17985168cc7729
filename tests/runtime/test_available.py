"""Whether a kernel can run here, and what is said first where it cannot."""

import json
import os
from pathlib import Path
from typing import Any

import made
import pytest
from processes import PROGRAMS, run_python

from pallasc.errors import ArgumentError

NO_DRIVER = "no NVIDIA driver here: libcuda.so.1 cannot be loaded."


@pytest.fixture(scope="module")
def report() -> dict[str, str]:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    hidden = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    done = run_python(PROGRAMS / "no_driver.py", environment=hidden)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("right", f"DeviceError: {NO_DRIVER}"),
        ("dtype", "ArgumentError: made: b has dtype f64, and the kernel takes f32[4, 64]."),
        ("shape", "ArgumentError: made: a has shape [2, 64], and the kernel takes f32[4, 64]."),
        ("none of several", "ArgumentError: sum has no variant for f32[1, 64], f32[4, 64]."),
        ("one of several", f"DeviceError: {NO_DRIVER}"),
        ("prepare", "ArgumentError: made: b has shape [4, 32], and the kernel takes f32[4, 64]."),
        ("JAX, dtype", "ArgumentError: made: b has dtype f16, and the kernel takes f32[4, 64]."),
        ("available", f"False, (): {NO_DRIVER}"),
    ],
)  # fmt: skip
def test_wrong_arrays_come_before_a_missing_driver(
    what: str, expected: str, report: dict[str, str]
) -> None:
    assert report[what] == expected


def test_a_kernel_says_where_it_can_run(runtime: Any) -> None:
    runtime.devices("9.0", "10.0", "9.0")
    here = made.kernel(made.add()).available()
    assert here
    assert (here.devices, here.reason, str(here)) == ((0, 2), "", "runs on GPU 0, 2")
    assert runtime.count("cuDevicePrimaryCtxRetain") == 0, "asking makes no context"
    assert made.kernel(made.add()).available("cuda:2").devices == (2,)


def test_a_kernel_says_why_it_cannot_run(runtime: Any) -> None:
    runtime.devices("9.0", "10.0")
    kernel = made.kernel(made.add(target="a100-sxm"))
    here = kernel.available()
    assert not here
    reasons = [line for line in here.reason.splitlines() if line.startswith("  made")]
    assert len(reasons) == 2
    assert all("sm_80 runs on sm_80 and newer ones of its family" in reason for reason in reasons)
    assert str(here) == here.reason
    assert "there is no GPU 7" in kernel.available(7).reason
    with pytest.raises(ArgumentError, match="device must be a GPU"):
        kernel.available("tpu")


def test_a_machine_without_a_gpu_is_a_reason(runtime: Any) -> None:
    runtime.configure(init_code=100)
    here = made.kernel(made.add()).available()
    assert not here
    assert "it finds no GPU" in here.reason
