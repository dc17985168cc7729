"""Launching on the stand-in driver: a kernel with four arrays, against the raw call and others.

`cuLaunchKernelEx` of the stand-in returns at once, so all that is timed is the way to it. The raw
call is that of `cuda.bindings` with parameters, configuration and function ready. Where torch with
CUDA 13 is installed the arrays are CUDA tensors of it, on a stand-in of the CUDA runtime; otherwise
they are objects of Python. `cuda.core` and Triton are measured where they are installed: the
former is given addresses and a stream, and looks at neither. A captured graph with one launch is
launched by `cuda.bindings`; the stand-in answers that at once too. Launches through Python are
measured, and tensors also with the extension of C where it was built (`C: …`). `--python` measures
with other interpreters, each with the torch that it has, one after the other in one run.

Goals through C, in raw calls: unchecked at most 2, checked at most 3, an operator of torch that
allocates at most 10. Through Python: 4.5, 9 and 20, and a plan that has to be bound with four
tensor maps at most 40; Triton's `kernel[grid]` takes at least 3.5 times as long as ours. Ready for
the first launch in a third of the time of `import jax`. No cliffs: with one set of addresses more
than there is room for bound plans, a launch takes at most 1.3 times as long as with 512, with twice
as many at most 5 times, and 1.5 times through C, which keeps no plans; a call that allocates takes
with `stream=` at most twice as long as without; the check of shape and strides is the faster one of
the two.
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
    "through a torch operator, allocating / raw": (20.0, False),
    "Triton's kernel[grid] / checked": (3.5, True),
    "1,025 address sets / 512 address sets": (1.3, False),
    "2,048 address sets / 512 address sets": (5.0, False),
    "allocating, stream given / allocating": (2.0, False),
    "checked / checked, the other layout check": (1.0, False),
    "C: unchecked / raw": (2.0, False),
    "C: checked / raw": (3.0, False),
    "C: through a torch operator, allocating / raw": (10.0, False),
    "C: 1,025 address sets / 512 address sets": (1.3, False),
    "C: 2,048 address sets / 512 address sets": (1.5, False),
    "C: allocating, stream given / allocating": (2.0, False),
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

    if options.python:
        return [figure for python in options.python for figure in _others(python, options)]
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
        return [*figures, *(_starts(environment, folder, options.starts) if options.starts else [])]


def _others(python: str, options: argparse.Namespace) -> list[Figure]:
    """Return the figures of another interpreter, under the name of its torch."""
    own = f"PYTHONPATH={Path(__file__).parent}"
    words = ["--json", "--rounds", str(options.rounds), "--starts", str(options.starts)]
    version = "import importlib.metadata as m; print(m.version('torch'))"
    outputs = [
        subprocess.run(
            ["env", own, python, "-P", *arguments], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        for arguments in (("-c", version), (__file__, *words))
    ]
    found = json.loads(outputs[1])["figures"]
    for row in found:
        del row["met"]
    return [
        Figure(**{**row, "name": f"torch {outputs[0].strip()}: {row['name']}"}) for row in found
    ]


def _launches(
    environment: dict[str, str], folder: Path, rounds: int, *, torch: bool
) -> list[Figure]:
    """Return the figures of `launch_here.py`, through Python and through C, with their goals."""
    from pallasc.runtime.native.extension import extension

    figures = _one_way({**environment, "PALLASC_NATIVE": "0"}, folder, rounds, "", torch=torch)
    if torch and extension() is not None:
        figures += _one_way(environment, folder, rounds, "C: ", torch=torch)
    return figures


def _one_way(
    environment: dict[str, str], folder: Path, rounds: int, prefix: str, *, torch: bool
) -> list[Figure]:
    """Return the figures of one run, under names with a prefix."""
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
        goal, at_least = GOALS.get(prefix + name, (None, False))
        found.append(Figure(prefix + name, value, unit, goal=goal, at_least=at_least))
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
    parser.add_argument("--starts", type=int, default=5, help="processes of each kind, or 0")
    parser.add_argument(
        "--python", action="append", help="measure with this interpreter; may be repeated"
    )


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
