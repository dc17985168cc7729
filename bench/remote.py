"""Remote stores: the cost of a warm one for a build, and hostile ones, dead ones, and kills.

Goals: a build of 1,000 variants with an empty local store and a warm remote one takes at most 3
times as long as one with a warm local store, and makes at most 50 requests; the next one takes at
most 1.1 times as long, and makes none. Of 500 mutations of a remote's files and 20 kinds of hostile
HTTP answers (`tests/cache/remote/hostile.py`), none serves a wrong artifact, loses more than 2 s,
or takes more than 64 MB. After SIGKILL at random moments of pushes, pulls and merges
(`tests/cache/remote/kills.py`), all stores verify.

`--only warm`, `--only hostile` and `--only kills` run a part. All traffic is to 127.0.0.1.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from filled_store import fill, write_spec
from harness import Figure, median_ratio, run_benchmark, timed_process

TESTS = Path(__file__).resolve().parents[1] / "tests" / "cache" / "remote"
sys.path.insert(0, str(TESTS))

import kills  # noqa: E402
import servers  # noqa: E402

from pallasc.cache.store import Store  # noqa: E402

PARTS = ("warm", "hostile", "kills")
VARIANTS = 1000


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure the parts that were asked for."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="pallasc-remote-", dir=options.folder) as name:
        os.environ["HOME"] = name  # no credentials of the user
        for part in options.only or PARTS:
            folder = Path(name, part)
            folder.mkdir()
            figures += {"warm": _warm, "hostile": _hostile, "kills": _kills}[part](folder, options)
    return figures


def _warm(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Time builds whose local store is empty, over a folder and over servers."""
    spec = write_spec(folder / "spec", VARIANTS)
    fill(Store(folder / "full"), spec)
    figures = _warm_rounds(folder, spec, "folder", f"file://{folder}/remote", {}, options.rounds)
    with _started(servers.s3_of_rclone(folder / "s3")) as endpoint:
        if endpoint is not None:
            environment = dict(servers.s3_environment(endpoint))
            url = "s3://kernels/warm"
            figures += _warm_rounds(folder, spec, "S3 (rclone)", url, environment, options.rounds)
    return figures


@contextmanager
def _started(server: AbstractContextManager[str]) -> Iterator[str | None]:
    """Give a server's place, None where it is not installed."""
    with ExitStack() as stack:
        try:
            place: str | None = stack.enter_context(server)
        except pytest.skip.Exception as reason:
            print(f"left out: {reason}", file=sys.stderr)
            place = None
        yield place


def _warm_rounds(
    folder: Path, spec: Path, kind: str, url: str, environment: Mapping[str, str], rounds: int
) -> list[Figure]:
    env = {**os.environ, **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # bytecode as an installed package has it
    pallasc = [sys.executable, "-P", "-m", "pallasc"]
    build = [*pallasc, "build", str(spec)]
    local = [*build, "--store", str(folder / "full")]
    push = [*pallasc, "cache", "push", str(spec), "--store", str(folder / "full"), "--remote", url]
    subprocess.run(push, env=env, check=True, stdout=sys.stderr)
    times: dict[str, list[float]] = {"local": [], "first": [], "second": []}
    requests: dict[str, int] = {}
    for number in range(rounds + 1):
        store = folder / f"empty-{number}"
        remote = [*build, "--store", str(store), "--remote", url]
        for name, command in (("local", local), ("first", remote), ("second", remote)):
            times[name].append(timed_process(command, env=env, stderr=subprocess.DEVNULL))
        shutil.rmtree(store)
        shown = ", ".join(f"{name}: {found[-1]:.3f} s" for name, found in times.items())
        print(f"{kind}: {shown}", file=sys.stderr)
    for name in ("first", "second"):
        done = subprocess.run([*remote, "--json"], env=env, check=True, capture_output=True)
        report = json.loads(done.stdout)
        requests[name] = report["remote"]["requests"]
        if report["totals"]["hit"] != VARIANTS:
            raise SystemExit(f"{kind}: {report['totals']}")
    shutil.rmtree(store)
    times = {name: found[1:] for name, found in times.items()}  # the first wrote bytecode
    return [
        Figure(f"{kind}, empty store", statistics.median(times["first"]), "s"),
        Figure(f"{kind}, empty store / warm", median_ratio(times["first"], times["local"]), goal=3),
        Figure(f"{kind}, requests", requests["first"], goal=50),
        Figure(f"{kind}, next / warm", median_ratio(times["second"], times["local"]), goal=1.1),
        Figure(f"{kind}, requests of the next", requests["second"], goal=0),
    ]


def _hostile(folder: Path, options: argparse.Namespace) -> list[Figure]:
    command = [sys.executable, str(TESTS / "hostile.py"), "--json", "--seed", str(options.seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    rows = json.loads(done.stdout)
    return [
        Figure("hostile answers and mutations", len(rows), goal=500, at_least=True),
        Figure("wrong artifacts served, builds failed", sum(row["wrong"] for row in rows), goal=0),
        Figure("lost, worst", max(row.get("lost_s", 0.0) for row in rows), "s", goal=2),
        Figure(
            "memory, worst", max(row.get("growth_bytes", 0) for row in rows) / 2**20, "MB", goal=64
        ),
    ]


def _kills(folder: Path, options: argparse.Namespace) -> list[Figure]:
    outcome = kills.run(folder, kills=options.kills, seed=options.seed)
    for text in outcome.wrong:
        print(text, file=sys.stderr)
    return [
        Figure("kills", sum(outcome.kills.values()), goal=options.kills, at_least=True),
        Figure("wrong after kills", len(outcome.wrong), goal=0),
    ]


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part")
    parser.add_argument("--rounds", type=int, default=5, help="timed builds of each kind")
    parser.add_argument("--kills", type=int, default=20, help="kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to put temporary files")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _add_options))
