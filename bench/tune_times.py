"""Published times of tuned kernels, read from where their owners publish them.

* Tokamax's tables: `tokamax/data/autotuning/DEVICE/OP.json` of its repository (openxla/tokamax,
  read to 99ee973), in each commit that changed one, and of the installed package (0.0.17). They
  hold the configuration that was fastest for a shape, so several for one shape are those of several
  commits. Five times each.
* AutoHeuristic's data sets for PyTorch (AlnisM/autoheuristic-datasets, commit 3ed2bc4): Triton's
  configurations of matrix products and attention on H100 and A100, nearly every shape measured with
  every configuration that was tried for it, three times or more. `zip` files with lines of CSV
  after one line of JSON; the last two columns are configuration and milliseconds.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import statistics
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TABLES = "tokamax/data/autotuning"
DATA_SETS = {
    "matmul, H100": ("h100_mm.zip", "h100/h100_mm.txt"),
    "matmul with int8 weights, H100": ("mixedmm_h100_data.zip", "mixedmm_h100_data.txt"),
    "flex attention, H100": ("flexattention_h100_data.zip", "flexattention_data_h100.txt"),
    "matmul, A100": ("a100_mm.zip", "a100/a100_mm.txt"),
    "matmul with int8 weights, A100": ("mixedmm_a100_data.zip", "mixedmm_a100_data.txt"),
    "flex attention, A100": ("flexattention_a100_data.zip", "flexattention_data_a100.txt"),
}
LEAST_REPEATS, LEAST_TRIED = 3, 5


class Published(NamedTuple):
    """Times of one kernel on one GPU.

    Attributes:
        name: the kernel and the GPU.
        fit: milliseconds by shape and configuration, to choose by.
        judge: others of the same, to judge by.
        again: of pairs that were measured in several commits: slowest over fastest.
    """

    name: str
    fit: dict[str, dict[str, float]]
    judge: dict[str, dict[str, float]]
    again: Sequence[float] = ()

    @property
    def configurations(self) -> list[str]:
        """All that was measured for some shape."""
        return sorted({name for own in self.fit.values() for name in own})


def autoheuristic(folder: Path, name: str) -> Published:
    """Return a data set: the first time of each pair to choose by, the median of others to judge.

    Only configurations of the kernel itself count, not the vendor's library, and shapes with
    several configurations that were each measured three times.
    """
    archive, member = DATA_SETS[name]
    times: dict[str, dict[str, list[float]]] = {}
    with zipfile.ZipFile(folder / archive) as file, file.open(member) as stream:
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8"))
        next(lines)
        width = len(next(lines))
        for line in lines:
            if len(line) == width and line[-2].startswith("type=triton"):
                own = times.setdefault(",".join(line[:-2]), {})
                own.setdefault(line[-2], []).append(float(line[-1]))
    fit: dict[str, dict[str, float]] = {}
    judge: dict[str, dict[str, float]] = {}
    for shape, tried in times.items():
        whole = {
            key: ms
            for key, ms in tried.items()
            if len(ms) >= LEAST_REPEATS and all(map(math.isfinite, ms)) and min(ms) > 0
        }
        if len(whole) >= LEAST_TRIED:
            fit[shape] = {key: ms[0] for key, ms in whole.items()}
            judge[shape] = {key: statistics.median(ms[1:]) for key, ms in whole.items()}
    return Published(name, fit, judge)


def tokamax(repository: Path | None, device: str, operation: str) -> Published:
    """Return a table of Tokamax: the first, third and fifth times choose, the others judge.

    Args:
        repository: a clone of its repository, with history; None for the installed package.
        device: the name of its folder.
        operation: the name of its file.
    """
    # A commit may only rename a field, so the same times are of the name that they had last.
    named: dict[tuple[str, tuple[float, ...]], str] = {}
    for table in _tables(repository, f"{TABLES}/{device}/{operation}.json"):
        for shape, tried in table.items():
            for name, record in tried.items() if isinstance(tried, dict) else ():
                times = record.get("evaluation_times_ms") if isinstance(record, dict) else None
                if times:
                    named[_plain(shape), tuple(times)] = _plain(name)
    latest: dict[str, dict[str, Sequence[float]]] = {}
    medians: dict[tuple[str, str], list[float]] = {}
    for (shape, times), name in named.items():
        latest.setdefault(shape, {})[name] = times
        medians.setdefault((shape, name), []).append(statistics.median(times))
    halves = [
        {
            shape: {name: statistics.median(times[half::2]) for name, times in tried.items()}
            for shape, tried in latest.items()
        }
        for half in (0, 1)
    ]
    again = [max(own) / min(own) for own in medians.values() if len(own) > 1]
    return Published(f"{operation}, {device}", halves[0], halves[1], again)


def installed_tokamax() -> Path | None:
    """Return the folder that holds the installed `tokamax`, None where it is not installed."""
    found = importlib.util.find_spec("tokamax")
    return Path(found.origin).parents[1] if found is not None and found.origin else None


def _tables(repository: Path | None, path: str) -> Iterator[Mapping[str, Any]]:
    """Yield each version of a table, the oldest first, that of the installed package last."""
    texts: list[str] = []
    if repository is not None:
        commits = _git(repository, "log", "--reverse", "--format=%H", "--", path).split()
        texts = [_git(repository, "show", f"{commit}:{path}", check=False) for commit in commits]
    if (root := installed_tokamax()) is not None and (root / path).is_file():
        texts.append((root / path).read_text(encoding="utf-8"))
    for text in dict.fromkeys(texts):
        try:
            table = json.loads(text)
        except ValueError:  # a commit deleted it, or it is a pointer to a large file
            continue
        if isinstance(table, dict):
            yield table


def _plain(text: str) -> str:
    """Return JSON text without what is null or false, as newer versions add such fields."""
    return json.dumps(_without_unset(json.loads(text)), sort_keys=True)


def _without_unset(value: object) -> object:
    if isinstance(value, dict):
        kept = {name: _without_unset(own) for name, own in value.items()}
        return {name: own for name, own in kept.items() if own is not None and own is not False}
    return [_without_unset(own) for own in value] if isinstance(value, list) else value


def _git(repository: Path, *arguments: str, check: bool = True) -> str:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check).stdout
