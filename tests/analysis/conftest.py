"""Fixtures of the tests of analysis: kernels of three architectures, compiled once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.analysis.nvdisasm import disassemble_all
from pallasc.analysis.sass import Code
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.toolchain.toolchain import find_disassembler
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

LIBRARY = Path(__file__).parents[2] / "specs" / "library"
KERNELS = {
    "hopper_matmul": ("hopper_matmul.yaml", "hopper_matmul[m=1024,tile_n=128]", ""),
    "jax_blackwell_matmul": ("jax_kernels.yaml", "jax_blackwell_matmul", ""),
    "softmax": ("softmax.yaml", "softmax", "a100-sxm"),
    "add": ("elementwise.yaml", "add", "a100-sxm"),
}
"""The spec file, the start of a variant's id, and a target that replaces the spec's."""


@pytest.fixture(scope="session")
def artifacts(library_store: Store) -> Mapping[str, Artifact]:
    """Return artifacts for Ampere, Hopper and Blackwell by short names."""
    if find_disassembler() is None:
        pytest.skip("nvdisasm is not installed")
    variants = {name: _variant(*row) for name, row in KERNELS.items()}
    results = build(list(variants.values()), store=library_store, options=Options(jobs=1)).results
    found: dict[str, Artifact] = {}
    for name, result in zip(variants, results, strict=True):
        assert result.artifact is not None, result.error
        found[name] = result.artifact
    return found


@pytest.fixture(scope="session")
def cubins(artifacts: Mapping[str, Artifact]) -> Mapping[str, bytes]:
    """Return the cubins of these artifacts by the same names."""
    return {name: artifact.cubin() for name, artifact in artifacts.items()}


@pytest.fixture(scope="session")
def together(cubins: Mapping[str, bytes]) -> Mapping[str, Mapping[str, Code]]:
    """Return the code of these cubins, disassembled once."""
    return disassemble_all(cubins)


def _variant(file: str, begins: str, target: str) -> Any:
    specs = [spec for spec in load_yaml(LIBRARY / file) if spec.name == begins.partition("[")[0]]
    if target:
        specs = [replace(spec, targets=(target,)) for spec in specs]
    return next(variant for variant in expand(specs) if variant.id.startswith(begins))
