"""Fuzz the C library and the extension: the reader of flat plans, calls of XLA, calls of Python.

`tests/runtime/native_fuzz.py` describes the inputs, and the tests run some of them. This script
runs many: `--mutations` changed flat plans, `--sites` call sites of XLA, and `--kernels` kernels of
the extension. They are made from the artifacts of a store (`--store`; by default the library is
built). Goals: no sanitizer finding, crash or hang; at most a second per input, and half a gigabyte
of memory. Plans that led to a finding are kept in the folder `--findings`.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from harness import PALLASC, ROOT, Figure, run_benchmark, say

sys.path.append(str(ROOT / "tests" / "runtime"))

BATCH = {"mutations": 1_000_000, "sites": 1_000_000, "kernels": 10_000}
LONGEST_S = 1
MEMORY_BYTES = 2**29


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Fuzz the reader of flat plans, calls of XLA, and calls of Python."""
    import native_fuzz

    if (missing := native_fuzz.why_not()) is not None:
        raise SystemExit(f"fuzz_flat_plan: {missing}")
    (place / "files").mkdir()
    findings = options.findings or place
    files = native_fuzz.write_files(artifacts(options.store, place), place / "files")
    plans = partial(native_fuzz.run, files, findings=findings)
    figures = [*in_batches("mutations", options, plans)]
    figures += in_batches("sites", options, partial(native_fuzz.run_handlers, files))
    if (missing := native_fuzz.why_not_extension()) is None:
        figures += in_batches("kernels", options, native_fuzz.run_extension)
    else:
        say(f"the extension is not fuzzed: {missing}")
    return figures


def artifacts(store: Path | None, place: Path) -> Iterator[tuple[str, Any]]:
    """Yield names and artifacts: those in the store, and small ones made by tests."""
    import native_fuzz
    import native_plans

    from pallasc.cache.store import Store

    if store is None:
        store = place / "store"
        command = [*PALLASC, "build", ROOT / "specs" / "library", "-k", "target=h100-sxm"]
        subprocess.run([*command, "--store", store], check=True)
    yield from native_fuzz.stored(Store(store))
    yield from ((name, make()) for name, make in native_plans.PLANS.items())


def in_batches(
    what: str, options: argparse.Namespace, run: Callable[..., Mapping[str, Any]]
) -> Iterator[Figure]:
    """Run batches, each with another seed; yield their counts."""
    total, findings, worst = Counter[str](), 0, Counter[str]()
    for first in range(0, getattr(options, what), BATCH[what]):
        count = min(BATCH[what], getattr(options, what) - first)
        try:
            found = run(count, seed=options.seed + first)
        except AssertionError as error:
            findings += 1
            say(str(error))
            continue
        for name, value in found.items():
            if name in ("slowest_s", "peak_bytes"):
                worst[name] = max(worst[name], value)
            elif not isinstance(value, list):
                total[name] += value
        say(f"{what}: {first + count}")
    yield Figure(f"{what}: findings", findings, goal=0)
    yield from (Figure(f"{what}: {name}", value) for name, value in total.items())
    if worst:
        yield Figure(f"{what}: slowest", worst["slowest_s"], "s", goal=LONGEST_S)
        peak = worst["peak_bytes"] / 1e6
        yield Figure(f"{what}: peak memory", peak, "MB", goal=MEMORY_BYTES / 1e6)


if __name__ == "__main__":
    counts = {"mutations": 100_000, "sites": 100_000, "kernels": 5_000, "seed": 1}
    raise SystemExit(run_benchmark(__doc__, measure, store=Path, findings=Path, **counts))
