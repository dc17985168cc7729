"""Kernels, specs and runs of `pallasc check`, for the tests of checks."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from json_outputs import check_output

REMEMBERED: Path | None = None
"""A store that knows the digests of the toolchain and nothing else; a new store is its copy."""

KERNELS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT, SCRATCH = ("out_shape", "scratch_shapes") if OLD else ("out_type", "scratch_types")


def made(body, shape=(128,), dtype=jnp.float32, memory=(), grid=1, **options):
    out = shape if isinstance(shape, list) else jax.ShapeDtypeStruct(shape, dtype)
    options = {OUT: out, SCRATCH: list(memory), "grid": (grid,), "grid_names": ("i",), **options}
    return plgpu.kernel(body, **options)


def run(body, *arrays, **options):
    return made(body, **options)(*arrays)


def kernel(body, num_arrivals=1, threads=None, n=128):
    memory = [plgpu.Barrier(num_arrivals=num_arrivals), plgpu.SMEM((n,), jnp.float32)]
    named = {"num_threads": threads, "thread_name": "wg"} if threads else {}
    return made(body, shape=(n,), memory=memory, **named)


def sound(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        plgpu.barrier_wait(bar)
        o[...] = smem[...]

    return kernel(body)(x)


def doubled(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        plgpu.barrier_wait(bar)
        o[...] = smem[...] + smem[...]

    return kernel(body)(x)


def unwritten(x):
    def body(x, o, bar, smem):
        o[...] = smem[...]

    return kernel(body)(x)


def waits_twice(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        plgpu.barrier_wait(bar)
        plgpu.barrier_wait(bar)  # nobody arrives again
        o[...] = smem[...]

    return kernel(body)(x)


def three_of_two(x):
    def body(x, o, bar, smem):
        plgpu.barrier_arrive(bar)
        plgpu.barrier_wait(bar)  # three arrivals are asked for, and two threads arrive
        o[...] = jnp.ones((128,), jnp.float32)

    return kernel(body, num_arrivals=3, threads=2)(x)


def same(x):
    return x
"""
LASTING = """

def lasting(x):
    def body(x, o, bar, smem):
        def again(i, _):
            o[...] = x[...] + i.astype(jnp.float32)
        jax.lax.fori_loop(0, 100_000_000, again, None)

    return kernel(body)(x)
"""
"""A kernel that lasts longer than any test waits for it; it goes behind `KERNELS`."""


def spec_of(*kernels: dict[str, object], **fields: object) -> str:
    """Return a spec; by default kernels are functions of `kernels.py`, and give what they take."""
    filled = [
        {
            "entry": f"kernels.py:{kernel['name']}",
            "reference": "kernels.py:same",
            "args": ["f32[128]"],
            **kernel,
        }
        for kernel in kernels
    ]
    kept = [{key: value for key, value in each.items() if value is not None} for each in filled]
    return json.dumps({"schema": 1, "targets": ["sm_90a"], **fields, "kernels": kept})


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """What `--json` printed."""
        check_output(["check"], self.out)
        report: dict[str, Any] = json.loads(self.out)
        return report

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The result of the only level of each kernel."""
        return {check["name"]: check["results"][0] for check in self.report["variants"]}


def pallasc(folder: Path, *words: str | Path, start: tuple[str, ...] = ("-m", "pallasc")) -> Ran:
    """Run the command line in a folder, in a process of its own, with the folder's store."""
    if REMEMBERED is not None and not (folder / "store").exists():
        shutil.copytree(REMEMBERED, folder / "store")
    command = [sys.executable, "-P", *start, *map(str, words), "--store", str(folder / "store")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr)


def check(folder: Path, *arguments: str | Path, modules: Path | None = None) -> Ran:
    """Run `pallasc check` in a folder; `modules` names a file for the modules that it imports.

    Without other words the interpreter checks, in one worker: another one would cost more than what
    it does here.
    """
    listing = (
        "import atexit, pathlib, sys; listing = pathlib.Path(sys.argv.pop(1)); "
        "atexit.register(lambda: listing.write_text('\\n'.join(sys.modules))); "
        "from pallasc.cli.main import main; sys.exit(main())"
    )
    if "--level" not in arguments:
        arguments = (*arguments, "--level", "interpreter")
    if "--jobs" not in arguments:
        arguments = (*arguments, "--jobs", "1")
    start = ("-m", "pallasc") if modules is None else ("-c", listing, str(modules))
    return pallasc(folder, "check", *arguments, start=start)


@dataclass(frozen=True, slots=True)
class Checked:
    """A folder with kernels that were checked once, and what came out."""

    folder: Path
    ran: Ran

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The result of the only level of each kernel."""
        return self.ran.results

    @property
    def levels(self) -> dict[str, dict[str, Any]]:
        """The result of each level by kernel."""
        variants = self.ran.report["variants"]
        return {each["name"]: {r["level"]: r for r in each["results"]} for each in variants}

    @property
    def source(self) -> list[str]:
        """The lines of the kernels."""
        return (self.folder / "kernels.py").read_text().splitlines()

    def line(self, text: str) -> int:
        """Return the only line of the kernels with a text."""
        (number,) = [n for n, each in enumerate(self.source, 1) if text in each]
        return number


def check_kernels(
    folder: Path, more: str, kernels: Sequence[dict[str, object]], *words: str, **fields: object
) -> Checked:
    """Write the kernels above and some more, and check some of them; fields as of `spec_of`."""
    (folder / "kernels.py").write_text(KERNELS + more)
    (folder / "spec.yaml").write_text(spec_of(*kernels, **fields))
    return Checked(folder, check(folder, "spec.yaml", "--json", *words))
