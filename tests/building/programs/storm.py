"""Kill concurrent builds on one store at random moments, and look at what is left.

Usage: storm.py FOLDER KILLS SEED. Three builds of the same twelve variants run at a time; each gets
SIGKILL or SIGTERM. Some artifacts are deleted between the rounds, so that there is always something
to compile. Prints JSON: the signals sent, how many met a build that was still running, and
everything that was wrong.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pallasc.cache.evict import Limits
from pallasc.cache.prune import prune
from pallasc.cache.store import Store

BUILDS = 3
LONGEST_S = 10.0
"""The latest moment at which a build is killed."""
DEADLINE_S = 60.0
"""Time for the processes of a killed build to end."""
SPEC = """
schema: 1
targets: [sm_90a]
kernels:
  - name: add
    entry: pallasc.specs.library.elementwise:add
    args: {x: "f32[{m}, 2048]", y: "f32[{m}, 2048]"}
    matrix: {m: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}
"""


def storm(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill builds until `kills` signals were sent to running builds."""
    dice, sent, wrong = random.Random(seed), Counter[str](), list[str]()
    (folder / "tmp").mkdir(parents=True)
    (folder / "spec.yaml").write_text(SPEC)
    expected = artifacts(folder, "reference")
    while sent.total() < kills:
        builds = [start(folder, "store") for _ in range(BUILDS)]
        for build in builds:
            time.sleep(dice.uniform(0, LONGEST_S / BUILDS))
            number = dice.choice([signal.SIGKILL, signal.SIGTERM])
            if build.poll() is None:
                sent[number.name] += 1
            build.send_signal(number)
        for build in builds:
            _, errors = build.communicate()
            if "Traceback" in errors:
                wrong.append(errors)
        wrong += left(folder)
        if artifacts(folder, "store") != expected:
            wrong.append(f"after {sent.total()} kills, the artifacts differ")
        forget(Store(folder / "store"), dice)
    return {"kills": sent, "wrong": wrong}


def start(folder: Path, store: str) -> subprocess.Popen[str]:
    """Start a build whose processes are known by their TMPDIR."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "pallasc", "build", "spec.yaml", "--json", "--store", store],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def artifacts(folder: Path, store: str) -> dict[str, str]:
    """Complete a build, verify its store, and return the digest of each variant."""
    build = start(folder, store)
    out, errors = build.communicate()
    if build.returncode:
        raise SystemExit(f"a build after kills failed:\n{errors}")
    verify = [sys.executable, "-P", "-m", "pallasc", "cache", "verify", "--store", store]
    subprocess.run(verify, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return {item["id"]: item["digest"] for item in json.loads(out)["variants"]}


def left(folder: Path) -> list[str]:
    """Return the processes and temporary files that killed builds left."""
    deadline = time.monotonic() + DEADLINE_S
    while processes := processes_in(folder / "tmp"):
        if time.monotonic() > deadline:
            return [f"process {number} is left" for number in processes]
        time.sleep(0.05)
    store = Store(folder / "store")
    prune(store, limits=Limits(grace_s=0))
    places = [store.folder / name for name in ("tmp", "leases", "locks")]
    return [f"{path} is left" for place in places for path in place.glob("*")]


def processes_in(folder: Path) -> list[int]:
    """Return the processes that have this TMPDIR and are not zombies."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"TMPDIR={folder}\0".encode() in environment and state != "Z":
            found.append(int(entry.name))
    return found


def forget(store: Store, dice: random.Random) -> None:
    """Delete the records of some variants, so that they are compiled again."""
    records = sorted(path for path in (store.folder / "ac").rglob("*") if path.is_file())
    for path in dice.sample(records, len(records) // 2):
        path.unlink()


if __name__ == "__main__":
    outcome = storm(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(outcome, indent=2))
    sys.exit(bool(outcome["wrong"]))
