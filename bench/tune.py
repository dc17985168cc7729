"""Tuned kernels: `tune plan` on published data, and look-ups at launch.

Without `--part`, all parts run:

* pruning: how many configurations `tune plan` drops, of the configurations that Tokamax 0.0.17
  tries and of the tunings of JAX's kernels (`results/tune_pruning.json`). Goals: at least half of
  them are dropped, and none of Tokamax's published winners. Shapes were sampled in the order of
  their SHA-256. The sample `fit` was used to fit `tuning/plan.py`; `judge` and `later` were not. A
  winner is kept if the artifact of its configuration is in the job.
* lookup: see `tune_lookup.py`.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tune_lookup
from harness import ROOT, Figure, run_benchmark

from pallasc.tuning.plan import DEFAULT_SHARE, Facts, Point, prune

RECORDS = ROOT / "bench" / "results" / "tune_pruning.json"
LEAST_PERCENT = 100 * (1 - DEFAULT_SHARE)


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
    """Return the share of points that are dropped."""
    share = 100 * (own.points - own.kept) / own.points
    return Figure(f"{name}: dropped", share, "%", goal=LEAST_PERCENT, at_least=True)


PARTS = {
    "lookup": tune_lookup.figures,
    "pruning": pruning,
}


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Measure all parts, or those that `--part` names."""
    return [one for name in options.part or PARTS for one in PARTS[name](options, place)]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, part=tuple(PARTS)))
