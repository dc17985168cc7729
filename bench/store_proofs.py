"""Proofs of the store at full length: kills, failing system calls, races.

Each proof is a program of `tests/cache/programs/`, which the tests run with small counts. By
default, the counts here are small, too. `--full` takes hours on a small machine: 10,000 kills,
1,000 cases of failing system calls, 1,000,000 operations of 64 processes, 16 processes that need
the same 20 keys. All errors are printed. Goal: there are none.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, Figure, run_benchmark, say, timed

PROGRAMS = ROOT / "tests" / "cache" / "programs"


@dataclass(frozen=True)
class Proof:
    """A program, its arguments for a short and for the full run, and the name of its count."""

    program: str
    short: tuple[int, ...]
    full: tuple[int, ...]
    count: str
    preload: bool = False


PROOFS = {
    "kills": Proof("kill.py", (100, 1), (10_000, 1), "interrupted"),
    "system calls": Proof("faults.py", (60, 1), (1_000, 2), "injected", preload=True),
    "races": Proof("race.py", (8, 250), (64, 15_625), "operations"),
    "single flight": Proof("flight.py", (16, 20), (16, 20), "compilations"),
}


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Run the proofs one after the other."""
    library = build_faults(place)
    return [
        figure
        for name in options.only or PROOFS
        for figure in run_proof(name, place / name, library, full=options.full)
    ]


def run_proof(name: str, root: Path, library: Path | None, *, full: bool) -> Iterator[Figure]:
    """Run one proof."""
    proof = PROOFS[name]
    if proof.preload and library is None:
        say(f"{name}: left out, there is no C compiler")
        return
    root.mkdir()
    counts = proof.full if full else proof.short
    own = {"LD_PRELOAD": str(library)} if proof.preload else {}
    own["HOME"] = str(root)  # no secret of the user signs manifests
    command = [sys.executable, PROGRAMS / proof.program, root, *map(str, counts)]
    output = root.with_suffix(".json")
    with output.open("w") as file:
        seconds = timed(subprocess.run, command, stdout=file, env={**os.environ, **own})
    shutil.rmtree(root)
    found = read_output(proof, output.read_text())
    for line in found["wrong"]:
        say(f"{name}: {line}")
    what = f"{name} ({' x '.join(map(str, counts))})"
    yield Figure(f"{what}: wrong", len(found["wrong"]), goal=0)
    yield Figure(f"{what}: {proof.count}", found[proof.count])
    yield Figure(f"{what}: time", seconds, "s")


def read_output(proof: Proof, text: str) -> dict[str, Any]:
    """Return the output of a program; the one for single flight prints two numbers."""
    if proof.program != "flight.py":
        return dict(json.loads(text))
    made, failed = map(int, text.split())
    wanted = proof.full[1]
    wrong = [] if (made, failed) == (wanted, 0) else [f"{made} of {wanted} made, {failed} failed"]
    return {"compilations": made, "wrong": wrong}


def build_faults(place: Path) -> Path | None:
    """Build the library that makes system calls fail; None without a C compiler."""
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        return None
    library = place / "faults.so"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", library, PROGRAMS / "faults.c", "-ldl"]
    subprocess.run(command, check=True)
    return library


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, full=False, only=tuple(PROOFS)))
