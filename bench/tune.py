"""Tuned kernels: `tune pick` and `tune plan` on published data, and look-ups at launch.

Without `--part`, all parts run whose data are available:

* pick: the number of configurations that are enough for the times of AutoHeuristic's data sets for
  PyTorch (AlnisM/autoheuristic-datasets, commit 3ed2bc4; `--autoheuristic` names the folder with
  its zip files). The configurations are chosen by some times of each pair, and judged by the
  others. Goal: with a quarter of the configurations, the geometric mean over the shapes is at most
  3 % above the best configuration of each shape.
* pruning: the configurations that `tune plan` drops, of those that Tokamax 0.0.17 tries, judged by
  its published winners, and of the tunings of JAX's kernels (`results/tune_pruning.json`). Goals:
  at least half of them are dropped, and no winner. Shapes were sampled in the order of their
  SHA-256. The sample `fit` was used to fit `tuning/plan.py`; `judge` and `later` were not. A winner
  is kept if the artifact of its configuration is in the job.
* lookup: see `tune_lookup.py`.
"""

import argparse
import csv
import io
import json
import math
import statistics
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tune_lookup
from harness import ROOT, Figure, run_benchmark

from pallasc.tuning.pick import Chosen, choose
from pallasc.tuning.plan import DEFAULT_SHARE, Facts, Point, prune

RECORDS = ROOT / "bench" / "results" / "tune_pruning.json"
DATA_SETS = {
    "matmul, H100": ("h100_mm.zip", "h100/h100_mm.txt"),
    "matmul with int8 weights, H100": ("mixedmm_h100_data.zip", "mixedmm_h100_data.txt"),
    "flex attention, H100": ("flexattention_h100_data.zip", "flexattention_data_h100.txt"),
    "matmul, A100": ("a100_mm.zip", "a100/a100_mm.txt"),
    "matmul with int8 weights, A100": ("mixedmm_a100_data.zip", "mixedmm_a100_data.txt"),
    "flex attention, A100": ("flexattention_a100_data.zip", "flexattention_data_a100.txt"),
}
LEAST_REPEATS, LEAST_TRIED = 3, 5
SHARE, MEAN_PERCENT = 0.25, 3.0
LEAST_PERCENT = 100 * (1 - DEFAULT_SHARE)

Times = Mapping[str, Mapping[str, Sequence[float]]]
"""Shape -> configuration -> milliseconds."""


def pick(options: argparse.Namespace, _: Path) -> Iterator[Figure]:
    """Yield the loss of each data set."""
    if options.autoheuristic is None:
        return
    for name, (archive, member) in DATA_SETS.items():
        times = read_times(options.autoheuristic / archive, member)
        names = sorted({own for tried in times.values() for own in tried})
        chosen = pick_few(times, names)
        losses = list(lost(times, chosen))
        what = f"pick, {name}, {len(times)} shapes, {len(names)} configurations"
        mean = 100 * math.expm1(statistics.mean(losses))
        yield Figure(f"{what}: share used", len(chosen.used) / len(names), goal=SHARE)
        yield Figure(f"{what}: geometric mean over the best", mean, "%", goal=MEAN_PERCENT)
        yield Figure(f"{what}: the worst shape", 100 * math.expm1(max(losses)), "%")
        yield Figure(f"{what}: shapes without a time", len(times) - len(losses), goal=0)


def read_times(archive: Path, member: str) -> Times:
    """Read the shapes with several Triton configurations, each measured three times.

    The files have lines of CSV after one line of JSON; the last two columns are configuration and
    milliseconds.
    """
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with zipfile.ZipFile(archive) as file, file.open(member) as stream:
        lines = csv.reader(io.TextIOWrapper(stream, "utf-8"))
        next(lines)
        width = len(next(lines))
        for line in lines:
            if len(line) == width and line[-2].startswith("type=triton"):
                times[",".join(line[:-2])][line[-2]].append(float(line[-1]))
    whole = {
        shape: {
            name: ms
            for name, ms in tried.items()
            if len(ms) >= LEAST_REPEATS and all(map(math.isfinite, ms)) and min(ms) > 0
        }
        for shape, tried in times.items()
    }
    return {shape: tried for shape, tried in whole.items() if len(tried) >= LEAST_TRIED}


def pick_few(times: Times, names: Sequence[str]) -> Chosen:
    """Choose a quarter of the configurations by the first time of each pair."""
    losses = []
    for tried in times.values():
        best = min(ms[0] for ms in tried.values())
        losses.append({name: math.log(ms[0] / best) for name, ms in tried.items()})
    near = [{name for name, loss in own.items() if loss <= math.log(1.03)} for own in losses]
    return choose(losses, near, most=max(1, len(names) // 4))


def lost(times: Times, chosen: Chosen) -> Iterator[float]:
    """Yield the logarithm of each shape's loss, by the other times of each pair."""
    for tried, use in zip(times.values(), chosen.of_key, strict=True):
        if use is not None:
            medians = {name: statistics.median(ms[1:]) for name, ms in tried.items()}
            yield math.log(medians[use] / min(medians.values()))


class Pruned(NamedTuple):
    """Counts of some keys: points, points kept, keys with a winner, winners kept.

    `chance` is the expected number of winners kept if as many artifacts were drawn at random.
    """

    points: int
    kept: int
    shapes: int = 0
    winners: int = 0
    chance: float = 0.0


def total(rows: Sequence[Pruned]) -> Pruned:
    """Add counts."""
    return Pruned(*map(sum, zip(*rows, strict=True)))


def pruning(_: argparse.Namespace, __: Path) -> Iterator[Figure]:
    """Yield the share of dropped points, and the number of published winners that are kept."""
    records = json.loads(RECORDS.read_text(encoding="utf-8"))
    facts = []
    for number, (spill, smem, _, waves, _, _, mbarriers, *_) in enumerate(records["artifacts"]):
        facts.append(Facts(str(number), spill, smem, waves, mbarriers))
    groups: dict[str, list[Pruned]] = defaultdict(list)
    for shape in records["shapes"]:
        found = prune_shape(shape, facts)
        groups[f"{shape['op']} on {shape['target']}"].append(found)
        groups[shape["half"]].append(found)
    for name, rows in groups.items():
        own = total(rows)
        yield Figure(f"{name}: winners kept", own.winners, goal=own.shapes, at_least=True)
        if " on " in name:
            yield Figure(f"{name}: winners kept by chance", own.chance)
            yield dropped(name, own)
    several = {key: own for key, own in records["jax"].items() if len(own) > 1}
    numbers = [(key, number) for key, own in several.items() for number in own]
    points = [make_point(i, number, facts, key) for i, (key, number) in enumerate(numbers)]
    prune(points)
    yield dropped("JAX's tunings", Pruned(len(points), sum(bool(one.rank) for one in points)))


def prune_shape(shape: Mapping[str, Any], facts: Sequence[Facts]) -> Pruned:
    """Prune the points of a shape."""
    points = [make_point(i, number, facts) for i, number in enumerate(shape["points"])]
    prune(points)
    kept = [one.facts for one in points if one.rank]
    winner = shape["points"][shape["winner"]]
    is_kept = winner is not None and facts[winner] in kept
    artifacts = {number for number in shape["points"] if number is not None}
    return Pruned(len(points), len(kept), 1, int(is_kept), len(kept) / len(artifacts))


def make_point(index: int, number: int | None, facts: Sequence[Facts], key: str = "") -> Point:
    """Return a point with the number of its artifact, None if it did not compile."""
    if number is None:
        return Point(str(index), (key,), None, rule="failed", why="it did not compile")
    return Point(str(index), (key,), facts[number])


def dropped(name: str, own: Pruned) -> Figure:
    """Return the share that is dropped."""
    share = 100 * (own.points - own.kept) / own.points
    return Figure(f"{name}: dropped", share, "%", goal=LEAST_PERCENT, at_least=True)


PARTS = {
    "lookup": tune_lookup.figures,
    "pick": pick,
    "pruning": pruning,
}


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Measure all parts, or those that `--part` names."""
    return [one for name in options.part or PARTS for one in PARTS[name](options, place)]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, part=tuple(PARTS), autoheuristic=Path))
