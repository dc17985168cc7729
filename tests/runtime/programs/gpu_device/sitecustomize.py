"""Have the stand-in driver compute what the kernels of a packed folder compute.

Python imports this at its start where this folder is on PYTHONPATH. In a worker of
`check_gpu.py --quick` that launches one variant, the rows that are compared get their right
numbers; where sums are compared, all of them do. GPU_DEVICE, a JSON object, makes it misbehave:
part of a unit's id -> `wrong` numbers, or an `error` of the driver (700).
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def misbehaviour(unit: str) -> str | None:
    """Return how a unit's kernel misbehaves."""
    wishes: dict[str, str] = json.loads(os.environ.get("GPU_DEVICE", "{}"))
    return next((how for part, how in wishes.items() if part in unit), None)


class Computer:
    """Computes in place of the kernels of one variant."""

    def __init__(self, folder: Path, unit: str) -> None:
        self._folder, self._unit = folder, unit
        self._variant: Any = None
        self._rows: Any = None
        self._places: dict[int, int] = {}
        self._done = 0
        self._turn = threading.Lock()

    def __call__(self, launch: Any) -> int | None:
        with self._turn:  # threads launch, and a launch is found, computed and written as one
            return self._compute(launch)

    def _compute(self, launch: Any) -> int | None:
        how = misbehaviour(self._unit)
        if how == "error":
            return 700
        if self._variant is None:
            self._variant = self._find()
            self._artifact = self._variant.kernel().variants[0].artifact
        from emulate import addresses

        steps = self._artifact.plan.launches
        self._places |= addresses(steps[self._done % len(steps)], launch)
        self._done += 1
        if self._done % len(steps) == 0:
            self._write(how == "wrong")
        return None

    def _find(self) -> Any:
        """Return the variant of the unit; ways to call and mistakes are those of a sum."""
        from carried import read_variants

        part, _, name = self._unit.partition("/")
        wanted = name if part in ("numbers", "times") else "add[m=1024,dtype=f32]"
        return next(one for one in read_variants(self._folder) if one.id.startswith(wanted))

    def _write(self, is_wrong: bool) -> None:
        import numpy as np
        from emulate import view
        from references import REFERENCES, make_inputs, row_axis, sample_rows

        plan, variant = self._artifact.plan, self._variant
        written = [one for one in plan.outputs if one.buffer in self._places]  # others are copies
        outputs = [view(self._places[o.buffer], o.dtype, o.shape) for o in written]
        if variant.name == "add":
            a, b = (view(self._places[i.buffer], i.dtype, i.shape) for i in plan.inputs)
            outputs[0][...] = a + b + is_wrong
            return
        rows = sample_rows(variant, outputs[0].shape, 8)
        if self._rows is None:
            reference = REFERENCES[variant.name]
            self._rows = reference(make_inputs(variant), variant.static, rows)
        place = (slice(None),) * row_axis(variant) + (np.asarray(rows),)
        outputs[0][place] = self._rows + is_wrong


def main() -> None:
    """Become the device of a worker, and of what it spawns."""
    script = next((n for n, one in enumerate(sys.orig_argv) if one.endswith("worker.py")), None)
    if script is not None:
        folder, _, _, unit = sys.orig_argv[script + 1 : script + 5]
        os.environ["GPU_DEVICE_OF"] = json.dumps([folder, unit])
    elif "GPU_DEVICE_OF" not in os.environ:
        return
    folder, unit = json.loads(os.environ["GPU_DEVICE_OF"])
    if unit == "calls/tune run" or unit.startswith(("machine/", "launch/")):
        return
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
    import standin

    if os.environ.get("STANDIN_LIBRARY"):
        standin.build = lambda: Path(os.environ["STANDIN_LIBRARY"])
    driver = standin.load()
    driver.kernel("*")(Computer(Path(folder), unit))
    if unit.startswith(("calls/JAX", "calls/jax", "numbers/")):
        import host_jax

        host_jax.register()


main()
