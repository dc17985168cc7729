"""Launching on the stand-in driver with arrays of every framework, against the raw call.

The kernel has four arrays, the fourth one given or allocated; what is timed is the way to the
driver. CuPy's and Numba's arrays are objects with the attributes of theirs, and arrays with DLPack
have their capsule ready, so that no producer's time is in it. JAX runs the kernel inside `jit` on
the CPU, where its arrays are copied as numpy's are: by the handler in C, and by the callback of
Python that is used without the C library. What a launch costs is the difference of programs with
many and with one.

Goals: a launch by JAX's handler at most a fifth of one by the callback. For arrays that are given,
CuPy's at most 20 times the raw call, pallasc's own at most 35 times (one of their launches is two
calls: it also records an event), those with `__cuda_array_interface__` at most 100 times, with
DLPack at most 125 times (some 35 µs each).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import Figure, run_benchmark

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "runtime"
sys.path.append(str(TESTS))

GOALS = {
    "cupy / raw": 20.0,
    "device array / raw": 35.0,
    "__cuda_array_interface__ / raw": 100.0,
    "dlpack / raw": 125.0,
    "JAX inside jit, handler / callback": 0.2,
}


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure in a process of its own that finds the stand-in driver."""
    import native_build
    import standin

    if standin.compiler() is None:
        raise SystemExit("launch_frameworks: no C compiler (cc or gcc), so no stand-in driver")
    environment = standin.environment(log=False, raw_speed=True)
    paths = [str(TESTS), str(ROOT / "bench"), environment.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            Path(__file__).with_name("launch_frameworks_here.py"),
            str(options.rounds),
        ],
        env={
            **environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "JAX_PLATFORMS": "cpu",
            "PALLASC_NATIVE": str(native_build.build()),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    return [Figure(name, value, unit, goal=GOALS.get(name)) for name, value, unit in rows]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=400, help="launches that are timed at once")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
