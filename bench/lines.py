"""Source lines over the whole coverage table: do they fit, and how much has one.

Each kernel of tests/coverage is built and compiled once more with locations, for one of its
architectures, or with `--all` for each of them. Machine code has to be the same byte for byte: else
there are no lines, and the variant is counted as different. XLA's own kernels have no user's line,
and are counted apart.

All of them take an hour or two: with `--progress FILE` a run that was ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import Figure, run_benchmark

from pallasc.analysis.find_lines import Compiled, Found, obtain_source_lines
from pallasc.analysis.lines import LocatedKernel, located_kernels
from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.errors import PallascError
from pallasc.specs.spec import Variant

COVERAGE = Path(__file__).resolve().parent.parent / "tests" / "coverage"
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


def compiled_of(variants: Sequence[Variant], store: Store, jobs: int | None) -> list[Compiled]:
    """Return what compiles; some cases of the table are there since they do not."""
    report = build(variants, store=store, options=Options(jobs=jobs, timeout_s=300))
    return [
        Compiled(result.variant, result.artifact, result.action_key)
        for result in report.results
        if result.artifact is not None and result.action_key is not None
    ]


def count(compiled: Sequence[Compiled], found: Iterable[Found], counts: Counter[str]) -> None:
    """Count kernels and instructions with and without lines."""
    cubins = {key.cubin: each.artifact for each in compiled for key in each.artifact.kernels}
    codes = disassemble_all({cubin: artifact.blob(cubin) for cubin, artifact in cubins.items()})
    for (variant, artifact, _), lines in zip(compiled, found, strict=True):
        if not any(kernel.ptx for kernel in artifact.kernels):
            counts["without"] += 1
            continue
        counts["variants"] += 1
        if isinstance(lines, PallascError):
            counts["different"] += 1
            print(f"{variant.id}: {lines.message}", file=sys.stderr)
            continue
        for kernel in located_kernels(artifact, lines, codes=codes):
            _count_kernel(kernel, counts)


def _count_kernel(kernel: LocatedKernel, counts: Counter[str]) -> None:
    counts[f"{kernel.origin} kernels"] += 1
    counts[f"{kernel.origin} instructions"] += len(kernel.instructions)
    counts["located"] += kernel.located


def measure(options: argparse.Namespace) -> list[Figure]:
    """Build, find the lines, count."""
    variants = chosen(every=options.all)[:: options.step]
    first, counts = _counted(options.progress, len(variants))
    with tempfile.TemporaryDirectory(prefix="pallasc-lines-") as folder:
        store = Store(options.store or Path(folder) / "store")
        for start in range(first, len(variants), _AT_ONCE):
            compiled = compiled_of(variants[start : start + _AT_ONCE], store, options.jobs)
            found = obtain_source_lines(compiled, store, jobs=options.jobs, timeout_s=300)
            count(compiled, found, counts)
            done = min(start + _AT_ONCE, len(variants))
            print(f"{done} of {len(variants)}: {dict(counts)}", file=sys.stderr)
            if options.progress is not None:
                state = {"of": len(variants), "done": done, "counts": counts}
                options.progress.write_text(json.dumps(state))
    mosaic = counts["mosaic instructions"]
    return [
        Figure("variants with Mosaic kernels", counts["variants"]),
        Figure("variants whose machine code differs with locations", counts["different"], goal=0),
        Figure("kernels of Mosaic", counts["mosaic kernels"]),
        Figure("instructions of Mosaic kernels", mosaic),
        Figure(
            "share of them with a user's line",
            100 * counts["located"] / max(1, mosaic),
            "%",
            goal=95,
            at_least=True,
        ),
        Figure("instructions of XLA's own kernels, without a line", counts["xla instructions"]),
    ]


def _counted(progress: Path | None, of: int) -> tuple[int, Counter[str]]:
    """Return how many variants an earlier run has counted, and its counts."""
    if progress is None or not progress.exists():
        return 0, Counter()
    state = json.loads(progress.read_text())
    if state["of"] != of:
        sys.exit(f"{progress} is of {state['of']} variants, not of {of}: remove it to begin anew")
    return state["done"], Counter(state["counts"])


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="each case for all its architectures")
    parser.add_argument("--store", type=Path, help="a store to keep, which may have them already")
    parser.add_argument("--progress", type=Path, help="a file with what was counted: go on there")
    parser.add_argument("--jobs", type=int, help="how many are compiled at the same time")
    parser.add_argument("--step", type=int, default=1, help="take one of so many variants")


if __name__ == "__main__":
    sys.exit(run_benchmark(str(__doc__).partition("\n")[0], measure, _options))
