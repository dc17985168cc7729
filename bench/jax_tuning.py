"""Build JAX's own Mosaic GPU kernels with all their tunings, and record the results.

Usage: jax_tuning.py [FILE]. One process builds `examples/jax_tuning.yaml` into a new store. FILE
(default: bench/results/jax_tuning.json) gets a row for each variant under the version of JAX; rows
of other versions stay. If a variant fails, nothing is written, and the exit code is 1.
"""

import json
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from harness import ROOT

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

RESULTS = ROOT / "bench" / "results" / "jax_tuning.json"


def row(result: VariantResult) -> dict[str, Any]:
    """Return the row of a variant."""
    if result.artifact is None:
        raise SystemExit(f"{result.variant.id}: {result.error}")
    artifact = result.artifact
    return {
        "id": result.variant.id,
        "seconds": round(result.seconds, 2),
        "launches": len(artifact.plan.launches),
        "registers": max(kernel.registers for kernel in artifact.kernels),
        "smem_bytes": max(launch.dynamic_smem_bytes for launch in artifact.plan.launches),
        "cubin_bytes": sum(len(artifact.cubin(kernel.name)) for kernel in artifact.kernels),
    }


def measure() -> dict[str, Any]:
    """Build all variants."""
    variants = expand(load_yaml(ROOT / "examples" / "jax_tuning.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        report = build(variants, store=Store(Path(folder)), options=Options(jobs=1))
        return {
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "seconds": round(report.seconds, 1),
            "variants": [row(result) for result in report.results],
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
    """Build, and add the results to the file."""
    path = Path(file)
    versions = json.loads(path.read_text())["jax"] if path.exists() else {}
    versions[metadata.version("jax")] = measure()
    path.write_text(text(versions))


if __name__ == "__main__":
    main(*sys.argv[1:])
