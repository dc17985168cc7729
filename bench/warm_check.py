"""`pallasc check` where nothing has changed, against a build where nothing has changed.

Goal: at most 1.5 times that, for a thousand variants. The store is that of `warm_build`; the first
variant is checked for real, and its result copied for the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filled_store import fill, without_sync, write_spec
from harness import Figure, run_benchmark, timed_process
from msgspec import structs

from pallasc.cache.store import Store
from pallasc.checks.findings import result_from_json
from pallasc.checks.levels import LEVELS
from pallasc.checks.stored_results import StoredResults
from pallasc.checks.subject import Options
from pallasc.compiler.builds.build import build
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

COUNT = 1000
GOAL = 1.5


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Time build and check in turn."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        place = Path(folder)
        spec = write_spec(place / "spec", COUNT)
        store = Store(place / "store")
        fill(store, spec)
        _check_first(spec, store)
        tail = [str(spec), "--store", str(store.root)]
        start = [sys.executable, "-P", "-m", "pallasc"]
        built, checked = [], []
        for _ in range(options.rounds + 1):
            built.append(timed_process([*start, "build", *tail], stderr=subprocess.DEVNULL))
            checked.append(timed_process([*start, "check", *tail], stderr=subprocess.DEVNULL))
            print(f"build {built[-1]:.3f} s, check {checked[-1]:.3f} s", file=sys.stderr)
    ratios = [c / b for c, b in zip(checked[1:], built[1:], strict=True)]
    return [
        Figure(f"build of {COUNT:,} unchanged variants", statistics.median(built[1:]), "s"),
        Figure(f"check of {COUNT:,} unchanged variants", statistics.median(checked[1:]), "s"),
        Figure("check / build", statistics.median(ratios), goal=GOAL),
    ]


def _check_first(spec: Path, store: Store) -> None:
    """Check the first variant, and copy its results for the others."""
    variants = expand(load_yaml(spec))
    command = [sys.executable, "-P", "-m", "pallasc", "check", str(spec), "--json"]
    told = subprocess.run(
        [*command, "--store", str(store.root), "-k", variants[0].id],
        stdout=subprocess.PIPE,
        check=True,
    )
    results = json.loads(told.stdout)["variants"][0]["results"]
    report = build(variants, store=store)
    if report.context is None:
        raise SystemExit("there is no toolchain")
    stored = StoredResults(store, report.context)
    made = next(
        manifest
        for manifest in map(store.find_manifest, _manifests(store))
        if manifest is not None and manifest.check
    )
    sources = structs.replace(made, action="", check="").to_json()
    with without_sync():
        for row in results:
            level = LEVELS[row["level"]]
            result = replace(result_from_json(row), seconds=1.0)
            for held in report.results[1:]:
                if held.artifact is None or held.action_key is None:
                    raise SystemExit(f"{held.variant.id} is not in the store")
                subject = stored.subject(
                    Options(),
                    action=held.action_key,
                    artifact=held.artifact.digest,
                    variant=held.variant,
                )
                stored.put(subject, level, result, sources)


def _manifests(store: Store) -> list[str]:
    return [path.name for path in (store.folder / "man").rglob("?" * 64)]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed")


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
