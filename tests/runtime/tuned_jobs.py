"""Jobs whose kernels have made-up times, and `pallasc tune run` on them with a stand-in driver."""

import functools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import made
import rig
import standin

from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.tuned import Reference, Sampled, pack_reference
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.tuning import Tuning
from pallasc.specs.user_files import replace_file

MOST_POINTS = 24
_PATIENT = ("--seconds", "36000", "--timeout", "3600")
"""Made-up times take no time, but processes do on a busy machine."""
_HERE = Path(__file__).parent


@functools.cache
def cubin(arch: str = "sm_90a") -> bytes:
    """Return a cubin with kernels v0, v1, … of two pointers."""
    entry = ".visible .entry v{}(.param .u64 p0, .param .u64 p1) {{ ret; }}"
    return rig.assemble("\n".join(map(entry.format, range(MOST_POINTS))), arch)


def write_job(
    path: Path,
    *,
    keys: Sequence[int] = (1,),
    points: int = 4,
    reference: bool = True,
    target: str = "h100-sxm",
    ranked: bool = True,
) -> Path:
    """Write a job of a kernel `scale_add`: the points of a key n have blocks of 512, 1024, …

    They launch v0, v1, …, kernels that double the elements of an array.

    Points of the second key launch the kernels after those of the first, and so on. With `ranked`
    False it is a bundle of tuned kernels, and no job.
    """
    array = {"inputs": {"a": "f32[64]"}, "outputs": ["f32[64]"], "target": target}
    items = []
    for place, n in enumerate(keys):
        for number in range(points):
            artifact = made.artifact(
                made.launch(f"v{place * points + number}", 0, 1), code=cubin(), **array
            )
            tuning = Tuning(by=("n",), over=("block",), rank=(number + 1) * ranked)
            values = pack_reference(_reference(n)) if reference else None
            params = {"n": n, "block": 512 << number}
            items.append(Item("scale_add", params, artifact, tuning=tuning, reference=values))
    replace_file(path, build_bundle(items, level=3))
    return path


def _reference(seed: int) -> Reference:
    import numpy as np

    from pallasc.compiler.arrays import random_bytes

    taken = np.frombuffer(random_bytes("f32", 256, seed=seed, name="a"), np.float32)
    positions = (0, 5, 63)
    values = tuple(float(2 * taken[position]) for position in positions)
    return Reference(seed, 1e-6, 1e-6, (Sampled(positions, values),))


def point_id(n: int, number: int, target: str = "h100-sxm") -> str:
    """Return the id of a point of a job by its key and its place."""
    return f"scale_add[n={n},block={512 << number}]@{target}"


def environment(folder: Path, kernels: Mapping[str, Mapping[str, Any]], **more: Any) -> Any:
    """Return the environment of processes whose kernels do as they are told, and without JAX."""
    file = folder / "kernels.json"
    file.write_text(json.dumps(kernels))
    broken = folder / "without"
    broken.mkdir(exist_ok=True)
    for name in ("jax", "jaxlib"):
        (broken / f"{name}.py").write_text("raise ImportError('there is no JAX here')\n")
    path = [str(_HERE / "made_up"), str(broken), os.environ.get("PYTHONPATH", "")]
    return {
        **standin.environment(**more),
        "MADE_UP_KERNELS": str(file),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def command(job: Path, output: Path, *options: str) -> list[str]:
    """Return the command line of `pallasc tune run`."""
    own = [sys.executable, "-P", "-m", "pallasc", "tune", "run", str(job), "-o", str(output)]
    return [*own, "--repeats", "1", *_PATIENT, *options]
