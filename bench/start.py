"""The time from the start of a process until its first kernel is launched, against `import jax`.

A process imports pallasc, opens an artifact, allocates three arrays and launches. The stand-in
driver takes no time, so only Python is timed. Goal: at most a third of the time of `import jax`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness import PYTHON, ROOT, Figure, in_turn, medians, ratio, run_benchmark, timed_process

sys.path.append(str(ROOT / "tests" / "runtime"))

OPEN = """
import json
import sys
from pathlib import Path

import pallasc

folder = Path(sys.argv[1])
record = json.loads((folder / "record.json").read_text())
kernel = pallasc.open_artifact(
    pallasc.Artifact(record, lambda key: (folder / key).read_bytes()))
"""
PREPARE = 'kernel.prepare("f32[4, 64]", "f32[4, 64]")'
LAUNCH = """
from pallasc.runtime.adapters.device_arrays import DeviceArray

a, b, out = (DeviceArray((4, 64), "f32") for _ in range(3))
kernel.into(a, b, out=out)
"""


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Time new processes in turn."""
    import made
    import standin

    if standin.compiler() is None:
        raise SystemExit("start: no C compiler (cc or gcc), so there is no stand-in driver")
    artifact = made.add()
    (place / "record.json").write_text(json.dumps(artifact.record))
    for key, data in artifact.blobs().items():
        (place / key).write_bytes(data)
    own = {"PYTHONPYCACHEPREFIX": str(place / "bytecode"), "JAX_PLATFORMS": "cpu"}
    programs = {
        "first launch done": OPEN + LAUNCH,
        "import jax": "import jax",
        "kernel loaded": OPEN + PREPARE,
        "python that does nothing": "pass",
    }
    works = {
        name: partial(
            timed_process,
            [*PYTHON, "-c", program, place],
            env={**standin.environment(), **own},
        )
        for name, program in programs.items()
    }
    times = in_turn(works, options.rounds)
    speed = ratio(times, "first launch done", "import jax")
    return [*medians(times), Figure("first launch done / import jax", speed, goal=1 / 3)]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, rounds=11))
