"""Tokamax's Mosaic GPU kernels, imported and compiled: counts, times, a bundle.

Every entry of the installed Tokamax's tables that has a configuration is compiled with it. A fixed
sample of 50 kernels is compiled from empty caches by plain JAX and by `pallasc.compile`, in turn
and in one process, both with the assembler that pallasc found (`corpus.py` explains why). Goals:
all entries compile, and pallasc takes at most 1.15 times as long as JAX for the sample.
"""

import argparse
import importlib.util
import multiprocessing
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from corpus import Kernel, Timing, ours, plain, timed_alone, use_cpu
from corpus import figures as timed_figures
from harness import PYTHON, ROOT, Figure, say

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

SCRIPT = ROOT / "examples" / "tokamax" / "import_tables.py"
GOAL = 1.15
SAMPLE = 50

LISTING = """
import sys
import pallasc
bundle = pallasc.open_bundle(sys.argv[1])
print(sum(len(bundle.variants_of(name)) for name in bundle))
print(sorted({"jax", "jaxlib", "tokamax"} & set(sys.modules)))
"""


def figures(options: argparse.Namespace, place: Path) -> list[Figure]:
    """Return the figures of the installed Tokamax, none without one."""
    if importlib.util.find_spec("tokamax") is None:
        say("tokamax: not installed")
        return []
    store = Store(options.tokamax_store or place / "store")
    results = build(imported(place / "specs"), store=store, options=Options(jobs=2)).results
    compiled = [result for result in results if result.artifact is not None]
    ordered = sorted((one.variant for one in compiled), key=in_fixed_order)
    timings = by_model(ordered[: options.tokamax_sample])
    return [
        *counted(results),
        *bundled(compiled, place / "tokamax.pallasc"),
        Figure("tokamax: kernels timed", len(timings), goal=SAMPLE, at_least=True),
        *timed_figures(timings, GOAL),
    ]


def imported(folder: Path) -> list[Variant]:
    """Write the specs of all devices, and expand them."""
    subprocess.run([*PYTHON, SCRIPT, "-o", folder], stdout=subprocess.DEVNULL, check=True)
    files = [path for path in sorted(folder.glob("*.yaml")) if ".tuned" not in path.suffixes]
    return expand([spec for file in files for spec in load_yaml(file)])


def in_fixed_order(variant: Variant) -> bytes:
    """Return a key to sort by that does not depend on the names' order."""
    return sha256(variant.id.encode()).digest()


def counted(results: Sequence[VariantResult]) -> list[Figure]:
    """Count the entries that compile, and print the errors of the others."""
    for result in results:
        if result.error is not None:
            say(f"{result.variant.id}: {str(result.error).splitlines()[0]}")
    kernels = Counter(f"{one.variant.name}@{one.variant.target.name}" for one in results)
    refused = sum(one.artifact is None for one in results)
    return [
        *(Figure(f"tokamax: {name}, entries", number) for name, number in sorted(kernels.items())),
        Figure("tokamax: entries with a configuration", len(results)),
        Figure("tokamax: of these refused", refused, goal=0),
    ]


def bundled(results: Sequence[VariantResult], path: Path) -> list[Figure]:
    """Return the size of a bundle of everything, and whether it opens without JAX."""
    items, raw = [], {}
    for result in results:
        assert result.artifact is not None
        artifact, variant = result.artifact, result.variant
        items.append(Item(variant.name, dict(variant.params), artifact, tuning=variant.tuning))
        raw |= {kernel.cubin: len(artifact.blob(kernel.cubin)) for kernel in artifact.kernels}
    path.write_bytes(build_bundle(items))
    done = subprocess.run(
        [*PYTHON, "-c", LISTING, path], capture_output=True, text=True, check=True
    )
    count, modules = done.stdout.splitlines()
    size = path.stat().st_size
    return [
        Figure("tokamax: bundle of everything", size / 2**20, "MiB"),
        Figure("tokamax: bundle / its raw cubins, each once", size / sum(raw.values())),
        Figure("tokamax: variants that the bundle lacks", len(results) - int(count), goal=0),
        Figure("tokamax: modules of JAX that opening it imports", modules.count("'") / 2, goal=0),
    ]


def by_model(sample: Sequence[Variant]) -> list[Timing]:
    """Compile the sample both ways, and return the times.

    Each model has its own process: plain JAX 0.12 fails in one that has compiled for another
    architecture before.
    """
    found: list[Timing] = []
    context = multiprocessing.get_context("spawn")
    for model in sorted({variant.target.name for variant in sample}):
        with context.Pool(1) as pool:
            found += pool.apply(compare, ([v for v in sample if v.target.name == model],))
    return found


def compare(sample: Sequence[Variant]) -> list[Timing]:
    """Compile variants of one model both ways; the first one twice, to warm up."""
    # Mosaic asks the assembler on PATH which PTX it reads: pallasc's, for both.
    os.environ["PATH"] = os.pathsep.join([str(find_toolchain().ptxas.parent), os.environ["PATH"]])
    use_cpu(sample[0].target)
    timings = []
    for number, variant in enumerate((sample[0], *sample)):
        kernel, seconds = call_of(variant), {}
        for side in (plain, ours) if number % 2 else (ours, plain):
            seconds[side], _ = timed_alone(side, kernel, variant.target)
        timings.append(Timing(variant.id, seconds[plain], seconds[ours]))
        say(f"{timings[-1].ratio:.3f}  {timings[-1].plain_s:.2f} s  {variant.id}")
    return timings[1:]


def call_of(variant: Variant) -> Kernel:
    """Return a variant as a function of arrays alone."""
    import jax

    from pallasc.compiler.lowering.entry import (
        abstract,
        array_arguments,
        import_function,
        static_arguments,
    )

    function = import_function(variant.entry, "/")
    static = static_arguments(variant.static, "/")
    leaves, tree = jax.tree.flatten(abstract(array_arguments(variant.args, "/"), None))

    def call(*arrays: Any) -> Any:
        return function(**jax.tree.unflatten(tree, arrays), **static)

    return Kernel(variant.id, call, tuple(leaves))
