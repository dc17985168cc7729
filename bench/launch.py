"""Launching on the stand-in driver: a kernel with four arrays, against the raw call and others.

`cuLaunchKernelEx` of the stand-in returns at once, so all that is timed is the way to it. The raw
call is that of `cuda.bindings` with parameters, configuration and function ready. Where torch with
CUDA 13 is installed the arrays are CUDA tensors of it, on a stand-in of the CUDA runtime; otherwise
they are objects of Python. `cuda.core` and Triton are measured where they are installed: the
former is given addresses and a stream, and looks at neither. A captured graph with one launch is
launched by `cuda.bindings`; the stand-in answers that at once too.

Goals: unchecked at most 4.5 times the raw call, checked at most 9 times, a plan that has to be
bound with four tensor maps at most 40 times; Triton's `kernel[grid]` at least 3.5 times ours; ready
for the first launch in a third of the time of `import jax`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import Figure, run_benchmark, timed_process

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "runtime"
sys.path.append(str(TESTS))

GOALS = {
    "unchecked / raw": (4.5, False),
    "checked / raw": (9.0, False),
    "plan bound with four tensor maps / raw": (40.0, False),
    "Triton's kernel[grid] / checked": (3.5, True),
}

_READY = """
import sys
from pathlib import Path
import json
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.runtime.opening import open_artifact
folder = Path(sys.argv[1])
record = json.loads((folder / "record.json").read_text())
kernel = open_artifact(Artifact(record, lambda key: (folder / key).read_bytes()))
kernel.prepare("f32[4, 64]", "f32[4, 64]")
"""


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure launches in a process of their own, then the start of processes."""
    import standin
    import standin_torch

    if standin.compiler() is None:
        raise SystemExit("launch: no C compiler (cc or gcc), so there is no stand-in driver")
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        folder = Path(name)
        why_not = standin_torch.why_not()
        if why_not is None:
            environment = standin_torch.environment(folder, log=False, raw_speed=True)
        else:
            print(f"no CUDA tensors: {why_not}", file=sys.stderr)
            environment = standin.environment(log=False, raw_speed=True)
        figures = _launches(environment, folder, options.rounds, torch=why_not is None)
        return [*figures, *_starts(environment, folder, options.starts)]


def _launches(
    environment: dict[str, str], folder: Path, rounds: int, *, torch: bool
) -> list[Figure]:
    """Return the figures of `launch_here.py`, with their goals."""
    program = Path(__file__).with_name("launch_here.py")
    paths = [str(TESTS), str(program.parent), environment.get("PYTHONPATH", "")]
    command = [sys.executable, "-P", program, folder, str(rounds), "torch" if torch else "python"]
    done = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = []
    for name, value, unit in json.loads(done.stdout.splitlines()[-1]):
        goal, at_least = GOALS.get(name, (None, False))
        found.append(Figure(name, value, unit, goal=goal, at_least=at_least))
    return found


def _starts(environment: dict[str, str], folder: Path, rounds: int) -> list[Figure]:
    """Time a process from its start until its kernel is loaded, and one that imports JAX."""
    plain = {key: value for key, value in environment.items() if key != "LD_PRELOAD"}
    plain.pop("PYTHONDONTWRITEBYTECODE", None)
    plain["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    ready = [sys.executable, "-P", "-c", _READY, str(folder)]
    jax = [sys.executable, "-P", "-c", "import jax"]
    probe = subprocess.run(jax, env=plain, capture_output=True, check=False)
    timed_process(ready, env=plain)
    ready_s = min(timed_process(ready, env=plain) for _ in range(rounds))
    figures = [Figure("ready for the first launch", ready_s * 1e3, "ms")]
    if probe.returncode == 0:
        jax_s = min(timed_process(jax, env=plain) for _ in range(rounds))
        figures.append(Figure("import jax", jax_s * 1e3, "ms"))
        figures.append(
            Figure("ready for the first launch / import jax", ready_s / jax_s, goal=1 / 3)
        )
    return figures


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=500, help="launches that are timed at once")
    parser.add_argument("--starts", type=int, default=5, help="processes of each kind")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
