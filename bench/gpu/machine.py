"""What the machine is, and what state its GPU is in."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("pallasc", "jax", "jaxlib", "jax-cuda13-plugin", "nvidia-cuda-nvcc", "nvidia-nvjitlink"),
    *("torch", "triton", "cupy-cuda13x", "cuda-bindings", "cuda-core", "numpy", "ml-dtypes"),
)
_CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "celsius": "temperature.gpu",
    "watt": "power.draw",
}
_REASONS = {"throttled_by": "clocks_event_reasons.active"}
_TOOLKITS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")


def describe_machine() -> dict[str, Any]:
    """Return what this machine is."""
    from pallasc.runtime.device.devices import get_device

    device = get_device(0)
    return {
        "gpu": device.name,
        "capability": [device.major, device.minor],
        "sm_count": device.sm_count,
        "smem_optin_bytes": device.smem_optin_bytes,
        "driver_api": device.driver_version,
        "driver": _driver_package(),
        "machine": platform.machine(),
        "system": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": installed(PACKAGES),
        "ptxas": ptxas_version(),
        "tools": {
            name: find_tool(name) is not None for name in ("compute-sanitizer", "nvidia-smi")
        },
    }


def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of packages, empty where one is not here."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _driver_package() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except OSError:
        return ""


def find_tool(name: str) -> str | None:
    """Return the path of a tool on the PATH or in the usual toolkit, None where there is none."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *_TOOLKITS])
    return shutil.which(name, path=path)


def ptxas_version(tool: str | None = None) -> str:
    """Return `13.0.88`, the version of an assembler, of the toolkit's where none is named."""
    tool = tool or find_tool("ptxas")
    if tool is None:
        return ""
    text = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return found[1] if found else ""


def differences(packed: Mapping[str, str], here: Mapping[str, Any]) -> list[str]:
    """Return how what packed the kernels differs from what this machine would compile with."""
    own = {"jax": here["versions"]["jax"], "ptxas": here["ptxas"]}
    return [
        f"the kernels were packed with {name} {packed[name] or 'unknown'}, "
        f"and this machine has {own[name] or 'none'}"
        for name in own
        if packed.get(name, "") != own[name]
    ]


def clocks(busy: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """Return clocks in MHz, temperature in °C, power in W and what throttles.

    Args:
        busy: is called again and again meanwhile, so that the GPU does not idle.
    """
    tool = find_tool("nvidia-smi")
    if tool is None:
        return {"missing": "nvidia-smi is not here"}
    for fields in (_CLOCKS | _REASONS, _CLOCKS):  # what throttles has another name in other drivers
        query = f"--query-gpu={','.join(fields.values())}"
        command = [tool, "-i", "0", query, "--format=csv,noheader,nounits"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                busy()
            said = process.stdout.read() if process.stdout else ""
        values = [_number(value.strip()) for value in said.split(",")]
        if process.returncode == 0 and len(values) == len(fields):
            return dict(zip(fields, values, strict=True))
    return {"missing": f"nvidia-smi says {said.strip()!r}"}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
