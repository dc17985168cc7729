"""A build where nothing has changed, against starting Python with click, yaml and sqlite3.

Goals: at most 2.5 times that for one variant, 7 times for a thousand; ten thousand variants within
5 times the thousand; a thousand in a pack within 1.05 times the same in separate files.

Also: the first 24 of the same kernels in one process with JAX's persistent compilation cache, which
has all of them from an earlier run. The name of the figure has how many JAX could load: without a
GPU it cannot load what it finds ("PjRtCompiler must be constructed with a Client"), and compiles
again.

The stores are filled by `filled_store`: what is compiled is copied under the keys of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cold_build import RIVAL
from filled_store import fill, write_spec
from harness import Figure, run_benchmark, timed_process

from pallasc.cache.store import Store
from pallasc.cache.transfer import export_file, import_file
from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import variant_to_json

BASELINE = [sys.executable, "-c", "import click, yaml, sqlite3"]
FEW = 24
PACKED = "1000 in a pack"
COUNTED = """
import jax
counts = {}
jax.monitoring.register_event_listener(
    lambda name, **_: counts.__setitem__(name, counts.get(name, 0) + 1))
"""
SAID = """
print(counts.get("/jax/compilation_cache/cache_hits", 0))
"""


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Time the builds and the baseline in turn, then JAX's cache."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        place = Path(folder)
        commands: dict[str | int, list[str]] = {
            count: _build(place, count) for count in (1, 1000, 10_000)
        }
        commands[PACKED] = _packed(place, commands[1000])
        names = ["baseline", *commands]
        times: dict[str | int, list[float]] = {name: [] for name in names}
        environment = _environment()
        for _ in range(options.rounds + 1):
            times["baseline"].append(timed_process(BASELINE, env=environment))
            for count, command in commands.items():
                seconds = timed_process(command, env=environment, stderr=subprocess.DEVNULL)
                times[count].append(seconds)
            shown = ", ".join(f"{name}: {times[name][-1]:.3f} s" for name in names)
            print(shown, file=sys.stderr)
        times = {name: found[1:] for name, found in times.items()}  # the first wrote bytecode
        return [*_figures(times), *_jax_cache(place, options.rounds, environment)]


def _figures(times: dict[str | int, list[float]]) -> list[Figure]:
    def ratio(first: str | int, second: str | int) -> float:
        pairs = zip(times[first], times[second], strict=True)
        return statistics.median(a / b for a, b in pairs)

    seconds = [Figure(f"{name}", statistics.median(found), "s") for name, found in times.items()]
    return [
        *seconds,
        Figure("1 variant / baseline", ratio(1, "baseline"), goal=2.5),
        Figure("1,000 variants / baseline", ratio(1000, "baseline"), goal=7),
        Figure("10,000 variants / 1,000 variants", ratio(10_000, 1000), goal=5),
        Figure("1,000 variants in a pack / in files", ratio(PACKED, 1000), goal=1.05),
    ]


def _environment() -> dict[str, str]:
    """Return this process's environment, with bytecode as an installed package has it."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def _build(place: Path, count: int, *, compiled: int = 1) -> list[str]:
    """Fill a store with this many variants; return the command that builds them."""
    spec = write_spec(place / f"spec{count}", count)
    store = place / f"store{count}"
    fill(Store(store), spec, compiled=compiled)
    return [
        sys.executable, "-P", "-m", "pallasc", "build", str(spec), "--store", str(store)
    ]  # fmt: skip


def _packed(place: Path, command: list[str]) -> list[str]:
    """Copy the store of a build into packs; return the command that builds from there."""
    source, target = Path(command[-1]), place / "packed"
    export_file(Store(source), place / "all.pack")
    import_file(Store(target), place / "all.pack")
    shutil.copytree(source / "v1" / "stat", target / "v1" / "stat", dirs_exist_ok=True)
    return [*command[:-1], str(target)]


def _jax_cache(place: Path, rounds: int, environment: dict[str, str]) -> list[Figure]:
    """Time JAX with its own cache and pallasc in turn, over the same few kernels."""
    ours = _build(place, FEW, compiled=FEW)
    variants = expand(load_yaml(place / f"spec{FEW}" / f"spec_{FEW}.yaml"))
    (place / "variants.json").write_text(json.dumps([variant_to_json(v) for v in variants]))
    (place / "rival.py").write_text(COUNTED + RIVAL + SAID)
    with prepare() as setup:
        cached = {
            **setup.environment,
            "JAX_COMPILATION_CACHE_DIR": str(place / "jax-cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        rival = [sys.executable, "-P", str(place / "rival.py"), str(place / "variants.json")]
        subprocess.run(rival, env=cached, check=True, stdout=subprocess.DEVNULL)
        told = subprocess.run(rival, env=cached, check=True, stdout=subprocess.PIPE, text=True)
        mine, theirs = [], []
        for _ in range(rounds):
            mine.append(timed_process(ours, env=environment, stderr=subprocess.DEVNULL))
            theirs.append(timed_process(rival, env=cached))
    hits = int(told.stdout.split()[-1])
    kind = f"{hits} hits, {FEW - hits} compiled again"
    ratio = statistics.median(a / b for a, b in zip(theirs, mine, strict=True))
    return [
        Figure(f"{FEW} variants", statistics.median(mine), "s"),
        Figure(f"{FEW} kernels with JAX's filled cache ({kind})", statistics.median(theirs), "s"),
        Figure(f"JAX with its filled cache ({kind}) / pallasc", ratio),
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7, help="how often each is timed")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
