"""Builds divided between machines.

* shards: a library (`library_mix`) is built on one machine, which records what each variant took;
  then its eight shards are built one after the other, each with an empty store, and exported. By
  the recorded costs, and by the real time of each job, no shard may take more than 15 % longer than
  the mean. Imported into one store, they must give the bundle of the one machine.
  Measure on a machine that does nothing else: the shards do not run at the same time.
* dask, client: a cluster of dask on this machine, see `farm_dask`. Its speed against `--jobs 2` is
  the median over `--rounds` rounds, in each of which both are timed one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import farm_dask
from harness import Figure, run_benchmark
from library_mix import write_mix

from pallasc.specs.bundle.bundle import open_bundle

IMBALANCE = 0.15


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure all of it, or the parts that `--only` names."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        figures = []
        for name in options.only or PARTS:
            figures += PARTS[name](Path(folder) / name, options)
        return figures


def _shards(place: Path, options: argparse.Namespace) -> list[Figure]:
    spec, of = write_mix(place, options.variants), options.shards
    one_s, _ = _timed(place, "lock", spec, "--update", "--store", "one")
    jobs, expected_s, files = [], [], []
    for number in range(1, of + 1):
        where = ("--store", f"store{number}")
        shard = ("--shard", f"{number}/{of}", "--locked", "--json")
        jobs.append(_timed(place, "build", spec, *where, *shard, output=place / "report.json"))
        report = json.loads((place / "report.json").read_text())
        expected_s.append(report["shard"]["expected_s"])
        files.append(f"{number}.pack")
        _timed(place, "cache", "export", files[-1], *where)
        print(f"shard {number}/{of}: {jobs[-1][0]:.1f} s", file=sys.stderr)
    import_s, _ = _timed(place, "cache", "import", *files, "--store", "all")
    name = f"{options.variants} variants in {of} shards"
    return [
        Figure(f"{options.variants} variants on one machine", one_s, "s"),
        *(
            Figure(f"{name}, shard {number}", seconds, "s")
            for number, (seconds, _) in enumerate(jobs, 1)
        ),
        Figure(f"{name}, imbalance by recorded costs", _imbalance(expected_s), goal=IMBALANCE),
        Figure(f"{name}, imbalance", _imbalance([s for s, _ in jobs]), goal=IMBALANCE),
        Figure(f"{name}, imbalance of CPU time", _imbalance([cpu for _, cpu in jobs])),
        Figure(f"{name}, exported files", sum(_size(place / file) for file in files), "bytes"),
        Figure(f"{name}, imported", import_s, "s"),
        Figure("bundles that differ from that of one machine", _differences(place, spec), goal=0),
    ]


def _imbalance(seconds: Sequence[float]) -> float:
    """Return by which part of the mean the longest takes longer."""
    return max(seconds) / statistics.mean(seconds) - 1


def _differences(place: Path, spec: Path) -> int:
    """Return by how many the different bundles of both stores exceed one."""
    digests = set()
    for store in ("one", "all"):
        output = f"{store}.pallasc"
        _timed(place, "bundle", "create", spec, "--frozen", "--store", store, "-o", output)
        with open_bundle(place / output) as bundle:
            digests.add((bundle.digest, (place / output).read_bytes()))
    return len(digests) - 1


def _size(path: Path) -> int:
    return path.stat().st_size


def _timed(place: Path, *arguments: str | Path, output: Path | None = None) -> tuple[float, float]:
    """Run a command that must succeed; return its seconds, and CPU seconds of all its processes."""
    command = [sys.executable, "-P", "-m", "pallasc", *map(str, arguments)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, cwd=place, capture_output=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ends with {done.returncode}:\n{done.stderr.decode()}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if output is not None:
        output.write_bytes(done.stdout)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_s


PARTS = {"shards": _shards, **farm_dask.PARTS}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part")
    parser.add_argument("--variants", type=int, default=200, help="variants of the library")
    parser.add_argument("--rounds", type=int, default=3, help="how often dask and home are timed")
    parser.add_argument("--shards", type=int, default=8, help="how many shards there are")


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as an installed package has it
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
