"""Fuzz the C library and the extension: the reader of flat plans, then what XLA and Python call.

Whatever the reader is given, it opens or refuses.

An input is a flat plan of an artifact, with its cubins inside or by digest, of which fields of the
header and of entries, whole entries and tables, texts and cubins are changed; parts of two plans
are joined, plans are cut (`tests/runtime/native/fuzz/mutate.c`). Most get the digest that their
bytes have, so that the checks after it are reached. What opens is asked everything, prepared and
launched on a driver that looks at each address and parameter (`fuzz/driver.c`), and some of it is
held against the rules of launch plans in Python. The reader is compiled with AddressSanitizer and
UndefinedBehaviorSanitizer. What may not happen:

* a finding of a sanitizer, or a crash
* a hang: more than a second of the processor for one input
* a launch that uses memory beyond its arrays, or passes what the plan does not say
* a plan that opens and breaks the rules of Python
* more than half a gigabyte of memory

The input that it happened with is `--findings`/finding.plan. Beside it libFuzzer does the same,
guided by coverage, where clang is installed (`apt-get install clang`). Artifacts are those of a
store (`--store`, as `pallasc build --store` fills it), else the example kernels, which are built.

Handlers get call sites of a program of XLA: with such plans, sound or changed, with attributes that
are missing or of another type, and with buffers of other counts, dtypes, ranks and sizes
(`fuzz/handlers.c`); a call that is sound has to be executed. The extension gets damaged words, odd
arrays, streams and exchange APIs, and callbacks that raise, return something else or change what is
used at that moment (`programs/native_odd_calls.py`). `--through "nice -n 19"` has each
process started by a command.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import Figure, run_benchmark

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "runtime"))

BATCH = 1_000_000
KERNELS_AT_ONCE = 10_000
LONGEST_S = 1
MEMORY_BYTES = 2**29
CLANGS = ("clang", "clang-14")


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Fuzz with our mutations, then with libFuzzer."""
    import native_fuzz

    if (missing := native_fuzz.why_not()) is not None:
        raise SystemExit(f"fuzz_flat_plan: {missing}")
    options.findings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as name:
        folder, kept = Path(name) / "files", Path(name) / "kept"
        folder.mkdir()
        kept.mkdir()
        files = native_fuzz.write_files(_artifacts(options.store, Path(name)), folder)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            beside = threads.submit(lambda: list(_libfuzzer(options, files, Path(name))))
            found = [*_mutations(options, files, kept), *_handlers(options, files)]
            found += _extension(options)
            return [*found, *beside.result()]


def _artifacts(store: Path | None, folder: Path) -> Iterator[tuple[str, Any]]:
    import native_fuzz
    import native_plans

    from pallasc.cache.store import Store

    if store is None:
        store = folder / "store"
        command = [sys.executable, "-P", "-m", "pallasc", "build", "examples/specs"]
        subprocess.run([*command, "--store", store], cwd=ROOT, check=True)
    yield from native_fuzz.stored(Store(store))
    for name, artifact in native_plans.PLANS.items():
        yield name, artifact()


def _mutations(options: argparse.Namespace, files: Sequence[Path], kept: Path) -> Iterator[Figure]:
    import flat_rules
    import native_fuzz

    counts: list[Mapping[str, Any]] = []
    crashes, left, seed = 0, options.mutations, options.seed
    while left > 0:
        try:
            counts.append(
                native_fuzz.run(
                    files, min(BATCH, left), seed=seed, findings=options.findings,
                    through=options.through.split(), keep=kept,
                )
            )  # fmt: skip
        except AssertionError as error:
            crashes += 1
            print(error, file=sys.stderr)
        left, seed = left - BATCH, seed + 1
        print(f"{options.mutations - max(0, left)} mutations", file=sys.stderr)
    yield Figure(
        "flat plans that were changed",
        len({file.name[:16] for file in files if file.suffix == ".plan"}),
    )
    yield Figure("mutated inputs", sum(count["inputs"] for count in counts))
    sound = sum(count["sound"] for count in counts)
    for number, name in enumerate(native_fuzz.STATUS):
        total = sum(count["opened"][number] for count in counts)
        if number == 0:
            yield Figure("of them opened", total - sound)
        elif total:
            yield Figure(f"of them refused, {name}", total)
    yield Figure("prepared on the watching driver", _total(counts, "prepared"))
    yield Figure("launches there", _total(counts, "launched"))
    yield Figure("tensor maps encoded or changed", sum(count["maps"] for count in counts))
    yield Figure("crashes, findings of sanitizers, hangs", crashes, goal=0)
    samples = sorted(kept.iterdir())
    yield Figure("opened plans held against the rules in Python", len(samples))
    blobs = {file.name: file for file in files if file.suffix != ".plan"}

    def find(key: str) -> bytes | None:
        return blobs[key].read_bytes() if key in blobs else None

    broken = [why for file in samples if (why := flat_rules.broken(file.read_bytes(), find))]
    print("\n".join(broken[:10]), file=sys.stderr)
    yield Figure("of them refused by Python", len(broken), goal=0)
    slowest = max((count["slowest_s"] for count in counts), default=0.0)
    yield Figure("the slowest", slowest, "s", goal=LONGEST_S)
    peak = max((count["peak_bytes"] for count in counts), default=0)
    yield Figure("peak memory", peak / 1e6, "MB", goal=MEMORY_BYTES / 1e6)
    yield Figure("time", sum(count["seconds"] for count in counts), "s")


def _handlers(options: argparse.Namespace, files: Sequence[Path]) -> Iterator[Figure]:
    """Make odd call sites of XLA."""
    import native_fuzz

    counts: list[Mapping[str, int]] = []
    findings = 0
    for first in range(0, options.sites, BATCH):
        try:
            counts.append(
                native_fuzz.run_handlers(
                    files, min(BATCH, options.sites - first), seed=options.seed, first=first,
                    through=options.through.split(),
                )
            )  # fmt: skip
        except AssertionError as error:
            findings += 1
            print(error, file=sys.stderr)
    for name, what in (
        ("sites", "call sites of XLA"),
        ("instantiated", "of them instantiated"),
        ("executed", "executions there"),
        ("not_executed", "executions refused"),
    ):
        yield Figure(what, sum(count[name] for count in counts))
    yield Figure("findings in handlers", findings, goal=0)


def _extension(options: argparse.Namespace) -> Iterator[Figure]:
    """Call the extension oddly."""
    import native_fuzz

    if (missing := native_fuzz.why_not_extension()) is not None:
        print(f"the extension is not fuzzed: {missing}", file=sys.stderr)
        return
    counts: list[Mapping[str, int]] = []
    findings = 0
    for first in range(0, options.kernels, KERNELS_AT_ONCE):
        count = min(KERNELS_AT_ONCE, options.kernels - first)
        try:
            through = options.through.split()
            counts.append(
                native_fuzz.run_extension(count, seed=options.seed, first=first, through=through)
            )
        except AssertionError as error:
            findings += 1
            print(error, file=sys.stderr)
    yield Figure("kernels of the extension", sum(count["cases"] for count in counts))
    for name in ("launched", "left to Python", "exceptions"):
        yield Figure(f"calls there, {name}", sum(count.get(name, 0) for count in counts))
    yield Figure("findings in the extension", findings, goal=0)


def _total(counts: Sequence[Mapping[str, Any]], name: str) -> int:
    return sum(count[name][0] for count in counts)


def _libfuzzer(
    options: argparse.Namespace, files: Sequence[Path], folder: Path
) -> Iterator[Figure]:
    import native_fuzz

    if not options.minutes:
        return
    found = [name for name in CLANGS if shutil.which(name)]
    clang = found[0] if found else CLANGS[0]
    missing = native_fuzz.why_not(clang, fuzzer=True)
    if missing is not None:
        print(f"no libFuzzer: {missing}; install clang and its runtime.", file=sys.stderr)
        return
    corpus, blobs = folder / "corpus", folder / "blobs"
    corpus.mkdir()
    blobs.mkdir()
    for file in files:
        (corpus if file.suffix == ".plan" else blobs).joinpath(file.name).symlink_to(file)
    command = [
        *options.through.split(), native_fuzz.build(clang, fuzzer=True), corpus,
        f"-max_total_time={60 * options.minutes:.0f}", f"-seed={options.seed}",
        f"-timeout={10 * LONGEST_S}", f"-rss_limit_mb={MEMORY_BYTES >> 20}",
        "-print_final_stats=1", f"-max_len={1 << 15}",
        f"-artifact_prefix={options.findings}{os.sep}",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env=native_fuzz.environment(FILES=str(blobs)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        print(done.stdout[-6000:], file=sys.stderr)
    features = [int(number) for number in re.findall(r" ft: (\d+) ", done.stdout)] or [0]
    yield Figure("minutes of libFuzzer", options.minutes)
    yield Figure("its executions", _stat(done.stdout, "number_of_executed_units"))
    yield Figure("its features at first", features[0])
    yield Figure("its features at the end", features[-1])
    yield Figure("its findings", int(done.returncode != 0), goal=0)
    yield Figure(
        "its peak memory", _stat(done.stdout, "peak_rss_mb"), "MB", goal=MEMORY_BYTES / 1e6
    )


def _stat(output: str, name: str) -> int:
    found = re.search(rf"stat::{name}:\s*(\d+)", output)
    return int(found[1]) if found else 0


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--sites", type=int, default=100_000, help="call sites of XLA")
    parser.add_argument("--kernels", type=int, default=5_000, help="that the extension launches")
    parser.add_argument("--minutes", type=float, default=1, help="of libFuzzer")
    parser.add_argument("--store", type=Path, help="where artifacts are taken from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--through", default="", help="a command that starts each process")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()) / "findings")


if __name__ == "__main__":
    raise SystemExit(run_benchmark(__doc__ or "", measure, _options))
