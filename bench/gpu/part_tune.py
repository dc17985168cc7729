"""`pallasc tune run` on jobs of JAX's kernels over their tunings: who wins, and what is lost.

Its own files of results lie beside ours, `tune_KERNEL.jsonl`: bring them back, too. A unit that was
cut goes on with them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from desk import Desk
from units import Unit

TITLE = "pallasc tune run on tunings of JAX's kernels"
SHARE = 0.08
AT_ONCE = 1

_SECONDS = 5
_MOST_BYTES_SAID = 2000


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for each job."""
    jobs = sorted((folder / "tune").glob("*.pallasc"))
    return [Unit("tune", job.stem, 300, 15, reason=_why_not(job, machine)) for job in jobs]


def _why_not(job: Path, machine: Mapping[str, Any]) -> str | None:
    from pallasc.runtime.matching.selection import arch_refusal
    from pallasc.specs.bundle.bundle import open_bundle

    with open_bundle(job) as bundle:
        reasons = [arch_refusal(entry.arch, *machine["capability"]) for entry in bundle.entries()]
    return None if None in reasons else reasons[0]


def run(desk: Desk) -> None:
    """Measure the points of one job."""
    desk.ask("job", lambda: measure(desk))


def measure(desk: Desk) -> dict[str, Any]:
    """Return what the command says of a job, and which points it lost.

    Raises:
        RuntimeError: it failed.
    """
    job = desk.folder / "tune" / f"{desk.name}.pallasc"
    output = desk.results.path.parent / f"tune_{desk.name}.jsonl"
    command = [sys.executable, "-P", "-m", "pallasc", "tune", "run", str(job), "-o", str(output)]
    command += ["--json", "--seconds", str(_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-_MOST_BYTES_SAID:]}")
    report = json.loads(done.stdout)
    points = [point for key in report["keys"] for point in key["points"]]
    failed = {point["id"]: point["failed"] for point in points if point["failed"]}
    kept = ("key", "winner", "why", "us", "rounds", "spent_s")
    return {
        "right": not failed,
        "compared": len(points),
        "wrong": len(failed),
        "failed": failed,
        "keys": [{name: key[name] for name in kept} for key in report["keys"]],
        "said": done.stderr[-_MOST_BYTES_SAID:],
    }
