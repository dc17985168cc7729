"""What the benchmarks share: figures with goals, `--json`, `--check`, and paired timings.

A figure is a ratio against a rival measured in the same run, so that a noisy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A measured value; `goal` is the most it may be, None where there is none.

    `at_least` turns the goal into the least it may be.
    """

    name: str
    value: float
    unit: str = ""
    goal: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Tell whether the goal is met; a figure without one always is."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def __str__(self) -> str:
        text = f"{self.name}: {self.value:.4g}{' ' + self.unit if self.unit else ''}"
        if self.goal is None:
            return text
        bound = "at least" if self.at_least else "at most"
        return f"{text} (goal: {bound} {self.goal:g}; {'met' if self.met else 'MISSED'})"


def run_benchmark(
    description: str,
    measure: Callable[[argparse.Namespace], Sequence[Figure]],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> int:
    """Parse the command line, measure, print the figures last; 1 where `--check` misses a goal."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit 1 where a goal is missed")
    add_options(parser)
    options = parser.parse_args()
    figures = measure(options)
    if options.json:
        print(json.dumps(_report(figures), indent=1, sort_keys=True))
    else:
        print("\n".join(map(str, figures)))
    return 1 if options.check and not all(figure.met for figure in figures) else 0


def _report(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {_cores()} cores",
        "python": platform.python_version(),
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))


def paired(
    first: Callable[[], float], second: Callable[[], float], rounds: int
) -> tuple[list[float], list[float]]:
    """Time two things in turn; each call returns its seconds."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds):
        times[0].append(first())
        times[1].append(second())
        print(f"round {index + 1}: {times[0][-1]:.3f} s, {times[1][-1]:.3f} s", file=sys.stderr)
    return times


def median_ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the median of the ratios, pair by pair."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def timed_process(command: Sequence[str], **options: Any) -> float:
    """Run a command that must succeed and return its seconds, from start to end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)
    return time.perf_counter() - began
