"""What determines a compilation, and what does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from pallasc.errors import Location
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.gpus import MODELS
from pallasc.specs.spec import Budget, Check, Tolerance, Variant

BASE = Variant(
    name="double",
    params=(("m", 8), ("kind", "fast")),
    target=MODELS["h100-sxm"],
    entry="kernels.py:double",
    args={"x": ArraySpec("f32", (8,)), "y": None, "z": [ArraySpec("i4", ()), {"w": None}]},
    static={"scale": {"$call": "math:floor", "x": 1.5}, "flag": True},
    reference=None,
    tolerance=None,
    budget=Budget(),
    files=("b.json", "a.json"),
    location=Location("specs.yaml", 3, 5),
    base_dir="/somewhere",
)

CHANGES: dict[str, dict[str, Any]] = {
    "entry": {"entry": "kernels.py:triple"},
    "dtype": {"args": {**dict(BASE.args), "x": ArraySpec("f16", (8,))}},  # type: ignore[arg-type]
    "shape": {"args": {**dict(BASE.args), "x": ArraySpec("f32", (9,))}},  # type: ignore[arg-type]
    "null argument": {"args": {"x": ArraySpec("f32", (8,)), "z": []}},
    "static value": {"static": {"scale": 1, "flag": True}},
    "static type": {"static": {**BASE.static, "flag": 1}},
    "static node": {"static": {"scale": {"$call": "math:ceil", "x": 1.5}, "flag": True}},
    "model": {"target": MODELS["h100-pcie"]},
    "sm count": {"target": replace(MODELS["h100-sxm"], sm_count=131)},
    "files": {"files": ("a.json",)},
}

KEEPS: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "params": {"params": ()},
    "model name": {"target": replace(MODELS["h100-sxm"], name="mine")},
    "reference": {"reference": "kernels.py:slow"},
    "tolerance": {"tolerance": Tolerance(rtol=0.1)},
    "budget": {"budget": Budget(registers=1)},
    "check": {"check": Check((("m", 4),), {}, {}, (), None, 1)},
    "vmap": {"vmap": "doubles"},
    "order of files": {"files": ("a.json", "b.json")},
    "order of arguments": {"args": dict(reversed(dict(BASE.args).items()))},  # type: ignore[arg-type]
    "order of static": {"static": dict(reversed(BASE.static.items()))},
    "location": {"location": Location("elsewhere.yaml", 30)},
    "base_dir": {"base_dir": "/elsewhere"},
}


def text(variant: Variant) -> str:
    return json.dumps(variant.request())


@pytest.mark.parametrize("name", [*CHANGES, *KEEPS])
def test_request_changes_with_what_determines_a_compilation(name: str) -> None:
    changed = structs.replace(BASE, **{**CHANGES, **KEEPS}[name])
    assert (text(changed) == text(BASE)) is (name in KEEPS)


def test_id_names_kernel_parameters_and_model() -> None:
    assert BASE.id == "double[m=8,kind=fast]@h100-sxm"
    assert structs.replace(BASE, params=()).id == "double@h100-sxm"
    other = structs.replace(BASE, params=(("a", None), ("b", True)))
    assert other.id == "double[a=null,b=true]@h100-sxm"


def test_arrays_are_listed_with_their_paths() -> None:
    found = [(path, str(array)) for path, array in BASE.arrays()]
    assert found == [("x", "f32[8]"), ("z.0", "i4[]")]
