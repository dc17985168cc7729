"""From the start of a process until its first kernel is launched, against `import jax`.

A fresh process imports pallasc, opens an artifact, allocates three arrays and launches, on the
stand-in driver, which takes no time of its own: what is timed is Python. The rival only imports JAX
and ends. Both are timed in turn, with bytecode of all modules at hand.

Goal: at most a third of the rival.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Figure, median_ratio, paired, run_benchmark, timed_process

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "runtime"))

_START = """
import json
import sys
from pathlib import Path

import pallasc

folder = Path(sys.argv[1])
record = json.loads((folder / "record.json").read_text())
kernel = pallasc.open_artifact(
    pallasc.Artifact(record, lambda key: (folder / key).read_bytes()))
if len(sys.argv) > 2:
    kernel.prepare("f32[4, 64]", "f32[4, 64]")
else:
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    a, b, out = (DeviceArray((4, 64), "f32") for _ in range(3))
    kernel.into(a, b, out=out)
"""


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Time fresh processes in turn."""
    import made
    import standin

    if standin.compiler() is None:
        raise SystemExit("start: no C compiler (cc or gcc), so there is no stand-in driver")
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        folder = Path(name)
        _write(folder, made.add())
        environment = _environment(standin.environment(), folder)
        python = [sys.executable, "-P", "-c"]
        launched, loaded = [*python, _START, name], [*python, _START, name, "loaded"]
        nothing, rival = [*python, "pass"], [*python, "import jax"]
        for command in (launched, loaded, nothing, rival):  # these write bytecode
            subprocess.run(command, env=environment, check=True)

        def seconds(command: list[str]) -> float:
            return timed_process(command, env=environment)

        ours, theirs = paired(lambda: seconds(launched), lambda: seconds(rival), options.rounds)
        ready, bare = paired(lambda: seconds(loaded), lambda: seconds(nothing), options.rounds)
    return [
        Figure("python that does nothing", statistics.median(bare) * 1e3, "ms"),
        Figure("kernel loaded, ready for its first launch", statistics.median(ready) * 1e3, "ms"),
        Figure("first launch done", statistics.median(ours) * 1e3, "ms"),
        Figure("import jax", statistics.median(theirs) * 1e3, "ms"),
        Figure("first launch done / import jax", median_ratio(ours, theirs), goal=1 / 3),
    ]


def _write(folder: Path, artifact: Any) -> None:
    """Write an artifact as the processes read it."""
    (folder / "record.json").write_text(json.dumps(artifact.record))
    for key, data in artifact.blobs().items():
        (folder / key).write_bytes(data)


def _environment(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Return an environment whose processes keep bytecode, as installed packages do."""
    kept = {k: v for k, v in environment.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "JAX_PLATFORMS": "cpu"}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=11, help="processes of each kind")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
