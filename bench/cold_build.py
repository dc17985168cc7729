"""A cold build of 24 variants against a plain script that compiles the same 24 with JAX.

The rival imports JAX once and calls its ahead-of-time compilation for each variant, in one process,
with the same assembler; it extracts, checks and keeps nothing. Goal: at most 1.05 times its time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness import Figure, median_ratio, paired, run_benchmark, timed_process

from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.select import select
from pallasc.specs.loading.yaml_loader import load_specs
from pallasc.specs.spec import Variant, variant_to_json

LIBRARY = Path(__file__).resolve().parent.parent / "specs" / "library"
SELECTION = "target=h100-sxm"
COUNT = 24

RIVAL = """
import json, sys
import jax
from jax.experimental import topologies
from pallasc.compiler.lowering.entry import import_function, static_value
from pallasc.compiler.lowering.jax_versions import target_config
from pallasc.specs.arrays import DTYPES
from pallasc.specs.spec import variant_from_json

for data in json.load(open(sys.argv[1])):
    variant = variant_from_json(data)
    device = topologies.get_topology_desc(
        "rival", "cuda", target_config=target_config(variant.target), topology="1x1x1"
    ).devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    arrays = {
        name: None if array is None else jax.ShapeDtypeStruct(
            array.shape, getattr(jax.numpy, DTYPES[array.dtype].jax_name), sharding=sharding)
        for name, array in variant.args.items()
    }
    function = import_function(variant.entry, variant.base_dir)
    static = {key: static_value(value, variant.base_dir) for key, value in variant.static.items()}
    with jax.default_device(device):
        call = jax.jit(lambda arrays: function(**arrays, **static))
        call.trace(arrays).lower(lowering_platforms=("cuda",)).compile()
"""


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Time both in turn and return the ratio, and the seconds of each."""
    variants = chosen()
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        place = Path(folder)
        (place / "variants.json").write_text(json.dumps([variant_to_json(v) for v in variants]))
        (place / "rival.py").write_text(RIVAL)
        environment = dict(prepare().environment)
        rival = [sys.executable, "-P", str(place / "rival.py"), str(place / "variants.json")]
        timed_process(rival, env=environment)  # once, so that both find the files in memory
        stores = iter(range(10_000))

        def ours() -> float:
            store = str(place / f"store{next(stores)}")
            return timed_process(
                [sys.executable, "-P", "-m", "pallasc", "build", str(LIBRARY), "--jobs", "1",
                 "--store", store, "-k", expression(variants)],
                env=dict(os.environ), stderr=None if options.verbose else subprocess.DEVNULL,
            )  # fmt: skip

        mine, theirs = paired(ours, lambda: timed_process(rival, env=environment), options.rounds)
    return [
        Figure("pallasc build", statistics.median(mine), "s"),
        Figure("plain JAX", statistics.median(theirs), "s"),
        Figure("cold build / plain JAX", median_ratio(mine, theirs), goal=1.05),
    ]


def chosen() -> list[Variant]:
    """Return the first 24 variants of the library, JAX's kernels included, for one model."""
    variants = select(expand(load_specs([LIBRARY])), SELECTION)[:COUNT]
    if len(variants) != COUNT:
        raise SystemExit(f"the library has only {len(variants)} variants for {SELECTION}")
    return variants


def expression(variants: Sequence[Variant]) -> str:
    """Return a `-k` expression that selects just these variants."""
    return " or ".join(f'"{variant.id}"' for variant in variants)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    parser.add_argument("--verbose", action="store_true", help="show what pallasc says")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
