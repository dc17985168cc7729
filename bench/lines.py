"""Source lines of the kernels of the coverage table.

Each kernel of tests/coverage is built, and compiled again with locations, for one of its
architectures, or with `--all` for each. If the second machine code is not the same byte for byte,
pallasc reports no lines, and the variant counts as different. XLA's own kernels have no lines in
users' sources, and are counted separately. A whole run takes an hour or two; `--step N` takes every
Nth variant.

Goals: no variant is different; 95 % of the instructions of Mosaic's kernels have a line in a user's
source.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness import ROOT, Figure, run_benchmark, say

from pallasc.analysis.find_lines import Compiled, obtain_source_lines
from pallasc.analysis.lines import located_kernels
from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.errors import PallascError
from pallasc.specs.spec import Variant

COVERAGE = ROOT / "tests" / "coverage"
_AT_ONCE = 64


def chosen(*, every: bool) -> list[Variant]:
    """Return the variants of the coverage table, for one or for each of their architectures."""
    sys.path.insert(0, str(COVERAGE))
    import declared

    variants = list(declared.variants())
    if every:
        return variants
    wanted = declared.sample(declared.architectures(variants))
    return [variant for variant in variants if variant.target.arch in wanted[variant.name]]


def count(variants: Sequence[Variant], store: Store, jobs: int, counts: Counter[str]) -> None:
    """Count the kernels and instructions of the variants that compile, with and without lines."""
    report = build(variants, store=store, options=Options(jobs=jobs, timeout_s=300))
    compiled = [
        Compiled(result.variant, result.artifact, result.action_key)
        for result in report.results
        if result.artifact is not None and result.action_key is not None
    ]
    cubins = {key.cubin: each.artifact for each in compiled for key in each.artifact.kernels}
    codes = disassemble_all({cubin: artifact.blob(cubin) for cubin, artifact in cubins.items()})
    found = obtain_source_lines(compiled, store, jobs=jobs, timeout_s=300)
    for (variant, artifact, _), lines in zip(compiled, found, strict=True):
        if not any(kernel.ptx for kernel in artifact.kernels):
            continue
        counts["variants"] += 1
        if isinstance(lines, PallascError):
            counts["different"] += 1
            say(f"{variant.id}: {lines.message}")
            continue
        for kernel in located_kernels(artifact, lines, codes=codes):
            counts[f"{kernel.origin} instructions"] += len(kernel.instructions)
            counts["located"] += kernel.located


def measure(options: argparse.Namespace, place: Path) -> list[Figure]:
    """Build, find the lines, count."""
    variants = chosen(every=options.all)[:: options.step]
    store, counts = Store(options.store or place), Counter[str]()
    for start in range(0, len(variants), _AT_ONCE):
        count(variants[start : start + _AT_ONCE], store, options.jobs, counts)
        say(f"{min(start + _AT_ONCE, len(variants))} of {len(variants)}: {dict(counts)}")
    mosaic = counts["mosaic instructions"]
    share = 100 * counts["located"] / max(1, mosaic)
    return [
        Figure("variants with Mosaic kernels", counts["variants"]),
        Figure("variants whose machine code differs with locations", counts["different"], goal=0),
        Figure("instructions of Mosaic kernels", mosaic),
        Figure("share of them with a user's line", share, "%", goal=95, at_least=True),
        Figure("instructions of XLA's own kernels, without a line", counts["xla instructions"]),
    ]


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, all=False, store=Path, jobs=2, step=1))
