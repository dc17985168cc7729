"""Open an exported function with bits flipped: jax_flips.py BUNDLE FILE COUNT SEED [sealed].

The kernel is executed by the emulator, which gets its PTX from the bundle. One bit is changed in
each of COUNT copies of the file: of the texts of the call, then of its flat plan. With `sealed`
they are all in tables of the plan, whose digest then fits again, and kernels do nothing: only
crashes are looked for. (What lies around is JAX's, which has no digests.) Prints one JSON object:
how often the numbers were right or wrong, and what was said otherwise.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import emulated
import flat
import jax
import numpy as np
import standin
from jax import export

import pallasc
from pallasc.specs.bundle.bundle import open_bundle

SHAPE = (16, 512)
TEXTS, NAME = b"kernel\0add\0", b"pallasc_launch\0"


def told(data: bytes, x: Any, y: Any) -> str:
    """Return "right" or "wrong" for the numbers, or an error's words."""
    try:
        result = np.asarray(export.deserialize(bytearray(data)).call(x, y))
    except (jax.errors.JaxRuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    right = result.shape == SHAPE and np.abs(result - 2 * (x + y)).max() < 1e-6
    return "right" if right else "wrong"


def main() -> None:
    """Flip bits."""
    bundle_file, file, count, seed, *mode = sys.argv[1:]
    driver = standin.load()
    driver.reset()
    driver.devices("9.0")
    if not mode:
        gpu = emulated.install(driver)
        with open_bundle(Path(bundle_file)) as bundle:
            for entry in bundle.entries():
                gpu.know(bundle.artifact(entry))
    pallasc.register_jax_handlers()
    data, rng = Path(file).read_bytes(), random.Random(int(seed))
    start = data.index(b"PALLASC\n")
    end = start + flat.HEADER.unpack_from(data, start)[3]
    texts = [*range(data.index(TEXTS), start), *range(data.index(NAME), end + len(NAME))]
    places = [] if mode else rng.sample(texts, int(count) // 2)
    most = start + flat.place(data[start:end], "data")[0] if mode else end
    places += [rng.randrange(start, most) for _ in range(int(count) - len(places))]
    values = np.random.default_rng(7)
    x, y = (values.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(2))
    answers: dict[str, Counter[str]] = {"plan": Counter(), "texts": Counter()}
    assert mode or told(data, x, y) == "right"
    for at in places:
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        if mode:
            changed[start:end] = flat.sealed(bytes(changed[start:end]))
        print(f"byte {at}", file=sys.stderr, flush=True)  # the last one, where it crashes
        answers["plan" if start <= at < end else "texts"][told(bytes(changed), x, y)] += 1
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
