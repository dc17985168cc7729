"""Fuzz the bundle's reader, guided by coverage: whatever it is given, it reads or refuses.

An input is a bundle with nothing compressed, changed anywhere, whose digests are then made to fit
(`tests/bundle/programs/repaired.py`), so that the checks after the digests are reached; some are
read without that. What may not happen:

* a crash: the process ends, or any exception but a CorruptError
* a hang: more than ten seconds for one input
* a wrong kernel: bytes that are not those of their digest, or other ones than were put in although
  the root, which is what signatures are over, is the same
* more than half a gigabyte of memory

Such inputs are kept in `--findings` and named. Inputs that reach a new pair of lines in `specs` are
kept and changed further; `--engine atheris` has atheris do that, where it is installed, and then
features of libFuzzer are counted in place of pairs. `--mutations N` also damages and forges that
many bundles (`tests/bundle/programs/mutations.py`), in processes of their own. `--through nice`
has each process started by a command; none of them takes more than a few minutes.
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
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from harness import Figure, run_benchmark

from pallasc.specs.bundle.format import HEAD_BYTES

BENCH = Path(__file__).resolve().parent
PROGRAMS = BENCH.parent / "tests" / "bundle" / "programs"
sys.path.insert(0, str(PROGRAMS))

MEMORY_BYTES = 2**29
LONGEST_S = 10
BATCH = 5_000
PART_S = 120
"""How long one process of atheris takes."""
_HANG = 70
"""Exit code of libFuzzer for an input that took too long."""


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


@dataclass
class Counts:
    """What an engine did and found."""

    executions: int = 0
    coverage: int = 0
    new_coverage: int = 0
    kept: int = 0
    crashes: int = 0
    hangs: int = 0
    wrong_kernels: int = 0
    peak_bytes: int = 0


class Reading:
    """Reads inputs and judges how that went."""

    def __init__(self) -> None:
        from mutations import read_all
        from repaired import plain_bundle, repair

        from pallasc.specs.bundle.bundle import open_bundle

        self.seed = plain_bundle(1)
        self._repair = repair
        with open_bundle(self.seed) as bundle:
            self._root, self._original = bytes.fromhex(bundle.root), read_all(bundle)

    def read(self, data: bytes, *, repaired: bool) -> None:
        """Read a bundle as far as it goes.

        Raises:
            AssertionError: it went wrong; the text says how.
        """
        from mutations import judge

        subject = self._repair(data) if repaired else data
        same = subject[HEAD_BYTES - 32 : HEAD_BYTES] == self._root
        fault = judge(subject, self._original if same else None)
        if fault:
            raise AssertionError(fault)


def own_engine(seconds: float, seed: int, findings: Path) -> Counts:
    """Fuzz for some time and return the counts."""
    from mutations import WRONG, damage, peak_bytes, raise_timeout

    signal.signal(signal.SIGALRM, raise_timeout)
    rng = random.Random(seed)
    reading = Reading()
    corpus = [reading.seed]
    coverage, counts = Coverage(), Counts()
    for repaired in (True, False):
        coverage.runs_new(functools.partial(reading.read, reading.seed, repaired=repaired))
    first = len(coverage.seen)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        parent = corpus[-1] if rng.random() < 0.3 else rng.choice(corpus)
        data = damage(parent, rng)
        repaired = counts.executions % 4 != 0
        signal.alarm(LONGEST_S)
        try:
            if coverage.runs_new(functools.partial(reading.read, data, repaired=repaired)):
                corpus.append(data)
        except (AssertionError, TimeoutError) as error:
            counts.hangs += isinstance(error, TimeoutError)
            counts.wrong_kernels += WRONG in str(error)
            counts.crashes += isinstance(error, AssertionError) and WRONG not in str(error)
            place = findings / f"finding-{seed}-{counts.executions}.pallasc"
            place.write_bytes(data)
            print(f"{place}: {error!r}", file=sys.stderr)
        counts.executions += 1
    signal.alarm(0)
    counts.coverage, counts.new_coverage = len(coverage.seen), len(coverage.seen) - first
    counts.kept, counts.peak_bytes = len(corpus), peak_bytes()
    return counts


def atheris_engine(
    seconds: float, seed: int, findings: Path, through: Sequence[str] = ()
) -> Counts:
    """Have atheris do it, in processes of its own; it ends at the first finding.

    Each goes on with the inputs that the one before it has kept.
    """
    total = Counts()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "seed").write_bytes(b"\1" + Reading().seed)
        while seconds > 0 and not total.crashes + total.hangs + total.wrong_kernels:
            part = _atheris_part(min(seconds, PART_S), seed, findings, Path(folder), through)
            first = total.coverage - total.new_coverage if total.executions else None
            total = _joined(total, part, first)
            seconds, seed = seconds - PART_S, seed + 1
    return total


def _joined(total: Counts, part: Counts, first: int | None) -> Counts:
    """Return the counts of all parts so far; `first` is the coverage of the sound bundle."""
    return Counts(
        executions=total.executions + part.executions,
        coverage=part.coverage,
        new_coverage=part.new_coverage if first is None else part.coverage - first,
        kept=part.kept,
        crashes=part.crashes,
        hangs=part.hangs,
        wrong_kernels=part.wrong_kernels,
        peak_bytes=max(total.peak_bytes, part.peak_bytes),
    )


def _atheris_part(
    seconds: float, seed: int, findings: Path, corpus: Path, through: Sequence[str]
) -> Counts:
    from mutations import WRONG

    arguments = [
        str(corpus), f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-timeout={LONGEST_S}",
        f"-rss_limit_mb={MEMORY_BYTES >> 20}", "-print_final_stats=1",
        f"-artifact_prefix={findings}{os.sep}", f"-max_len={2**15}",
    ]  # fmt: skip
    command = [*through, sys.executable, "-P", __file__, "--as-atheris", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), *sys.path])}
    answer = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output = answer.stdout
    if answer.returncode:
        print(output[-4000:], file=sys.stderr)
    features = [int(number) for number in re.findall(r" ft: (\d+) ", output)] or [0]
    kept = re.findall(r" corp: (\d+)", output) or [0]
    hang, wrong = answer.returncode == _HANG, WRONG in output
    return Counts(
        executions=_stat(output, "number_of_executed_units"),
        coverage=features[-1],
        new_coverage=features[-1] - features[0],
        kept=int(kept[-1]),
        crashes=int(answer.returncode != 0 and not hang and not wrong),
        hangs=int(hang),
        wrong_kernels=int(wrong),
        peak_bytes=_stat(output, "peak_rss_mb") << 20,
    )


def _stat(output: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s*(\d+)", output)
    return int(found[1]) if found else 0


def as_atheris(arguments: Sequence[str]) -> None:
    """Be the process that atheris runs in; it does not return."""
    import atheris

    with atheris.instrument_imports(include=["pallasc.specs"]):
        import pallasc.specs.bundle.verify  # noqa: F401
    reading = Reading()

    def run_input(data: bytes) -> None:
        reading.read(data[1:], repaired=data[:1] != b"\0")

    atheris.Setup([sys.argv[0], *arguments], run_input)
    atheris.Fuzz()


def mutate(count: int, jobs: int, through: Sequence[str]) -> dict[str, Any]:
    """Damage and forge so many bundles, in processes of their own."""
    from mutations import WRONG

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *sys.path])}
    command = [*through, sys.executable, "-P", str(PROGRAMS / "mutations.py")]
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
        answers = [process.communicate()[0] for process in running]
        if any(process.returncode for process in running):
            raise SystemExit("a process that mutates bundles has ended with an error")
        results += map(json.loads, answers)
    faults = [line for result in results for line in result["wrong"]]
    for line in faults:
        print(line, file=sys.stderr)
    hangs = sum("it took more than" in line for line in faults)
    wrong = sum(WRONG in line for line in faults)
    return {
        "mutations": sum(result["mutations"] for result in results),
        "crashes": len(faults) - hangs - wrong,
        "hangs": hangs,
        "wrong_kernels": wrong,
        "slowest_s": max(result["slowest_s"] for result in results),
        "peak_bytes": max(result["peak_bytes"] for result in results),
    }


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Fuzz, mutate, count."""
    options.findings.mkdir(parents=True, exist_ok=True)
    return list(_figures(options))


def _figures(options: argparse.Namespace) -> Iterator[Figure]:
    if options.mutations:
        found = mutate(options.mutations, options.jobs, options.through.split())
        yield Figure("mutations", found["mutations"])
        yield Figure("of them crashes", found["crashes"], goal=0)
        yield Figure("of them hangs", found["hangs"], goal=0)
        yield Figure("of them wrong kernels", found["wrong_kernels"], goal=0)
        yield Figure("the slowest", found["slowest_s"], "s", goal=LONGEST_S)
        yield Figure("their peak memory", found["peak_bytes"] / 1e6, "MB", goal=MEMORY_BYTES / 1e6)
    if options.minutes:
        seconds, seed, findings = 60 * options.minutes, options.seed, options.findings
        if options.engine == "atheris":
            counts = atheris_engine(seconds, seed, findings, options.through.split())
        else:
            counts = own_engine(seconds, seed, findings)
        yield Figure(f"minutes of fuzzing, engine {options.engine}", options.minutes)
        yield Figure("executions", counts.executions)
        yield Figure("coverage", counts.coverage)
        yield Figure("new coverage, beyond the sound bundle's", counts.new_coverage)
        yield Figure("inputs kept", counts.kept)
        yield Figure("crashes", counts.crashes, goal=0)
        yield Figure("hangs", counts.hangs, goal=0)
        yield Figure("wrong kernels", counts.wrong_kernels, goal=0)
        yield Figure("peak memory", counts.peak_bytes / 1e6, "MB", goal=MEMORY_BYTES / 1e6)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--through", default="", help="a command that starts each process")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()) / "findings")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-atheris"]:
        as_atheris(sys.argv[2:])
    raise SystemExit(run_benchmark(__doc__ or "", measure, _options))
