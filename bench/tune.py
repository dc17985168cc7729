"""Tuned kernels: what is looked up, dropped, picked and survived; see the parts for their goals.

Each part measures one thing and has a module of its own, `tune_PART`. Without `--part` all are run
whose data are there.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from types import ModuleType

from harness import Figure, run_benchmark

PARTS = ("faults", "lookup", "pick", "pruning", "tokamax", "wheel")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add which parts are run, and the options of each."""
    parser.add_argument("--part", action="append", choices=PARTS, help="run this one only")
    for name in PARTS:
        if add := getattr(_part(name), "add_options", None):
            add(parser)


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of all parts that are asked for."""
    return [figure for name in options.part or PARTS for figure in _part(name).figures(options)]


def _part(name: str) -> ModuleType:
    return importlib.import_module(f"tune_{name}")


if __name__ == "__main__":
    raise SystemExit(run_benchmark("Tuned kernels.", measure, add_options))
