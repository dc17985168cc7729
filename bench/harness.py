"""Code shared by all benchmarks: options, timings in turn, figures with goals.

Goals are for ratios to a rival that is measured in the same run, so that a busy machine slows both.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (sys.executable, "-P")
PALLASC = (*PYTHON, "-m", "pallasc")

Times = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Figure:
    """A measured value.

    Attributes:
        name, value, unit: what was measured.
        goal: the maximum of the value, None if there is none.
        at_least: True if the goal is a minimum instead.
    """

    name: str
    value: float
    unit: str = ""
    goal: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """True if the goal is met, or if there is none."""
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
    description: str | None,
    measure: Callable[[argparse.Namespace, Path], Sequence[Figure]],
    positional: str | None = None,
    **options: Any,
) -> int:
    """Parse the command line, measure, and print the figures; return 1 if `--check` finds a miss.

    Args:
        description: the docstring of the benchmark.
        measure: gets the options and an empty folder, and returns the figures.
        positional: name of a path to pass.
        options: other options, with their defaults by name. False stands for a flag; a tuple for an
            option that may be repeated, with these choices, if any; `Path` for a path without a
            default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if positional:
        parser.add_argument(positional, type=Path)
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, **_keywords(default))
    parser.add_argument("--folder", type=Path, help="where temporary files are written")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
    chosen = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have bytecode
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-", dir=chosen.folder) as place:
        figures = measure(chosen, Path(place))
    if chosen.json:
        print(json.dumps(_report(figures), indent=1, sort_keys=True))
    else:
        print("\n".join(map(str, figures)))
    return 1 if chosen.check and not all(figure.met for figure in figures) else 0


def _keywords(default: Any) -> dict[str, Any]:
    if default is False:
        return {"action": "store_true"}
    if default is Path:
        return {"type": Path}
    if isinstance(default, tuple):
        return {"action": "append", "choices": default or None}
    return {"type": type(default), "default": default, "help": f"default: {default}"}


def _report(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "schema": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }


def say(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def in_turn(
    works: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: bool = True
) -> Times:
    """Call each work in turn, `rounds` times; return the seconds that the works return.

    Args:
        works: the works by name.
        rounds: number of calls of each.
        warm_up: first run a round that is not counted, to write bytecode and read from disk.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + warm_up):
        for name, work in works.items():
            times[name].append(work())
        say(", ".join(f"{name}: {own[-1]:.3f} s" for name, own in times.items()))
    return {name: own[warm_up:] for name, own in times.items()}


def ratio(times: Times, first: str, second: str) -> float:
    """Return the median of the ratios, round by round."""
    pairs = zip(times[first], times[second], strict=True)
    return statistics.median(a / b for a, b in pairs)


def medians(times: Times, prefix: str = "") -> list[Figure]:
    """Return the median seconds of each work."""
    return [Figure(f"{prefix}{name}", statistics.median(own), "s") for name, own in times.items()]


def timed(work: Callable[..., object], *arguments: Any, **named: Any) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work(*arguments, **named)
    return time.perf_counter() - began


def timed_process(command: Sequence[Any], **options: Any) -> float:
    """Run a command that must succeed, and return its seconds."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    return timed(subprocess.run, command, check=True, **options)


def build_command(spec: Path, store: Path, *more: str) -> list[str]:
    """Return the command that builds a spec into a store."""
    return [*PALLASC, "build", str(spec), "--store", str(store), *more]
