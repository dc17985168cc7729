"""Fuzz the bundle's reader, guided by coverage: whatever it is given, it reads or refuses.

An input is a bundle with nothing compressed, changed anywhere, whose digests are then made to fit
(`tests/bundle/programs/repaired.py`), so that what lies behind the digests is reached; every fourth
is read without that. Anything but a CorruptError, more than ten seconds or half a gigabyte is a
finding: the input is kept in `--findings` and printed.

Inputs that reach a new pair of lines in `specs/bundle` or what it calls are kept and changed
further. `--engine atheris` has atheris do that, where it is installed. `--mutations N` also damages
and forges that many bundles (`tests/bundle/programs/mutations.py`), in processes of their own.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from harness import Figure, run_benchmark

PROGRAMS = Path(__file__).resolve().parent.parent / "tests" / "bundle" / "programs"
sys.path.insert(0, str(PROGRAMS))

MEMORY_BYTES = 2**29
LONGEST_S = 10
BATCH = 5_000


class Coverage:
    """Pairs of lines, one after the other, in the modules that read bundles."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int, int]] = set()
        self._new = False
        self._wanted: dict[CodeType, bool] = {}

    def runs_new(self, function: Callable[[], None]) -> bool:
        """Run a function and tell whether it went where none was before."""
        self._new = False
        sys.settrace(self._call)
        try:
            function()
        finally:
            sys.settrace(None)
        return self._new

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = "pallasc/specs" in code.co_filename
        if not wanted:
            return None
        last = frame.f_lineno

        def line(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                pair = code, last, frame.f_lineno
                last = frame.f_lineno
                if pair not in self.seen:
                    self.seen.add(pair)
                    self._new = True
            return line

        return line


def read(data: bytes, *, repaired: bool) -> None:
    """Read a bundle as far as it goes; an exception that is not a CorruptError comes out."""
    from mutations import judge
    from repaired import repair

    fault = judge(repair(data) if repaired else data, None)
    if fault:
        raise AssertionError(fault)


def own_engine(seconds: float, seed: int, findings: Path) -> dict[str, float]:
    """Fuzz for some time and return the counts."""
    from mutations import damage, raise_timeout
    from repaired import plain_bundle

    signal.signal(signal.SIGALRM, raise_timeout)
    rng = random.Random(seed)
    corpus = [plain_bundle(1)]
    coverage = Coverage()
    count = found = 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        parent = corpus[-1] if rng.random() < 0.3 else rng.choice(corpus)
        data = damage(parent, rng)
        repaired = count % 4 != 0
        signal.alarm(LONGEST_S)
        try:
            if coverage.runs_new(functools.partial(read, data, repaired=repaired)):
                corpus.append(data)
        except (AssertionError, TimeoutError) as error:
            found += 1
            place = findings / f"finding-{seed}-{count}.pallasc"
            place.write_bytes(data)
            print(f"{place}: {error!r}", file=sys.stderr)
        count += 1
    signal.alarm(0)
    return {"inputs": count, "findings": found, "pairs": len(coverage.seen), "corpus": len(corpus)}


def atheris_engine(seconds: float, seed: int, findings: Path) -> dict[str, float]:
    """Have atheris do it, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        from repaired import plain_bundle

        (Path(folder) / "seed").write_bytes(b"\1" + plain_bundle(1))
        arguments = [
            folder, f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-timeout={LONGEST_S}",
            f"-rss_limit_mb={MEMORY_BYTES >> 20}", "-print_final_stats=1",
            f"-artifact_prefix={findings}{os.sep}", f"-max_len={2**16}",
        ]  # fmt: skip
        command = [sys.executable, "-P", __file__, "--as-atheris", *arguments]
        answer = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        print(answer.stderr[-4000:], file=sys.stderr)
    units = re.search(r"number_of_executed_units:\s*(\d+)", answer.stderr)
    covered = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", answer.stderr) or [(0, 0, 0)]
    return {
        "inputs": int(units[1]) if units else 0,
        "findings": 1 if answer.returncode else 0,
        "pairs": int(covered[-1][1]),
        "corpus": int(covered[-1][2]),
    }


def as_atheris(arguments: Sequence[str]) -> None:
    """Be the process that atheris runs in; it does not return."""
    import atheris

    with atheris.instrument_imports(include=["pallasc.specs"]):
        import pallasc.specs.bundle.audit
        import pallasc.specs.bundle.verify  # noqa: F401

    def one(data: bytes) -> None:
        read(data[1:], repaired=data[:1] != b"\0")

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def mutate(count: int, jobs: int) -> dict[str, Any]:
    """Damage and forge so many bundles, in processes of their own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *sys.path])}
    command = [sys.executable, "-P", str(PROGRAMS / "mutations.py")]
    waiting = list(range(-(-count // BATCH)))
    results = []
    while waiting:
        batch, waiting = waiting[:jobs], waiting[jobs:]
        running = [
            subprocess.Popen(
                [*command, str(min(BATCH, count - BATCH * number)), str(number)],
                env=environment,
                stdout=subprocess.PIPE,
            )
            for number in batch
        ]
        results += [json.loads(process.communicate()[0]) for process in running]
    for line in (line for result in results for line in result["wrong"]):
        print(line, file=sys.stderr)
    return {
        "mutations": sum(result["mutations"] for result in results),
        "wrong": sum(len(result["wrong"]) for result in results),
        "slowest_s": max(result["slowest_s"] for result in results),
        "peak_bytes": max(result["peak_bytes"] for result in results),
    }


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Fuzz, mutate, count."""
    options.findings.mkdir(parents=True, exist_ok=True)
    return list(_figures(options))


def _figures(options: argparse.Namespace) -> Iterator[Figure]:
    if options.minutes:
        engine = atheris_engine if options.engine == "atheris" else own_engine
        counts = engine(60 * options.minutes, options.seed, options.findings)
        yield Figure("minutes of fuzzing", options.minutes)
        yield Figure("inputs", counts["inputs"])
        yield Figure("pairs of lines reached", counts["pairs"])
        yield Figure("inputs kept", counts["corpus"])
        yield Figure("findings", counts["findings"], goal=0)
    if options.mutations:
        counts = mutate(options.mutations, options.jobs)
        yield Figure("mutations", counts["mutations"])
        yield Figure("read wrongly, or with another error", counts["wrong"], goal=0)
        yield Figure("the slowest", counts["slowest_s"], "s", goal=LONGEST_S)
        yield Figure("the most memory", counts["peak_bytes"] / 1e6, "MB", goal=MEMORY_BYTES / 1e6)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()) / "findings")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-atheris"]:
        as_atheris(sys.argv[2:])
    raise SystemExit(run_benchmark(__doc__ or "", measure, _options))
