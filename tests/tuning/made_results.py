"""Results of `pallasc tune run`, made up: times of each configuration for each key."""

import random
from collections.abc import Collection, Mapping

import msgspec

from pallasc.specs.canonical import Scalar, canonical_text, variant_id
from pallasc.specs.tuning import Tune
from pallasc.tuning.results import Results, Start, line_of, parse_results

H100 = Start("5a" * 32, "NVIDIA H100 80GB HBM3", "h100-sxm", "sm_90", "580.95", "2026-11-23", {})
TUNE = Tune(over={"tile": (64, 128, 256)}, by=("m",))
ROUNDS = 24

Times = Mapping[Scalar, Mapping[Scalar, float]]
"""Microseconds of each tile for each m."""


def made_lines(
    times: Times,
    *,
    start: Start = H100,
    rounds: int = ROUNDS,
    noise: float = 0.001,
    target: str = "h100-sxm",
    artifacts: Mapping[str, str] | None = None,
    done: bool = True,
    failed: Collection[str] = (),
    kernel: str = "matmul",
    names: tuple[str, str] = ("m", "tile"),
) -> list[bytes]:
    """Return the lines of a file of results; each round's times have a common drift and noise."""
    random_ = random.Random(canonical_text([sorted(map(str, times)), rounds]))
    records: list[dict[str, object]] = [msgspec.to_builtins(start)]
    for m, own in times.items():
        subject = {"kernel": kernel, "key": [m]}
        ids = {tile: point_id(m, tile, target, kernel, names) for tile in own}
        points = [
            {
                "kind": "point",
                **subject,
                "id": name,
                "params": dict(zip(names, (m, tile), strict=True)),
                "target": target,
                "artifact": (artifacts or {}).get(name) or made_digest(m, tile),
                "state": "ok",
                "why": "",
            }
            for tile, name in ids.items()
        ]
        records += points
        for number in range(1, rounds + 1):
            drift = random_.uniform(1, 1.1)
            us = {
                ids[tile]: round(own[tile] * drift * random_.uniform(1, 1 + noise), 4)
                for tile in own
            }
            records.append(
                {"kind": "times", **subject, "round": number, "times_us": us, "spent_s": 1.0}
            )
        records += [
            {**point, "state": "failed", "why": "an illegal address"}
            for point in points
            if point["id"] in failed
        ]
        valid = [tile for tile in own if ids[tile] not in failed]
        if done:
            best = min(valid, key=lambda tile: own[tile], default=None)
            winner = None if best is None else ids[best]
            records.append({"kind": "done", **subject, "winner": winner, "why": "known"})
    return list(map(line_of, records))


def made_results(times: Times, shown: str = "results.jsonl", **options: object) -> Results:
    """Return results as they are read; options as for `made_lines`."""
    return parse_results(b"".join(made_lines(times, **options)), shown)  # type: ignore[arg-type]


def point_id(
    m: Scalar,
    tile: Scalar,
    target: str = "h100-sxm",
    kernel: str = "matmul",
    names: tuple[str, str] = ("m", "tile"),
) -> str:
    """Return the id of a point."""
    return variant_id(kernel, list(zip(names, (m, tile), strict=True)), target)


def made_digest(m: Scalar, tile: Scalar) -> str:
    """Return a digest that no other point has."""
    return f"{m}{tile}".zfill(64)


def all_ids(times: Times) -> set[str]:
    """Return the ids of all points."""
    return {point_id(m, tile) for m, own in times.items() for tile in own}
