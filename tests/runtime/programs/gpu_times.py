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

import part_times
from carried import read_variants
from desk import MissingError
from part_times import Timed

FOLDER = Path(sys.argv[1])
OPTIONS = {"repeats": 3, "ramp_s": 0}


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
    artifact = variant.kernel().variants[0].artifact
    driver.kernel("*")(emulate(artifact, lambda x, y: [x + y]))
    timed = Timed(variant, OPTIONS)
    found = {work.__name__: asked(work) for work in (timed.ramp, timed.ours, timed.jax)}
    part_times.need_jax = lambda: jax
    part_times.jitted = lambda _: jax.jit(lambda x, y: x + y)
    found["profiled"] = asked(timed.jax)
    driver.check()
    print(json.dumps(found))


main()
