"""Tokamax's Mosaic GPU kernels, imported and compiled: counts, times, a bundle.

Every entry of the installed Tokamax's tables that has a configuration is compiled with it. A fixed
sample is compiled from empty caches by `jax.jit(…).trace(…).lower(…).compile()` and by
`pallasc.compile`, in turn and in one process; both with the assembler that pallasc found
(`corpus.py` says why). The goals: all compile, and at most 1.15 times JAX's time in sum, over 50
kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

from bundle_size import cubins_of
from corpus import Kernel, Timing, timed
from harness import Figure

import pallasc
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.lowering.jax_versions import devices_for
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.gpus import Target
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "tokamax" / "import_tables.py"
GOAL = 1.15
SAMPLE = 50

LISTING = """
import sys
import pallasc
bundle = pallasc.open_bundle(sys.argv[1])
print(sum(len(bundle.variants_of(name)) for name in bundle))
print(sorted({"jax", "jaxlib", "tokamax"} & set(sys.modules)))
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add where artifacts are kept, and how many kernels are timed."""
    parser.add_argument("--tokamax-store", type=Path, help="keeps what was compiled")
    parser.add_argument("--tokamax-sample", type=int, default=SAMPLE, help="kernels to time")


def figures(options: argparse.Namespace) -> list[Figure]:
    """Return the figures of the installed Tokamax, none without one."""
    if importlib.util.find_spec("tokamax") is None:
        print("tokamax: not installed", file=sys.stderr)
        return []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        variants = imported(folder)
        store = Store(options.tokamax_store or folder / "store")
        results = build(variants, store=store, options=Options(jobs=2)).results
        compiled = [result for result in results if result.artifact is not None]
        found = [*counted(results), *bundled(compiled, folder / "tokamax.pallasc")]
        sample = in_fixed_order(compiled)[: options.tokamax_sample]
        compared = by_model([result.variant for result in sample])
        return [*found, *timed_figures(compared)]


def imported(folder: Path) -> list[Variant]:
    """Write the specs of all devices, and expand them."""
    command = [sys.executable, "-P", str(SCRIPT), "-o", str(folder)]
    subprocess.run(command, stdout=sys.stderr, check=True)
    files = [path for path in sorted(folder.glob("*.yaml")) if ".tuned" not in path.suffixes]
    return expand([spec for file in files for spec in load_yaml(file)])


def counted(results: Sequence[VariantResult]) -> list[Figure]:
    """Return how many entries compile and how many are refused, and print why."""
    reasons = Counter((_kernel(r.variant), _reason(r)) for r in results if r.error is not None)
    for (kernel, reason), number in reasons.most_common():
        print(f"{kernel}: {number} refused: {reason}", file=sys.stderr)
    found = [
        Figure("tokamax: entries with a configuration", len(results)),
        Figure("tokamax: of these compiled", sum(r.artifact is not None for r in results)),
    ]
    for name in sorted({_kernel(r.variant) for r in results}):
        own = [r for r in results if _kernel(r.variant) == name]
        compiled = sum(r.artifact is not None for r in own)
        found.append(Figure(f"tokamax: {name}, compiled of {len(own)}", compiled))
    return found


def _kernel(variant: Variant) -> str:
    return f"{variant.name}@{variant.target.name}"


def _reason(result: VariantResult) -> str:
    return str(result.error).splitlines()[0].rpartition("tokamax/")[2]


def bundled(results: Sequence[VariantResult], path: Path) -> list[Figure]:
    """Return the size of a bundle of everything, and that it opens without JAX."""
    items = [
        Item(r.variant.name, dict(r.variant.params), r.artifact, tuning=r.variant.tuning)
        for r in results
        if r.artifact is not None
    ]
    path.write_bytes(build_bundle(items))
    each = sum(
        len(result.artifact.cubin(kernel.name))
        for result in results
        if result.artifact is not None
        for kernel in result.artifact.kernels
    )
    once = sum(len(cubin.data) for cubin in cubins_of(results).values())
    listed = subprocess.run(
        [sys.executable, "-P", "-c", LISTING, str(path)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    size = path.stat().st_size
    return [
        Figure("tokamax: bundle of everything", size / 2**20, "MiB"),
        Figure("tokamax: bundle / its raw cubins, each once", size / once),
        Figure("tokamax: bundle / the raw cubins of all variants", size / each),
        Figure("tokamax: variants that the bundle lacks", len(results) - int(listed[0]), goal=0),
        Figure("tokamax: modules of JAX that opening it imports", listed[1].count("'") / 2, goal=0),
    ]


def in_fixed_order(results: Iterable[VariantResult]) -> list[VariantResult]:
    """Return results in an order that does not depend on their names' order."""
    return sorted(results, key=lambda result: sha256(result.variant.id.encode()).digest())


def by_model(sample: Sequence[Variant]) -> list[Timing]:
    """Compile the sample both ways, and return the times.

    Each model has a process of its own: plain JAX 0.12 fails in one that has compiled for another
    architecture before, as it starts the assembler for that.
    """
    found: list[Timing] = []
    context = multiprocessing.get_context("spawn")
    for model in sorted({variant.target.name for variant in sample}):
        with context.Pool(1) as pool:
            found += pool.apply(compare, ([v for v in sample if v.target.name == model],))
    return found


def compare(sample: Sequence[Variant]) -> list[Timing]:
    """Do what `by_model` does, for variants of one model."""
    import jax

    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is neither GPU nor driver
    # Mosaic asks the assembler on PATH which PTX it reads: that of pallasc, for both.
    os.environ["PATH"] = os.pathsep.join([str(find_toolchain().ptxas.parent), os.environ["PATH"]])
    target = sample[0].target
    devices_for(target)  # before JAX looks for devices of this machine
    jax.config.update("jax_platforms", "cpu")
    for variant in sample[:1]:  # imports and the toolchain's digests happen once a process
        both(variant, target, ours_first=True)
    return [
        both(variant, target, ours_first=index % 2 == 0) for index, variant in enumerate(sample)
    ]


def both(variant: Variant, target: Target, *, ours_first: bool) -> Timing:
    """Time a variant."""
    kernel = call_of(variant)

    def ours(kernel: Kernel) -> Any:
        return pallasc.compile(
            lambda *given: kernel.function(*given), *kernel.arrays, target=target.name
        )

    def theirs(kernel: Kernel) -> None:
        plain(kernel, target)

    order = (ours, theirs) if ours_first else (theirs, ours)
    seconds = {side: timed(side, kernel)[0] for side in order}
    timing = Timing(variant.id, seconds[theirs], seconds[ours])
    print(f"{timing.ratio:.3f}  {timing.plain[0]:.2f} s  {variant.id}", file=sys.stderr)
    return timing


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


def plain(kernel: Kernel, target: Target) -> None:
    """Compile as JAX's documentation has it."""
    import jax

    device = devices_for(target)[0]
    own = jax.sharding.SingleDeviceSharding(device)
    arrays = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=own) for a in kernel.arrays]
    with jax.default_device(device):
        traced = jax.jit(lambda *given: kernel.function(*given)).trace(*arrays)
        traced.lower(lowering_platforms=("cuda",)).compile()


def timed_figures(taken: Sequence[Timing]) -> list[Figure]:
    """Return how long both take, from empty caches."""
    sums = [sum(getattr(t, side)[0] for t in taken) for side in ("plain", "ours")]
    ratio = statistics.median(timing.ratio for timing in taken)
    return [
        Figure("tokamax: kernels timed", len(taken), goal=SAMPLE, at_least=True),
        Figure("tokamax: plain JAX, in sum", sums[0], "s"),
        Figure("tokamax: pallasc / plain JAX, in sum", sums[1] / sums[0], goal=GOAL),
        Figure("tokamax: pallasc / plain JAX, median", ratio, goal=GOAL),
        Figure("tokamax: load of the machine", os.getloadavg()[0]),
    ]
