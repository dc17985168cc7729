"""Remote stores: what a warm one costs a build, and what faults, kills and dead servers do to it.

Goals: a build of 1,000 variants with an empty local store and a warm remote one takes at most 3
times as long as one with a warm local store, and makes at most 50 requests; the next one takes at
most 1.1 times as long, and makes none. The store is filled by `filled_store`, so that the remote's
packs are smaller than real ones; toolchain's files are hashed in the first build and remembered in
the others.

More goals: of 10,000 faults that a proxy injects into requests to real servers, none has a wrong
artifact served or a build failed; a remote that is dead costs a build at most 2 s; after SIGKILL at
1,000 random moments of pushes, pulls and merges, the local stores and the remote verify, and the
next ones complete what was interrupted.

Faults and kills come from `tests/cache/remote/` (`fault_proxy.py`, `faulty.py`, `kills.py`), which
the tests run with small counts; so does this, unless `--full` asks for the great ones. These parts
(`--only faults --only builds --only kills`) use all cores, and are about what comes out, not about
time: they may run beside other work. `warm`, `dead` and `slow` need a quiet machine. All traffic is
to 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest
from filled_store import fill, write_spec
from harness import Figure, median_ratio, run_benchmark, timed_process

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cache" / "remote"))

import faulty
import kills
import servers
import slow
import variants
from bazel_cache import BazelCache
from fault_proxy import Choose, FaultProxy, seeded

from pallasc.cache.remote.guard import BUILD
from pallasc.cache.remote.settings import RemoteSettings, read_settings
from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import prepare

FAULTS, KILLS, BUILDS = (300, 10_000), (20, 1_000), (6, 60)
PARTS = ("warm", "faults", "builds", "dead", "slow", "kills")
MISSES = (1, 40, 400)
VARIANTS = 1000
_BUILD_VARIANTS = 40
_DEAD_ROUNDS = 5
_SLACK_S = 1.0
"""A busy machine may take so much longer to notice that time is over."""
SettingsAt = Callable[[str, str], RemoteSettings]


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure the parts that were asked for."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="pallasc-remote-", dir=options.folder) as name:
        os.environ["HOME"] = name  # no credentials of whoever runs this
        for part in options.only or PARTS:
            folder = Path(name, part)
            folder.mkdir()
            figures += _PARTS[part](folder, options)
    return figures


def _settings(url: str) -> RemoteSettings:
    settings = read_settings({}, url=url, write=True)
    assert settings is not None
    return settings


def _s3(place: str, prefix: str) -> RemoteSettings:
    os.environ.update(servers.s3_environment(f"http://{place}"))
    return _settings(f"s3://kernels/{prefix}")


def _web(place: str, prefix: str) -> RemoteSettings:
    user = f"{servers.USER}:{servers.PASSWORD}"
    return _settings(f"http://{user}@{place}/{prefix.partition('-')[0]}")


def _bazel(place: str, prefix: str) -> RemoteSettings:
    return _settings(f"bazel+http://{place}/{prefix}")


@contextmanager
def _upstreams(folder: Path) -> Iterator[dict[str, tuple[str, SettingsAt]]]:
    """Start one server of each kind; give its `host:port`, and what settings lead there."""
    with (
        servers.s3_of_rclone(folder / "s3") as s3,
        servers.webdav_of_rclone(folder / "webdav") as web,
        BazelCache() as cache,
    ):
        yield {
            "s3": (s3.removeprefix("http://"), _s3),
            "webdav": (web, _web),
            "bazel": (cache.place, _bazel),
        }


def _warm(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Time builds whose local store is empty, over a folder and over servers."""
    spec = write_spec(folder / "spec", VARIANTS)
    full = Store(folder / "full")
    fill(full, spec)
    figures = _warm_rounds(folder, spec, "folder", f"file://{folder}/remote", {}, options.rounds)
    with _started(servers.s3_of_rclone(folder / "s3")) as endpoint:
        if endpoint is not None:
            environment = dict(servers.s3_environment(endpoint))
            url = "s3://kernels/warm"
            figures += _warm_rounds(folder, spec, "S3 (rclone)", url, environment, options.rounds)
    with _started(servers.nginx(folder / "nginx")) as place:
        if place is not None:
            url = f"bazel+http://{place}"
            figures += _warm_rounds(folder, spec, "Bazel (nginx)", url, {}, options.rounds)
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
        told = subprocess.run([*remote, "--json"], env=env, check=True, capture_output=True)
        report = json.loads(told.stdout)
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


def _processes(count: int) -> ProcessPoolExecutor:
    """Return a pool of processes."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _faults(folder: Path, options: argparse.Namespace) -> list[Figure]:
    most = FAULTS[options.full]
    total = faulty.Outcome()
    shares = 1 if most < 1000 else 4
    # Most of a trial's time is waiting for faults.
    with _upstreams(folder) as upstreams, _processes(2 * _cores()) as pool:
        runs: dict[Future[faulty.Outcome], str] = {}
        for number, (kind, (place, settings_at)) in enumerate(upstreams.items()):
            for share in range(shares):
                trials = folder / f"trials-{kind}-{share}"
                trials.mkdir()
                faults = -(-most // (len(upstreams) * shares))
                seed = options.seed + 10 * number + share
                if kind == "webdav":  # where the folder of an address must exist
                    (folder / kind / f"s{seed}").mkdir()
                run = pool.submit(faulty.run, trials, place, settings_at, faults=faults, seed=seed)
                runs[run] = kind
        for run in as_completed(runs):
            outcome = run.result()
            for text in [*outcome.wrong, *outcome.failed, *outcome.late]:
                print(f"{runs[run]}: {text}", file=sys.stderr)
            print(f"{runs[run]}: {outcome.faults} faults, {outcome.found} found", file=sys.stderr)
            total.add(outcome)
    return [
        Figure("faults injected", total.faults, goal=most, at_least=True),
        Figure("kinds of faults", len(total.injected), goal=20, at_least=True),
        Figure("variants served under faults", total.found),
        Figure("wrong artifacts served", len(total.wrong), goal=0),
        Figure("builds failed", len(total.failed), goal=0),
        Figure("builds that waited too long", len(total.late), goal=0),
    ]


def _builds(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Have real processes look up variants of a remote that another machine filled.

    They look with `--dry-run`, since what the faults hide would be compiled otherwise.
    """
    spec = write_spec(folder / "project", _BUILD_VARIANTS)
    warm, full = folder / "warm", folder / "full"
    with prepare() as setup:
        context = setup.context(Store(warm))
        setup.record(context.digests)
        context.digests.save()
    shutil.copytree(warm, full)
    fill(Store(full), spec)
    outcome = Counter[str]()
    rng = random.Random(options.seed)
    with BazelCache() as cache, ThreadPoolExecutor(_cores()) as pool:
        sent = _pallasc(
            "cache", "push", spec, "--remote", f"bazel+http://{cache.place}", store=full
        )
        assert sent.returncode == 0, sent.stderr
        local = json.loads(_looked_up(spec, full).stdout)
        expected = {row["id"]: row["digest"] for row in local["variants"]}

        def build(number: int, choose: Choose) -> tuple[subprocess.CompletedProcess[str], int]:
            store = folder / f"store-{number}"
            shutil.copytree(warm, store)
            with FaultProxy(cache.place, choose, seed=number) as proxy:
                done = _looked_up(spec, store, "--remote", f"bazel+http://{proxy.place}")
            shutil.rmtree(store)
            return done, proxy.count

        choices = [
            seeded(rng.randrange(2**32), 0.2 + 0.4 * rng.random())
            for _ in range(BUILDS[options.full])
        ]
        for done, injected in pool.map(build, range(len(choices)), choices):
            outcome["injected"] += injected
            _judge(outcome, done, expected)
    return [
        Figure("real builds under faults", BUILDS[options.full]),
        Figure("faults injected into real builds", outcome["injected"]),
        Figure("variants that real builds found", outcome["found"]),
        Figure("wrong artifacts served to real builds", outcome["wrong"], goal=0),
        Figure("real builds failed", outcome["failed"], goal=0),
        Figure("real builds that waited too long", outcome["late"], goal=0),
    ]


def _judge(
    outcome: Counter[str], done: subprocess.CompletedProcess[str], expected: dict[str, str]
) -> None:
    if done.returncode or "Traceback" in done.stderr:
        print(done.stderr, file=sys.stderr)
        outcome["failed"] += 1
        return
    report = json.loads(done.stdout)
    for row in report["variants"]:
        if row["status"] == "hit":
            outcome["found"] += 1
            outcome["wrong"] += row["digest"] != expected[row["id"]]
    stats = report["remote"]
    outcome["late"] += stats["lost_s"] > BUILD.wait_s + _SLACK_S


def _looked_up(spec: Path, store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return _pallasc("build", spec, "--dry-run", "--json", *options, store=store)


def _pallasc(*arguments: str | Path, store: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "pallasc", *map(str, arguments), "--store", str(store)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _dead(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Time a build's whole use of a remote that never answers, and of one that is not there."""
    source = Store(folder / "source")
    keys = variants.fill(source, range(4))
    times: dict[str, list[float]] = {"stalled": [], "refused": []}
    with BazelCache() as cache, FaultProxy(cache.place, lambda method, path: "stall") as proxy:
        places = {"stalled": proxy.place, "refused": f"127.0.0.1:{servers.free_port()}"}
        for kind, place in places.items():
            for number in range(_DEAD_ROUNDS):
                settings = _bazel(place, "")
                store = Store(folder / f"{kind}-{number}")
                began = time.perf_counter()
                variants.download(settings, store, keys, limits=BUILD)
                times[kind].append(time.perf_counter() - began)
    return [
        Figure("a remote that never answers, worst", max(times["stalled"]), "s", goal=2.0),
        Figure("a remote that is not there, worst", max(times["refused"]), "s", goal=2.0),
    ]


def _slow(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Have builds lack 1, 40 and 400 variants over remotes that send slowly, partly or never."""
    source = Store(folder / "source")
    keys = variants.fill(source, range(max(MISSES)), size=40_000)
    worst: dict[str, float] = {}
    cut_off = 0
    with _upstreams(folder) as upstreams:
        for kind in ("bazel", "webdav"):  # without ranges, and with
            place, settings_at = upstreams[kind]
            prefix = "kernels-x"
            (folder / kind / "kernels").mkdir(exist_ok=True, parents=True)
            variants.upload(settings_at(place, prefix), source, keys)
            for fault, where, misses in product((*slow.FAULTS, slow.GOOD), slow.PLACES, MISSES):
                loss = slow.lose(
                    folder / "store",
                    place,
                    settings_at,
                    keys[:misses],
                    fault=fault,
                    place=where,
                    prefix=prefix,
                )
                shutil.rmtree(folder / "store", ignore_errors=True)
                shown = f"{loss.found} found in {loss.took_s:.2f} s, {loss.lost_s:.2f} s lost"
                print(f"{kind}, {fault}, {where}, {misses}: {shown}", file=sys.stderr)
                if fault == slow.GOOD:
                    cut_off += loss.found < misses
                else:
                    worst[fault] = max(worst.get(fault, 0.0), loss.lost_s)
    return [
        *(
            Figure(f"lost by {fault}, worst", lost_s, "s", goal=2.0)
            for fault, lost_s in worst.items()
        ),
        Figure(f"builds cut off at {slow.GOOD}", cut_off, goal=0),
    ]


def _kills(folder: Path, options: argparse.Namespace) -> list[Figure]:
    most, total = KILLS[options.full], kills.Outcome()
    shares = _cores() if most >= 100 else 1
    with _processes(shares) as pool:
        runs = []
        for share in range(shares):
            place = folder / str(share)
            place.mkdir()
            count = -(-most // shares)
            runs.append(pool.submit(kills.run, place, kills=count, seed=options.seed + share))
        for run in as_completed(runs):
            total.add(run.result())
    for text in total.wrong:
        print(text, file=sys.stderr)
    return [
        *(Figure(f"kills of a {verb}", count) for verb, count in total.kills.items()),
        Figure("kills", sum(total.kills.values()), goal=most, at_least=True),
        Figure("what did not verify after a kill", len(total.wrong), goal=0),
    ]


_PARTS = {
    "warm": _warm,
    "faults": _faults,
    "builds": _builds,
    "dead": _dead,
    "slow": _slow,
    "kills": _kills,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--full", action="store_true", help="10,000 faults, 1,000 kills")
    parser.add_argument("--seed", type=int, default=17, help="of faults and kills")
    parser.add_argument("--rounds", type=int, default=5, help="how often builds are timed")
    parser.add_argument("--folder", help="for stores and servers; one in memory is fastest")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__.splitlines()[0], measure, add_options))
