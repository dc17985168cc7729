"""The wheel of `examples/tokamax` with every kernel in it: its time, its size, and that it opens.

A copy of the example without its selection is built as its page says: tables of the installed
Tokamax are imported, then `python -m build` compiles all of them from an empty store, on all cores.
It is built once more with what the first build left there. The wheel is unpacked, and its bundle is
opened and listed by a process that imports neither JAX nor Tokamax. The time of all cores does not
depend on what else runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import Figure, timed_process

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "tokamax"

LISTING = """
import sys, time
import pallasc
began = time.perf_counter()
bundle = pallasc.open_bundle(sys.argv[1])
print(sum(len(bundle.variants_of(name)) for name in bundle))
print(time.perf_counter() - began)
print(len({"jax", "jaxlib", "tokamax"} & set(sys.modules)))
"""


def figures(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of the installed Tokamax, none without one."""
    if importlib.util.find_spec("tokamax") is None:
        print("wheel: Tokamax is not installed", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        project = folder / "project"
        shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("tokamax-*", "dist"))
        take_all(project / "pyproject.toml")
        words = [sys.executable, "-P", "import_tables.py"]
        subprocess.run(words, cwd=project, stdout=sys.stderr, check=True)
        environment = {**os.environ, "PALLASC_CACHE_DIR": str(folder / "store")}
        cold = built(project, folder / "cold", environment)
        warm = built(project, folder / "warm", environment)
        (wheel,) = (folder / "warm").iterdir()
        return [
            *opened(wheel, folder),
            Figure("wheel: to build it from an empty store", cold[0], "s"),
            Figure("wheel: to build it from an empty store, time of all cores", cold[1], "s"),
            Figure("wheel: to build it again", warm[0], "s"),
            Figure("wheel: to build it again, time of all cores", warm[1], "s"),
            Figure("wheel: its size", wheel.stat().st_size / 2**20, "MiB"),
            Figure("wheel: load of the machine", os.getloadavg()[0]),
        ]


def take_all(file: Path) -> None:
    """Remove the selection from a project."""
    text, removed = re.subn("^select = .*\n", "", file.read_text(), flags=re.M)
    if removed != 1:
        raise ValueError(f"{file} has no selection to remove.")
    file.write_text(text)


def built(project: Path, out: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Build a wheel of a project into a new folder; return seconds, and those of all cores."""
    flags = ["--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", str(out)]
    words = [sys.executable, "-P", "-m", "build", *flags, "."]
    before = of_cores()
    seconds = timed_process(words, cwd=project, env=environment)
    return seconds, of_cores() - before


def of_cores() -> float:
    """Return the seconds that processes took that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def opened(wheel: Path, folder: Path) -> list[Figure]:
    """Return what the bundle of a wheel holds, as a process without JAX sees it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".pallasc"))
        file = Path(archive.extract(name, folder))
    began = time.perf_counter()
    printed = subprocess.run(
        [sys.executable, "-P", "-c", LISTING, str(file)], capture_output=True, text=True, check=True
    ).stdout.split()
    whole = time.perf_counter() - began
    return [
        Figure("wheel: variants", int(printed[0])),
        Figure("wheel: its bundle", file.stat().st_size / 2**20, "MiB"),
        Figure("wheel: to open and list its bundle", 1e3 * float(printed[1]), "ms"),
        Figure("wheel: the process that did", whole, "s"),
        Figure("wheel: modules of JAX and Tokamax that opening imports", int(printed[2]), goal=0),
    ]
