"""Check what `pallasc diff` promises, and how long it takes.

Usage: diff.py [--json] [--check] [--library STORE] [--stores STORE STORE]

* every variant of the library is compared with itself, at each depth: nothing may differ, and
  nothing may be disassembled;
* its machine code is compared with itself after all registers, predicates and labels got other
  names: nothing may differ at depth `sass`;
* two stores of one spec, under two versions of JAX, are compared at depth `sass` in at most a
  minute. Make each with `pallasc build examples/jax_tuning.yaml --store STORE` under its JAX.

The library is built into a temporary store, unless `--library` names one to use and to fill.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from unittest import mock

from harness import Figure, run_benchmark

from pallasc.analysis.compare import DEPTHS, Comparison, compare, compare_code, normal_hunks
from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.sass import Code, Instruction
from pallasc.analysis.sides import Side, built_side, store_side
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader

LIBRARY = Path(__file__).resolve().parent.parent / "specs" / "library"
MOST_SECONDS = 60
_AT_ONCE = 64
_NAMES = re.compile(r"(?<![\w.$])(UR|R|UP|P)(\d+)\b|\.L_x_(\d+)")
_HIGHEST = {"R": 254, "UR": 254, "P": 6, "UP": 6}


def library(root: Path) -> Side:
    """Return the variants of the library, built into a store."""
    store = Store(root)
    variants = SpecReader(store=store).select([str(LIBRARY)]).variants
    report = build(variants, store=store)
    if report.failed:
        raise SystemExit(f"{report.failed[0].variant.id}: {report.failed[0].error}")
    return built_side("library", report.results)


def with_itself(side: Side) -> list[Figure]:
    """Compare variants with themselves at each depth."""
    asked: list[str] = []

    def counting(cubins: Mapping[str, bytes]) -> Mapping[str, Mapping[str, Code]]:
        asked.extend(cubins)
        return disassemble_all(cubins)

    # Digests decide at once; without them, the code itself has to.
    again = {key: replace(each, digest=f"not {key}") for key, each in side.variants.items()}
    with mock.patch("pallasc.analysis.compare.disassemble_all", counting):
        found = [
            compare(side, other, depth=depth)
            for other in (side, replace(side, variants=again))
            for depth in DEPTHS
        ]
    return [
        Figure("variants of the library", len(side.variants), goal=100, at_least=True),
        Figure("of them different from themselves", sum(map(_number, found)), goal=0),
        Figure("cubins with equal code disassembled", len(asked), goal=0),
    ]


def _number(comparison: Comparison) -> int:
    return len(comparison.differing)


def renamed(side: Side) -> list[Figure]:
    """Compare the code of variants with itself under other names of registers and labels."""
    cubins = {
        kernel.cubin: subject.artifact
        for subject in side.variants.values()
        if subject.artifact is not None
        for kernel in subject.artifact.kernels
    }
    keys = sorted(cubins)
    kernels = differing = 0
    for start in range(0, len(keys), _AT_ONCE):
        chosen = {key: cubins[key].blob(key) for key in keys[start : start + _AT_ONCE]}
        for codes in disassemble_all(chosen).values():
            for code in codes.values():
                other = replace(code, instructions=tuple(map(_renamed, code.instructions)))
                same = compare_code(code, other).verdict == "renamed"
                kernels += 1
                differing += not same or normal_hunks(code, other) != []
    return [
        Figure("kernels under other names of registers", kernels, goal=100, at_least=True),
        Figure("of them different at depth sass", differing, goal=0),
    ]


def _renamed(instruction: Instruction) -> Instruction:
    def other(match: re.Match[str]) -> str:
        if match[3]:
            return f".L_x_{int(match[3]) + 1000}"
        return f"{match[1]}{_HIGHEST[match[1]] - int(match[2])}"

    return replace(
        instruction,
        predicate=_NAMES.sub(other, instruction.predicate),
        operands=tuple(_NAMES.sub(other, operand) for operand in instruction.operands),
        label=_NAMES.sub(other, instruction.label),
    )


def between(first: Path, second: Path) -> list[Figure]:
    """Compare two stores at depth `sass`."""
    began = time.monotonic()
    sides = [store_side(Store(path), str(path)) for path in (first, second)]
    found = compare(*sides, depth="sass")
    seconds = time.monotonic() - began
    for difference in found.differing[:3]:
        for kernel in difference.kernels[:1]:
            print(difference.pair.label, difference.verdict, kernel.code, file=sys.stderr)
    pairs = found.same + len(found.differing)
    return [
        Figure("variants in both stores", pairs, goal=153, at_least=True),
        Figure("of them different", len(found.differing)),
        Figure("time to compare them", seconds, "s", goal=MOST_SECONDS),
    ]


def measure(options: argparse.Namespace) -> list[Figure]:
    """Return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        side = library(options.library or Path(folder))
        figures = [*with_itself(side), *renamed(side)]
    return [*figures, *(between(*options.stores) if options.stores else [])]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the stores."""
    parser.add_argument("--library", type=Path, help="a store for the library's variants")
    parser.add_argument("--stores", type=Path, nargs=2, help="two stores to compare")


if __name__ == "__main__":
    sys.exit(run_benchmark(str(__doc__), measure, add_options))
