"""The machine, and the state of its GPU."""

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from desk import Desk

PACKAGES = (
    *("pallasc", "jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cuda-nvcc", "nvidia-nvjitlink"),
    *("torch", "triton", "cupy-cuda13x", "cuda-bindings", "cuda-core", "numpy", "ml-dtypes"),
)
_STATE = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "celsius": "temperature.gpu",
    "watt": "power.draw",
}


def run(desk: Desk) -> None:
    """Write the line that describes the machine."""
    from pallasc.runtime.device.devices import get_device

    device = get_device(0)
    desk.results.write(
        "machine",
        gpu=device.name,
        capability=[device.major, device.minor],
        sm_count=device.sm_count,
        driver=device.driver_version,
        machine=platform.machine(),
        python=platform.python_version(),
        versions=installed(PACKAGES),
        state=gpu_state(),
    )


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return the version of each of these packages that is installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def gpu_state() -> dict[str, Any]:
    """Return clocks in MHz, temperature in °C, and power in W."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {"missing": "nvidia-smi is not installed"}
    query = f"--query-gpu={','.join(_STATE.values())}"
    command = [tool, "-i", "0", query, "--format=csv,noheader,nounits"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dict(zip(_STATE, (value.strip() for value in said.split(",")), strict=False))
