"""A process that computes one result: `first_result.py FOLDER VARIANT pallasc|jax`.

It says `ready` as soon as the result is on the host. Both ways get arrays of ones, so both give the
same numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from carried import Carried, read_variants

_LONGEST_S = 120


def timed(folder: Path, variant: Carried, way: str) -> tuple[float | None, str]:
    """Return the seconds until a process says that it is ready, and what it has got."""
    command = [sys.executable, "-P", __file__, str(folder), variant.id, way]
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    given = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = next((line for line in process.stdout or () if line.startswith("ready")), "")
        seconds = time.perf_counter() - began
        _, error = process.communicate(timeout=_LONGEST_S)
    if not said:
        return None, (error.strip().splitlines() or ["it says nothing"])[-1]
    return seconds, said.removeprefix("ready").strip()


def _ones(variant: Carried) -> dict[str, Any]:
    import numpy as np

    from pallasc.runtime.adapters.numpy_arrays import numpy_dtype

    return {n: np.ones(shape, numpy_dtype(dtype)) for n, (dtype, shape) in variant.arrays().items()}


def _with_pallasc(variant: Carried) -> Any:
    return variant.kernel()(**_ones(variant))


def _with_jax(variant: Carried) -> Any:
    import numpy as np
    from jax_way import jitted, why_not

    if reason := why_not():
        raise SystemExit(reason)
    return np.asarray(jitted(variant)(**_ones(variant)))


def main() -> None:
    """Compute once, and say so."""
    (variant,) = (
        variant for variant in read_variants(Path(sys.argv[1])) if variant.id == sys.argv[2]
    )
    result = {"pallasc": _with_pallasc, "jax": _with_jax}[sys.argv[3]](variant)
    print("ready", float(result.reshape(-1)[-1]), flush=True)


if __name__ == "__main__":
    main()
