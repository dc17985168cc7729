"""Build every kernel that JAX has for Mosaic GPU, over its tunings, and record what came out.

Usage: jax_tuning.py [FILE]. `examples/jax_tuning.yaml` is built in one process at a time, into a
store of its own. FILE, bench/results/jax_tuning.json by default, gets a row for each variant under
the version of the JAX that runs this; those of other versions stay in it. Exits 1, and writes
nothing, where a variant fails.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "jax_tuning.json"


def row(result: VariantResult) -> dict[str, Any]:
    """Return what is kept of a variant."""
    assert result.artifact is not None
    kernels = result.artifact.kernels
    return {
        "id": result.variant.id,
        "seconds": round(result.seconds, 2),
        "launches": len(result.artifact.plan.launches),
        "registers": max(kernel.registers for kernel in kernels),
        "smem_bytes": max(launch.dynamic_smem_bytes for launch in result.artifact.plan.launches),
        "cubin_bytes": sum(len(result.artifact.cubin(kernel.name)) for kernel in kernels),
    }


def measure() -> dict[str, Any]:
    """Build all variants and return what is recorded of this JAX."""
    variants = expand(load_yaml(ROOT / "examples" / "jax_tuning.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        report = build(variants, store=Store(Path(folder)), options=Options(jobs=1))
        for result in report.results:
            if result.error is not None:
                print(f"{result.variant.id}: {result.error}", file=sys.stderr)
        if any(result.status != "compiled" for result in report.results):
            raise SystemExit(1)
        rows = [row(result) for result in report.results]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "seconds": round(report.seconds, 1),
        "variants": rows,
    }


def text(versions: dict[str, Any]) -> str:
    """Return the file: one line for each variant."""
    parts = []
    for version in sorted(versions):
        rows = ",\n   ".join(json.dumps(variant) for variant in versions[version]["variants"])
        head = json.dumps({**versions[version], "variants": []}).removesuffix("[]}")
        parts.append(f'  "{version}": {head}[\n   {rows}]}}')
    return '{"schema": 1, "jax": {\n' + ",\n".join(parts) + "}}\n"


def main(file: str = str(RESULTS)) -> None:
    """Build, and put the results into the file."""
    path = Path(file)
    versions = json.loads(path.read_text())["jax"] if path.exists() else {}
    versions[metadata.version("jax")] = measure()
    path.write_text(text(versions))


if __name__ == "__main__":
    main(*sys.argv[1:])
