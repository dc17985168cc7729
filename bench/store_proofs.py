"""The proofs of the store at full length: kills, failing system calls, damage, races.

Each is a program of `tests/cache/programs/`, which the tests run with small counts. The counts here
are small too; `--full` takes the great ones, which is a matter of hours on a small machine:
10,000 kills, 1,000 cases of failing system calls, 200 real builds under such, 100,000 damaged
files, 1,000 damaged indexes, 1,000,000 operations of 64 processes, 64 processes that open a new
store, 16 that want the same 20 keys. What is wrong is printed; the figures count it, and each must
be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import Figure, run_benchmark

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "cache" / "programs"


@dataclass(frozen=True)
class Proof:
    """A program, its arguments for a short and for the full run, and what its count is called."""

    name: str
    program: str
    short: tuple[int, ...]
    full: tuple[int, ...]
    count: str
    preload: bool = False


PROOFS = (
    Proof("kills", "kill.py", (100, 1), (10_000, 1), "interrupted"),
    Proof("system calls", "faults.py", (60, 1), (1_000, 2), "injected", preload=True),
    Proof("builds", "build_faults.py", (10, 1), (200, 2), "injected", preload=True),
    Proof("damage", "damage.py", (1_000, 1), (100_000, 2), "mutations"),
    Proof("indexes", "index_damage.py", (50, 1), (1_000, 2), "damages"),
    Proof("races", "race.py", (8, 250), (64, 15_625), "operations"),
    Proof("openings", "opening.py", (64,), (64,), "processes"),
    Proof("single flight", "flight.py", (16, 20), (16, 20), "compilations"),
)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Run the proofs that were asked for, one after the other."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="pallasc-proof-", dir=options.folder) as name:
        library = _library(Path(name))
        for proof in PROOFS:
            if options.only and proof.name not in options.only:
                continue
            if proof.preload and library is None:
                print(f"{proof.name}: left out, no C compiler here", file=sys.stderr)
                continue
            figures += _run(proof, Path(name), library, full=options.full)
    return figures


def _run(proof: Proof, folder: Path, library: Path | None, *, full: bool) -> list[Figure]:
    counts = proof.full if full else proof.short
    root = folder / proof.name
    root.mkdir()
    environment = dict(os.environ)
    if proof.preload:
        environment["LD_PRELOAD"] = str(library)
    command = [sys.executable, str(PROGRAMS / proof.program), str(root), *map(str, counts)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    seconds = time.perf_counter() - began
    if not done.stdout:
        raise SystemExit(done.stderr)
    told = _told(proof, done.stdout)
    for line in told["wrong"]:
        print(f"{proof.name}: {line}", file=sys.stderr)
    print(f"{proof.name}: {json.dumps({**told, 'wrong': len(told['wrong'])})}", file=sys.stderr)
    shutil.rmtree(root)
    asked = " x ".join(
        map(str, counts if proof.program in ("race.py", "flight.py") else counts[:1])
    )
    return [
        Figure(f"{proof.name} ({asked}): wrong", float(len(told["wrong"])), goal=0.0),
        Figure(f"{proof.name} ({asked}): {proof.count}", float(told[proof.count])),
        Figure(f"{proof.name} ({asked}): time", seconds, "s"),
    ]


def _told(proof: Proof, text: str) -> dict[str, Any]:
    """Return what a program said; the one for single flight says two numbers."""
    if proof.program != "flight.py":
        told: dict[str, Any] = json.loads(text)
        return told
    made, failed = map(int, text.split())
    wanted = proof.full[1]
    wrong = [] if (made, failed) == (wanted, 0) else [f"{made} made instead of {wanted}, {failed}"]
    return {"compilations": made, "wrong": wrong}


def _library(folder: Path) -> Path | None:
    compilers = [name for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if not compilers:
        return None
    library = folder / "faults.so"
    source = PROGRAMS / "faults.c"
    command = [compilers[0], "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="the great counts")
    parser.add_argument("--only", action="append", choices=[proof.name for proof in PROOFS])
    parser.add_argument("--folder", help="where the stores lie (default: the temporary folder)")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
