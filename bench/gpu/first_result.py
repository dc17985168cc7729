"""From the start of a process to its first result: the carried cubin against JAX's own way.

Usage: first_result.py FOLDER VARIANT pallasc|jax runs one of the two and says `ready` as soon as
the result is on the host. Both get arrays of ones, so both give the same numbers.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carried import Carried, read_variants

_LONGEST_S = 300


def measure_starts(
    folder: Path, variants: Sequence[Carried], *, rounds: int, environment: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return for each variant the seconds of both ways, in turn."""
    return [_measure(folder, variant, rounds, environment) for variant in variants]


def _measure(
    folder: Path, variant: Carried, rounds: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    row: dict[str, Any] = {"variant": variant.id}
    times: dict[str, list[float]] = {"pallasc": [], "jax": []}
    for number in range(rounds + 1):
        for way in times:
            if f"{way} error" in row:
                continue
            seconds, said = _timed(folder, variant, way, environment)
            if seconds is None:
                row[f"{way} error"] = said
            else:
                row[f"{way} result"] = said
                times[way] += [seconds] if number else []  # the first one reads from the disk
    for way, found in times.items():
        if found:
            row[f"{way}_s"] = statistics.median(found)
    if times["jax"] and times["pallasc"]:
        pairs = zip(times["jax"], times["pallasc"], strict=True)
        row["jax_to_pallasc"] = statistics.median(jax / ours for jax, ours in pairs)
    return row


def _timed(
    folder: Path, variant: Carried, way: str, environment: Mapping[str, str]
) -> tuple[float | None, str]:
    """Return the seconds until a process says that it is ready, and what it has got."""
    command = [sys.executable, "-P", __file__, str(folder), variant.id, way]
    path = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    given = {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}
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

    from pallasc.runtime.adapters.numpy_dtypes import numpy_dtype

    return {n: np.ones(shape, numpy_dtype(dtype)) for n, (dtype, shape) in variant.arrays().items()}


def _with_pallasc(variant: Carried) -> Any:
    return variant.kernel()(**_ones(variant))


def _with_jax(variant: Carried) -> Any:
    import numpy as np
    from jax_way import jitted

    return np.asarray(jitted(variant)(**_ones(variant)))


def main() -> None:
    """Compute once, and say so."""
    (variant,) = (one for one in read_variants(Path(sys.argv[1])) if one.id == sys.argv[2])
    result = {"pallasc": _with_pallasc, "jax": _with_jax}[sys.argv[3]](variant)
    print("ready", float(result.reshape(-1)[-1]), flush=True)


if __name__ == "__main__":
    main()
