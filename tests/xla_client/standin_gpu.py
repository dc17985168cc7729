"""XLA's real CUDA client on the stand-in driver, in processes of their own.

`environment()` gives the variables of a process in which `jax.devices()` are GPUs: the stand-in
driver of `tests/runtime/driver` with what XLA calls in addition, and stand-ins for NVML, the CUDA
runtime, and NCCL (`standin/`). Kernels are loaded and launched, and compute nothing.

`start(program)` runs a Python program there, unchanged, and returns how many modules JAX asked its
cache for, found there, and compiled. `site/sitecustomize.py` counts them, and lets JAX look for a
GPU although there is no device file.
"""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compiled import compiled

HERE = Path(__file__).parent
DRIVER = HERE.parent / "runtime" / "driver"
_FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
_LIBRARIES = {
    "libcuda.so.1": "driver.c",
    "libcudart.so.13": "cudart.c",
    "libnvidia-ml.so.1": "nvml.c",
    "libnccl.so.2": "nccl.c",
}
FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer="
"""Otherwise XLA times candidates on the device, and builds CUDA graphs, which it lacks here."""


@functools.cache
def libraries() -> dict[str, Path]:
    """Return the stand-ins by name, compiled where these sources were not compiled yet."""
    watched, built = [*DRIVER.glob("*.h"), HERE / "standin" / "cudart.map"], {}
    for name, file in _LIBRARIES.items():
        sources = [HERE / "standin" / file]
        link = ["-shared", f"-Wl,-soname,{name}", "-lpthread", "-ldl"]
        if name == "libcuda.so.1":
            sources += DRIVER.glob("*.c")
        elif name == "libcudart.so.13":
            link.append(f"-Wl,--version-script={HERE / 'standin' / 'cudart.map'}")
        flags = (*_FLAGS, f"-I{DRIVER}")
        built[name] = compiled(name, flags, sources, link=link, watched=watched, folder=HERE.name)
    return built


def environment(
    *, devices: str = "9.0", nvml_driver: str = "580.82.07", python_path: str = ""
) -> dict[str, str]:
    """Return the variables of a process with these GPUs, by compute capability."""
    import nvidia.cu13

    built = libraries()
    tools = Path(next(iter(nvidia.cu13.__path__)), "bin")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "STANDIN_"))}
    return {
        **kept,
        "LD_LIBRARY_PATH": os.pathsep.join(str(path.parent) for path in built.values()),
        "LD_PRELOAD": str(built["libcudart.so.13"]),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE / "site"), python_path])),
        "JAX_PLATFORMS": "cuda",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": FLAGS,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "STANDIN_DEVICES": devices,
        "STANDIN_DRIVER": "13020",
        "STANDIN_NVML_DRIVER": nvml_driver,
        "STANDIN_LOG": "0",
    }


class Start(NamedTuple):
    """What happened at the start of a program.

    Attributes:
        requests: modules that JAX looked up in its cache.
        hits: modules found there.
        compiled: the others.
        output: standard output and standard error.
        seconds: duration of the process, without starting Python.
        compile_s: time that JAX took to trace, lower, and compile.
    """

    requests: int
    hits: int
    compiled: int
    output: str
    seconds: float
    compile_s: float


def start(program: Path, variables: Mapping[str, str], *, timeout_s: float = 300) -> Start:
    """Run a program; `variables` are those of `environment` and of `pallasc warm --print-env`."""
    with tempfile.NamedTemporaryFile(suffix=".json") as counts:
        done = subprocess.run(
            [sys.executable, str(program)],
            env={**variables, "COUNTED_IN": counts.name},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        data = json.loads(counts.read())
    output = done.stdout + done.stderr
    return Start(
        data["requests"], data["hits"], data["compiled"], output, data["seconds"], data["compile_s"]
    )


def started_with(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` with those that `pallasc warm --print-env` prints for a cache folder."""
    from pallasc.compiler.programs.jax_cache import START_FOLDER, START_SETTINGS

    places = [str(folder / START_FOLDER), variables.get("PYTHONPATH", "")]
    return {
        **variables,
        **START_SETTINGS,
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }


DEVICES = {"one": "9.0", "two": "9.0,9.0"}
"""The machines of the programs, and their GPUs."""


@dataclass(frozen=True)
class Folder:
    """Programs with their specs, and the store that they are compiled into."""

    path: Path
    store: Path

    def pallasc(
        self, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of pallasc in the folder."""
        words = [sys.executable, "-P", "-m", "pallasc", *arguments]
        return subprocess.run(
            words, cwd=self.path, env=variables, capture_output=True, text=True, check=False
        )

    def warm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `pallasc warm` with the folder's store."""
        return self.pallasc("warm", *arguments, "--store", str(self.store))

    def start(self, name: str, *, cache: str = "cache", nvml_driver: str = "580.82.07") -> Start:
        """Start a program with a cache folder."""
        devices = DEVICES["two" if name == "two_devices" else "one"]
        variables = environment(devices=devices, nvml_driver=nvml_driver)
        return start(self.path / f"{name}.py", started_with(self.path / cache, variables))

    def copy(self, place: Path) -> "Folder":
        """Return a copy of the programs and the cache at another place."""
        shutil.copytree(self.path, place)
        return Folder(place, self.store)
