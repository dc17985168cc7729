"""The recorded digests of all artifacts of `specs/library` and `examples/jax_tuning.yaml`.

Usage: digests.py [--store FOLDER]. Builds everything with the JAX that is installed and writes
`digests-<version>.json`: the toolchain, and the digest of each variant's artifact. To be run where
the bytes of artifacts are meant to change, or where the toolchain of the tests does; it takes some
minutes. A store that is named is kept.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.report import VariantResult
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).parent / f"digests-{'.'.join(metadata.version('jax').split('.')[:2])}.json"
LIBRARY = sorted((ROOT / "specs" / "library").glob("*.yaml"))
TUNINGS = ROOT / "examples" / "jax_tuning.yaml"


def variants(*files: Path) -> list[Variant]:
    """Return all variants of spec files."""
    return [variant for file in files for variant in expand(load_yaml(file))]


def digests(results: Iterable[VariantResult]) -> dict[str, str]:
    """Return the digest of each artifact, by the variant's id."""
    found = {}
    for result in results:
        if result.artifact is None:
            raise SystemExit(f"{result.variant.id} was not compiled: {result.error}")
        found[result.variant.id] = result.artifact.digest
    return found


def toolchain(results: Sequence[VariantResult]) -> dict[str, Any] | None:
    """Return the toolchain that the first artifact names, which its digest covers."""
    artifact = results[0].artifact
    return dict(artifact.toolchain) if artifact else None


def recorded() -> dict[str, Any]:
    """Return the record for the installed JAX; there is none for versions in between."""
    return json.loads(FILE.read_text()) if FILE.is_file() else {"toolchain": None, "digests": {}}


def main() -> None:
    """Build everything and write the digests."""
    parser = argparse.ArgumentParser(prog="digests.py")
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pallasc-digests-") as folder:
        store = Store(options.store or Path(folder) / "store")
        results = build(variants(*LIBRARY, TUNINGS), store=store).results
        content = {"toolchain": toolchain(results), "digests": digests(results)}
    FILE.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{FILE.name}: {len(results)} artifacts\n")


if __name__ == "__main__":
    main()
