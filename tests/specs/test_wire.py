"""Specs and variants between processes."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs, parse_yaml
from pallasc.specs.spec import (
    Spec,
    spec_from_json,
    spec_to_json,
    variant_from_json,
    variant_to_json,
)

TEXT = """\
schema: 1
models: {mine: {arch: sm_90a, sm_count: 78}}
kernels:
  - name: k
    entry: json:loads
    args: {z: "f32[{m}]", a: [null, {b: "{dtype}[2]"}]}
    static: {s: {$call: "math:floor", x: 0.5}, t: [1, true, null, "{m}"]}
    matrix: {m: [2, 1], dtype: [f16]}
    include: [{m: 3, dtype: i4}]
    exclude: [{m: 1}]
    targets: [mine, sm_80]
    tolerance: {rtol: 1.0e-3}
    budget: {registers: "{m}"}
    mesh: {y: "{m}", x: 4}
    env: [KERNEL_TILE]
    reference: json:dumps
    check: {m: 1, $args: {z: "f32[2]"}, $seed: 3, $tolerance: {atol: 0.5}}
    vmap: k_of_batches
"""


@pytest.fixture(scope="module")
def specs() -> list[Spec]:
    library = Path(str(resources.files("pallasc.specs.library")))
    return [*parse_yaml(TEXT), *load_specs([library / "elementwise.yaml"])]


def test_a_spec_survives_json(specs: list[Spec]) -> None:
    for spec in specs:
        back = spec_from_json(json.loads(json.dumps(spec_to_json(spec))))
        assert back == spec
        assert back.locations == spec.locations
        assert list(back.matrix) == list(spec.matrix)
        assert list(back.mesh) == list(spec.mesh)


def test_a_variant_survives_json(specs: list[Spec]) -> None:
    back = [spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) for spec in specs]
    assert expand(back) == expand(specs)
    for variant in expand(specs):
        again = variant_from_json(json.loads(json.dumps(variant_to_json(variant))))
        assert again == variant
        assert (again.id, again.request()) == (variant.id, variant.request())
