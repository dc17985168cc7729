"""Build spec files and print the report as JSON: build.py STORE JOBS SPEC..."""

from __future__ import annotations

import json
import sys

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.specs.loading.matrix import expand

HEAVY = ("jax", "jaxlib", "numpy", "llvmlite", "google.protobuf", "torch")


def main(root: str, jobs: str, *paths: str) -> None:
    store = Store(root)
    variants = expand(SpecReader(store=store).specs(paths))
    report = build(variants, store=store, options=Options(jobs=int(jobs) or None))
    results = [
        {
            "id": result.variant.id,
            "status": result.status,
            "digest": result.artifact.digest if result.artifact else None,
            "cubin": len(result.artifact.cubin()) if result.artifact else 0,
            "reason": result.reason,
            "error": str(result.error) if result.error else None,
        }
        for result in report.results
    ]
    loaded = [name for name in HEAVY if name in sys.modules]
    print(json.dumps({"results": results, "notes": report.notes, "loaded": loaded}))


main(*sys.argv[1:])
