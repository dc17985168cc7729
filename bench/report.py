"""`pallasc report` of the 153 variants of examples/jax_tuning.yaml: size, time, first paint.

Goals: at most 15 MB, written in at most 30 s from a warm store, first drawn in at most 1 s in a
browser. That needs chromium and chromedriver; the figure is left out where they are missing.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import Figure, run_benchmark, timed_process

SPEC = Path(__file__).parents[1] / "examples" / "jax_tuning.yaml"
MOST_MB, MOST_S, MOST_PAINT_S = 15, 30, 1
PAINT = "return performance.getEntriesByName('first-contentful-paint').map(e => e.startTime)"
DRAWN = "return 'ready' in document.querySelector('.page.open').dataset && performance.now()"


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Write the report some times, and open it."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        store, output = Path(folder, "store"), Path(folder, "report.html")
        if options.store:
            shutil.copytree(options.store, store)
        command = [sys.executable, "-P", "-m", "pallasc"]
        tail = [str(SPEC), "--store", str(store)]
        subprocess.run([*command, "build", *tail, "-q"], check=True)
        times = []
        for _ in range(options.rounds):
            seconds = timed_process([*command, "report", *tail, "-q", "-o", str(output)])
            times.append(seconds)
            print(f"report {seconds:.2f} s", file=sys.stderr)
        return [
            Figure("size", output.stat().st_size / 1e6, "MB", goal=MOST_MB),
            Figure("from a warm store", statistics.median(times), "s", goal=MOST_S),
            *_paints(output, Path(folder, "profile"), options.rounds * 3),
        ]


def _paints(file: Path, profile: Path, rounds: int) -> list[Figure]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "reports"))
    from report_browser import CHROMIUM, DRIVER, Browser

    if CHROMIUM is None or DRIVER is None:
        print("no chromium and chromedriver: nothing is drawn", file=sys.stderr)
        return []
    paints, ready = [], []
    browser = Browser(profile)
    try:
        for _ in range(rounds):
            browser.open(file)
            browser.wait(f"{PAINT.removesuffix('.map(e => e.startTime)')}.length")
            paints += [paint / 1e3 for paint in browser.run(PAINT)]
            ready.append(browser.run(DRAWN) / 1e3)
    finally:
        browser.close()
    return [
        Figure("first contentful paint", statistics.median(paints), "s", goal=MOST_PAINT_S),
        Figure("first page ready", statistics.median(ready), "s"),
    ]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--store", type=Path, metavar="PATH", help="a store that has the variants")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
