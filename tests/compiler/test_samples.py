"""Reference values for jobs: sampled elements, or why there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.compiler.arrays import random_bytes
from pallasc.compiler.references import SEED, positions_of, sample_references
from pallasc.errors import Location
from pallasc.specs.arrays import resolve_array
from pallasc.specs.artifacts.plan import Binding, Buffer, LaunchPlan
from pallasc.specs.bundle.tuned import MOST_VALUES, parse_reference
from pallasc.specs.gpus import resolve_target
from pallasc.specs.spec import Budget, Tolerance, Variant
from pallasc.specs.tuning import Tuning

REFERENCES = """
import os

def twice(a, *, factor):
    print("called")
    with open(os.environ["CALLS"], "a") as calls:
        calls.write("called\\n")
    return a * factor

def narrow(a, *, factor):
    return a[:1]

def failing(a, *, factor):
    raise ValueError("no such factor")

def dying(a, *, factor):
    os._exit(7)
"""

SIZE = 5000
PLAN_ARRAYS = (Binding("a", "f32", (SIZE,), 0), Binding("out", "f32", (SIZE,), 1))


def _plan() -> LaunchPlan:
    buffers = (Buffer("input", 4 * SIZE), Buffer("output", 4 * SIZE))
    return LaunchPlan(buffers, PLAN_ARRAYS[:1], PLAN_ARRAYS[1:], (), [0], 0)


def _variant(folder: Path, reference: str | None, tile: int = 1, **changed: Any) -> Variant:
    fields: dict[str, Any] = {
        "name": reference or "none",
        "params": (("n", SIZE), ("tile", tile)),
        "target": resolve_target("h100-sxm"),
        "entry": "references.py:twice",
        "args": {"a": resolve_array(f"f32[{SIZE}]")},
        "static": {"factor": 2},
        "reference": reference and f"references.py:{reference}",
        "tolerance": Tolerance(rtol=0.25, atol=None),
        "budget": Budget(),
        "files": (),
        "location": Location("kernels.yaml", 4, 5),
        "base_dir": str(folder),
        "env": ("CALLS",),
        "tuning": Tuning(by=("n",), over=("tile",)),
    }
    return Variant(**{**fields, **changed})


def test_few_elements_are_all_compared_and_many_are_sampled_in_order() -> None:
    assert positions_of("out", 3, SEED) == [0, 1, 2]
    sampled = positions_of("out", 10**9, SEED)
    assert sampled == sorted(set(sampled))
    assert len(sampled) == MOST_VALUES
    assert sampled == positions_of("out", 10**9, SEED)
    assert sampled != positions_of("other", 10**9, SEED)


def test_points_that_differ_in_tuned_parameters_share_one_call_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "references.py").write_text(REFERENCES)
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))
    variants = [
        _variant(tmp_path, "twice", 1),
        _variant(tmp_path, "narrow"),
        _variant(tmp_path, "twice", 2),
        _variant(tmp_path, "failing"),
        _variant(tmp_path, "dying"),
        _variant(tmp_path, None),
        _variant(tmp_path, "twice", mesh=(("x", 2),), name="meshed"),
    ]
    found = sample_references([(variant, _plan()) for variant in variants])
    assert calls.read_text() == "called\n"

    assert found[0] == found[2]
    assert found[0].data is not None
    reference = parse_reference(found[0].data, [(SIZE,)])
    (output,) = reference.outputs
    values = np.frombuffer(random_bytes("f32", 4 * SIZE, seed=SEED, name="a"), np.float32)
    assert list(output.positions) == positions_of("out", SIZE, SEED)
    assert list(output.values) == list(2 * values[list(output.positions)])
    assert (reference.seed, reference.rtol, reference.atol) == (SEED, 0.25, 0.0)

    assert all(samples.data is None for n, samples in enumerate(found) if n not in (0, 2))
    assert "gives arrays of the shapes [1], and the kernel [5000]" in found[1].why
    assert found[3].why.endswith("failed: ValueError: no such factor")
    assert "ended" in found[4].why
    assert found[5].why == "the spec names no reference"
    assert found[6].why == "it runs on several devices"
