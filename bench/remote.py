"""Remote stores: the cost of a warm remote store, hostile answers, and kills.

Goals:

* warm: a build of 1,000 variants with an empty local store and a warm remote store takes at most 3
  times as long as with a warm local store, and at most 50 requests. The next build takes at most
  1.1 times as long as with a warm local store, and no requests.
* hostile: with 500 mutations of a remote store's files and hostile HTTP answers
  (`tests/cache/remote/hostile.py`), no build gets a wrong artifact, takes more than 2.3 s (0.3 s
  are for a good remote), or more than 64 MB beyond what the process that makes its requests needs
  idle.
* kills: after SIGKILL at random moments of pushes and pulls (`tests/cache/remote/kills.py`), no
  store is damaged.

All traffic is to 127.0.0.1.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import (
    PALLASC,
    ROOT,
    Figure,
    build_command,
    in_turn,
    ratio,
    run_benchmark,
    say,
    timed_process,
)
from inputs import fill, write_spec

TESTS = ROOT / "tests" / "cache" / "remote"
sys.path.insert(0, str(TESTS))

import kills  # noqa: E402
import servers  # noqa: E402

from pallasc.cache.store import Store  # noqa: E402

VARIANTS = 1000


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Measure all parts, or those that `--only` names."""
    os.environ["HOME"] = str(place)  # no credentials of the user
    figures: list[Figure] = []
    for part in options.only or PARTS:
        (place / part).mkdir()
        figures += PARTS[part](place / part, options)
    return figures


def warm(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Time builds with an empty local store, over a folder and, if rclone is installed, S3."""
    spec = write_spec(folder / "spec", VARIANTS)
    fill(Store(folder / "full"), spec)
    figures = warm_rounds(spec, folder, f"file://{folder}/remote", {}, options.rounds)
    with ExitStack() as stack:
        try:
            endpoint = stack.enter_context(servers.s3_of_rclone(folder / "s3"))
        except pytest.skip.Exception as reason:
            say(f"left out: {reason}")
            return figures
        environment = servers.s3_environment(endpoint)
        return figures + warm_rounds(spec, folder, "s3://kernels/warm", environment, options.rounds)


def warm_rounds(
    spec: Path, folder: Path, url: str, more: Mapping[str, str], rounds: int
) -> list[Figure]:
    """Time builds over one remote store."""
    environment, full, empty = {**os.environ, **more}, folder / "full", folder / "empty"
    push = [*PALLASC, "cache", "push", spec, "--store", full, "--remote", url]
    subprocess.run(push, env=environment, check=True, stdout=sys.stderr)
    remote = build_command(spec, empty, "--remote", url)

    def first() -> float:
        shutil.rmtree(empty, ignore_errors=True)
        return timed_process(remote, env=environment)

    works = {
        "local": lambda: timed_process(build_command(spec, full), env=environment),
        "first": first,
        "next": lambda: timed_process(remote, env=environment),
    }
    times = in_turn(works, rounds)
    shutil.rmtree(empty)
    requests = []
    for _ in range(2):
        done = subprocess.run([*remote, "--json"], env=environment, check=True, capture_output=True)
        report = json.loads(done.stdout)
        requests.append(report["remote"]["requests"])
        if report["totals"]["hit"] != VARIANTS:
            raise SystemExit(f"{url}: {report['totals']}")
    shutil.rmtree(empty)
    kind = url.partition(":")[0]
    return [
        Figure(f"{kind}, empty store / warm", ratio(times, "first", "local"), goal=3),
        Figure(f"{kind}, requests", requests[0], goal=50),
        Figure(f"{kind}, next / warm", ratio(times, "next", "local"), goal=1.1),
        Figure(f"{kind}, requests of the next", requests[1], goal=0),
    ]


def hostile(_: Path, options: argparse.Namespace) -> list[Figure]:
    """Build from hostile remotes."""
    command = [sys.executable, TESTS / "hostile.py", "--json", "--seed", str(options.seed)]
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE).stdout)
    growth = max(row.get("growth_bytes", 0) for row in rows) / 2**20
    return [
        Figure("hostile answers and mutations", len(rows), goal=500, at_least=True),
        Figure("wrong artifacts served, builds failed", sum(row["wrong"] for row in rows), goal=0),
        Figure("time that a build took, worst", max(row["took_s"] for row in rows), "s", goal=2.3),
        Figure("memory, worst", growth, "MB", goal=64),
    ]


def killed(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Kill pushes and pulls."""
    outcome = kills.run(folder, kills=options.kills, seed=options.seed)
    for text in outcome.wrong:
        say(text)
    return [
        Figure("kills", sum(outcome.kills.values()), goal=options.kills, at_least=True),
        Figure("wrong after kills", len(outcome.wrong), goal=0),
    ]


PARTS = {"warm": warm, "hostile": hostile, "kills": killed}


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, only=tuple(PARTS), rounds=5, kills=20, seed=1))
