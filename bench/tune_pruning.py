"""What `pallasc tune plan` drops, judged by winners that were measured and published.

The goal: of the configurations that Tokamax 0.0.17 tries for its Mosaic GPU kernels and of the
tunings of JAX's own kernels at least half are dropped, and no published winner is lost. A winner is
kept where the artifact that its configuration gives is in the job: of equal artifacts one is kept.

Tokamax's tables say which configuration was fastest for a shape, and not how fast the others were.
Shapes were drawn in the order of the SHA-256 of their arguments, and configurations of a shape in
that of arguments and configuration: all that Tokamax tries where these are few, else a sample, so
that a rank in it is an estimate of the rank among all. Shapes for which fewer than six are tried
were passed over. Of the first 46 every second one was used to fit `tuning/rules.py`, the
others judge. Which figures the ranking has was chosen with both halves in view; the weights are of
the first. The shapes of `later` were judged when all that was settled, and looked at once.
For JAX's tunings nothing is published, so nothing says whether the best of them is kept.

`tune_pruning_points.py` compiles the points and writes the records that this reads.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import Figure

from pallasc.tuning.rules import DEFAULT_SHARE, Facts, Point, prune

RECORDS = Path(__file__).parent / "results" / "tune_pruning.json"
GROUPS = ("fit", "judge", "later")
LEAST_PERCENT = 100 * (1 - DEFAULT_SHARE)


class Judged(NamedTuple):
    """What became of the points of some keys.

    Attributes:
        points: all of them.
        compiled: those that gave an artifact.
        kept: those that are measured.
        shapes, winners: keys with a published winner, and those that keep it.
        chance: how many would keep it if as many artifacts were drawn at random.
    """

    points: int = 0
    compiled: int = 0
    kept: int = 0
    shapes: int = 0
    winners: int = 0
    chance: float = 0.0

    def __add__(self, other: object) -> Judged:
        """Return both together."""
        if not isinstance(other, Judged):
            return NotImplemented
        return Judged(
            self.points + other.points,
            self.compiled + other.compiled,
            self.kept + other.kept,
            self.shapes + other.shapes,
            self.winners + other.winners,
            self.chance + other.chance,
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add where the records are."""
    parser.add_argument(
        "--pruning-records", type=Path, default=RECORDS, help="what tune_pruning_points.py wrote"
    )


def figures(options: argparse.Namespace) -> Sequence[Figure]:
    """Return how many points are dropped, and how many published winners are kept."""
    records = json.loads(options.pruning_records.read_text(encoding="utf-8"))
    facts = [Facts(str(number), *values) for number, values in enumerate(records["artifacts"])]
    families: dict[str, Judged] = {}
    groups = dict.fromkeys(GROUPS, Judged())
    for shape in records["shapes"]:
        judged = judge(shape, facts)
        name = f"{shape['op']} on {shape['target']}"
        families[name] = families.get(name, Judged()) + judged
        groups[shape["half"]] += judged
    alone, jax = _jax(records["jax"], facts)
    return [
        *(figure for name, judged in families.items() for figure in _of_family(name, judged)),
        *(
            Figure(f"winners kept, {name}", 100 * own.winners / own.shapes, "%", 100, at_least=True)
            for name, own in groups.items()
        ),
        Figure("JAX: tunings with an alternative", jax.points),
        Figure(
            "JAX: dropped of these", _dropped(jax.points, jax.kept), "%", LEAST_PERCENT,
            at_least=True,
        ),
        Figure("JAX: dropped of all", _dropped(jax.points + alone, jax.kept + alone), "%"),
    ]  # fmt: skip


def judge(shape: Mapping[str, Any], facts: Sequence[Facts]) -> Judged:
    """Return what becomes of the points of a shape."""
    points = [_point(number, own, facts) for number, own in enumerate(shape["points"])]
    prune(points)
    kept = [point.facts for point in points if point.rank]
    winner = shape["points"][shape["winner"]]
    return Judged(
        points=len(points),
        compiled=sum(point.facts is not None for point in points),
        kept=len(kept),
        shapes=1,
        winners=int(winner is not None and facts[winner] in kept),
        chance=len(kept) / len({own for own in shape["points"] if own is not None}),
    )


def _point(number: int, artifact: int | None, facts: Sequence[Facts], key: str = "") -> Point:
    if artifact is None:
        return Point(str(number), (key,), None, rule="failed", why="it did not compile")
    return Point(str(number), (key,), facts[artifact])


def _of_family(name: str, judged: Judged) -> Iterator[Figure]:
    yield Figure(f"{name}: shapes", judged.shapes)
    yield Figure(f"{name}: winners kept", judged.winners, "", judged.shapes, at_least=True)
    yield Figure(f"{name}: winners kept by chance", round(judged.chance, 1))
    yield Figure(
        f"{name}: dropped", _dropped(judged.points, judged.kept), "%", LEAST_PERCENT, at_least=True
    )
    yield Figure(f"{name}: dropped of what compiles", _dropped(judged.compiled, judged.kept), "%")


def _jax(keys: Mapping[str, Sequence[int]], facts: Sequence[Facts]) -> tuple[int, Judged]:
    """Return how many variants are the only one of their key, and what becomes of the others."""
    several = {key: own for key, own in keys.items() if len(own) > 1}
    points = [_point(number, number, facts, key) for key, own in several.items() for number in own]
    prune(points)
    kept = sum(bool(point.rank) for point in points)
    return len(keys) - len(several), Judged(points=len(points), compiled=len(points), kept=kept)


def _dropped(points: int, kept: int) -> float:
    return round(100 * (points - kept) / points, 1)
