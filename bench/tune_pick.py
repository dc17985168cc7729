"""`pallasc tune pick` on published times: how few configurations, and what that costs.

The goal is at most 3 % of geometric mean over the best of each shape, with at most a quarter of the
configurations. Some times choose and others of the same pairs judge.

Tokamax's tables cannot judge that as it is worded. They name the winner of each shape and not what
lost, so a shape has one time, or a few from several commits. A quarter of these pairs is less than
one for each shape, and a configuration without a time is neither good nor bad. The figures say how
many configurations are needed for each shape to have any published time at all: more than a
quarter. A quarter is judged on the shapes that it has times for. The goal itself is held to on
AutoHeuristic's data, where most pairs were measured.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import Figure
from tune_times import DATA_SETS, Published, autoheuristic, installed_tokamax, tokamax

from pallasc.tuning.choose import Chosen, choose

WITHIN = math.log(1.03)
SHARE, MEAN_PERCENT = 0.25, 3.0
LEAST_SHAPES = 20
TOKAMAX = (
    ("nvidia_h100_80gb_hbm3", "pallas_mosaic_gpu_gated_linear_unit"),
    ("nvidia_h100_80gb_hbm3", "pallas_mosaic_gpu_ragged_dot"),
    ("nvidia_h100_80gb_hbm3", "pallas_mosaic_gpu_flash_attention"),
    ("nvidia_h100_80gb_hbm3", "pallas_mosaic_gpu_flash_attention_vjp"),
    ("nvidia_b200", "pallas_mosaic_gpu_ragged_dot"),
    ("nvidia_a100-sxm4-40gb", "pallas_mosaic_gpu_gated_linear_unit"),
    ("nvidia_h100_80gb_hbm3", "pallas_triton_gated_linear_unit"),
    ("nvidia_h100_80gb_hbm3", "pallas_triton_ragged_dot"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add where the times are."""
    parser.add_argument(
        "--tokamax-repository",
        type=Path,
        help="clone of openxla/tokamax: the history of its tables, beside the installed package",
    )
    parser.add_argument(
        "--autoheuristic",
        type=Path,
        help="folder with the zip files of AlnisM/autoheuristic-datasets",
    )


def figures(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of all times that are there."""
    found = list[Figure]()
    if options.autoheuristic is not None:
        for name in DATA_SETS:
            found += _judged(autoheuristic(options.autoheuristic, name))
    if options.tokamax_repository is not None or installed_tokamax() is not None:
        for device, operation in TOKAMAX:
            found += _of_winners(tokamax(options.tokamax_repository, device, operation))
    return found


def _judged(times: Published) -> Iterator[Figure]:
    """Yield figures of times that can judge: most configurations have one for each shape."""
    count = len(times.configurations)
    every = _chosen(times)
    few = _chosen(times, most=max(1, count // 4))
    name = f"pick, {times.name}, {len(times.fit)} shapes"
    yield Figure(f"{name}: within 3 % each, of {count} configurations", len(every.columns))
    mean, worst, _ = _lost(times, every)
    yield Figure(f"{name}: within 3 % each, geometric mean over the best", mean, "%")
    yield Figure(f"{name}: within 3 % each, the worst shape", worst, "%")
    yield Figure(f"{name}: a quarter at most, share used", len(few.columns) / count, "", SHARE)
    mean, worst, missing = _lost(times, few)
    yield Figure(
        f"{name}: a quarter at most, geometric mean over the best", mean, "%", MEAN_PERCENT
    )
    yield Figure(f"{name}: a quarter at most, the worst shape", worst, "%")
    yield Figure(f"{name}: a quarter at most, shapes without a time", missing, "", 0)


def _of_winners(times: Published) -> Iterator[Figure]:
    """Yield figures of tables that have winners only."""
    if not times.fit:
        return
    count, shapes = len(times.configurations), len(times.fit)
    name = f"pick, Tokamax's {times.name}, {shapes} shapes"
    pairs = sum(map(len, times.fit.values()))
    yield Figure(f"{name}: times for each shape, of {count} configurations", pairs / shapes)
    needed = len(_chosen(times, within=math.inf).columns)
    yield Figure(f"{name}: share of {count} configurations that has any time", needed / count)
    few = _chosen(times, most=max(1, count // 4))
    mean, _, missing = _lost(times, few)
    yield Figure(f"{name}: a quarter, share of shapes with a time", 1 - missing / shapes)
    yield Figure(
        f"{name}: a quarter, geometric mean over the best of those", mean, "%", MEAN_PERCENT
    )
    yield from _densest(name, times)
    if times.again:
        change = 100 * (statistics.median(times.again) - 1)
        yield Figure(
            f"{name}: median change of {len(times.again)} pairs between commits", change, "%"
        )
        yield Figure(f"{name}: largest change between commits", 100 * (max(times.again) - 1), "%")


def _densest(name: str, times: Published) -> Iterator[Figure]:
    """Yield figures of the shapes of which several configurations have a time."""
    several = [shape for shape, own in times.fit.items() if len(own) > 1]
    if len(several) < LEAST_SHAPES:
        return
    dense = Published(
        times.name,
        {shape: times.fit[shape] for shape in several},
        {shape: times.judge[shape] for shape in several},
    )
    count = len(dense.configurations)
    few = _chosen(dense, most=max(1, count // 4))
    mean, _, missing = _lost(dense, few)
    name = f"{name}: {len(several)} with two times or more, {len(few.columns)} of {count}"
    yield Figure(f"{name}, share of shapes with a time", 1 - missing / len(several))
    yield Figure(f"{name}, geometric mean over the best of those", mean, "%", MEAN_PERCENT)


def _chosen(times: Published, *, most: int | None = None, within: float = WITHIN) -> Chosen:
    """Return what is picked by single times: they are too few for the statistics of rounds."""
    place = {name: index for index, name in enumerate(times.configurations)}
    losses = [
        {place[name]: math.log(ms / min(own.values())) for name, ms in own.items()}
        for own in times.fit.values()
    ]
    near = [{column for column, loss in own.items() if loss <= within} for own in losses]
    return choose(losses, near, len(place), most=most)


def _lost(times: Published, chosen: Chosen) -> tuple[float, float, int]:
    """Return the geometric mean and the most that shapes lose, in percent, and shapes without."""
    names, losses, missing = times.configurations, list[float](), 0
    for shape, column in zip(times.fit, chosen.of_key, strict=True):
        if column is None:
            missing += 1
            continue
        own = times.judge[shape]
        losses.append(math.log(own[names[column]] / min(own.values())))
    return 100 * math.expm1(statistics.mean(losses)), 100 * math.expm1(max(losses)), missing
