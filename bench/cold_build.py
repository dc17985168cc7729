"""A cold build of 24 variants of the library, against a script that compiles them with plain JAX.

Goal: the build takes at most 1.05 times as long as the script.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from harness import (
    ROOT,
    Figure,
    build_command,
    in_turn,
    medians,
    ratio,
    run_benchmark,
    timed_process,
)
from inputs import plain_jax

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.select import select
from pallasc.specs.loading.yaml_loader import load_specs

LIBRARY = ROOT / "specs" / "library"
SELECTION = "target=h100-sxm"
COUNT = 24


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Time the build and the script in turn."""
    variants, stores = select(expand(load_specs([LIBRARY])), SELECTION)[:COUNT], count()
    chosen = " or ".join(f'"{one.id}"' for one in variants)

    def ours() -> float:
        store = place / f"store{next(stores)}"
        return timed_process(build_command(LIBRARY, store, "--jobs", "1", "-k", chosen))

    works = {"pallasc build": ours, "plain JAX": plain_jax(place, variants)}
    works["plain JAX"]()  # so that the page cache has the files for both
    times = in_turn(works, options.rounds, warm_up=False)
    return [
        *medians(times),
        Figure("cold build / plain JAX", ratio(times, *works), goal=1.05),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, rounds=3))
