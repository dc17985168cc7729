"""`pallasc check` of a thousand unchanged variants, against their build.

Goal: the check takes at most 1.5 times as long. To prepare, the first variant is checked, and its
results are copied for the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness import PALLASC, Figure, in_turn, medians, ratio, run_benchmark, timed_process
from inputs import fill, without_sync, write_spec
from msgspec import structs

from pallasc.cache.store import Store
from pallasc.checks.findings import result_from_json
from pallasc.checks.levels import Options
from pallasc.checks.stored_results import StoredResults
from pallasc.compiler.builds.build import build
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

COUNT = 1000


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Time both in turn."""
    spec, store = write_spec(place / "spec", COUNT), Store(place / "store")
    fill(store, spec)
    check_first(spec, store)
    tail = [str(spec), "--store", str(store.root)]
    works = {what: partial(timed_process, [*PALLASC, what, *tail]) for what in ("check", "build")}
    times = in_turn(works, options.rounds)
    return [
        *medians(times, f"{COUNT:,} unchanged variants, "),
        Figure("check / build", ratio(times, *works), goal=1.5),
    ]


def check_first(spec: Path, store: Store) -> None:
    """Check the first variant, and copy its results for the others."""
    variants = expand(load_yaml(spec))
    command = [*PALLASC, "check", spec, "--json", "--store", store.root, "-k", variants[0].id]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    report = build(variants, store=store)
    if report.context is None:
        raise SystemExit("there is no toolchain")
    stored = StoredResults(store, report.context)
    names = [path.name for path in (store.folder / "man").rglob("?" * 64)]
    manifests = [manifest for manifest in map(store.find_manifest, names) if manifest is not None]
    made = next(manifest for manifest in manifests if manifest.check)
    sources = structs.replace(made, action="", check="").to_json()
    with without_sync():
        for row in json.loads(done.stdout)["variants"][0]["results"]:
            result = replace(result_from_json(row), seconds=1.0)
            for held in report.results[1:]:
                if held.artifact is None or held.action_key is None:
                    raise SystemExit(f"{held.variant.id} is not in the store")
                stored.put(stored.subject(Options(), held, held.variant), result, sources)


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, rounds=5))
