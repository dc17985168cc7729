"""Time a kernel of a packed folder with numpy as the device, and JAX on the CPU as the rival.

Usage: gpu_times.py FOLDER. Prints one JSON object: what each question gives, or why nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import standin
from emulate import emulate

sys.path.insert(0, sys.argv[1])

import jax_way
from carried import read_variants
from desk import MissingError
from part_times import Timed

FOLDER = Path(sys.argv[1])
OPTIONS = {"repeats": 3, "rounds": 2, "launches": 2, "ramp_s": 0}


def asked(work: Any) -> Any:
    try:
        return work()
    except MissingError as error:
        return {"missing": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Print what is found."""
    driver = standin.load()
    driver.reset()
    variant = read_variants(FOLDER)[0]
    driver.kernel("*")(emulate(variant.opened(), lambda x, y: [x + y]))
    timed = Timed(variant, OPTIONS)
    before = {"JAX": asked(timed.same_bytes), "torch": asked(timed.torch)}
    jax_way.why_not = lambda: None
    jax_way.jitted = lambda _: jax.jit(lambda x, y: x + y)
    ways = (timed.ramp, timed.ours, timed.same_bytes, timed.same_code)
    found = {work.__name__: asked(work) for work in (*ways, timed.profiled, timed.in_a_row)}
    driver.check()
    print(json.dumps({**before, **found}))


main()
