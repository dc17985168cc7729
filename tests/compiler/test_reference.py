"""References run in a separate process, with the kernel's arguments, and give samples for jobs."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.compiler.arrays import random_bytes
from pallasc.compiler.references import (
    SEED,
    compare,
    kernel_call,
    positions_of,
    run_reference,
    sample_references,
)
from pallasc.errors import Location, PallascError, SpecError
from pallasc.specs.arrays import resolve_array
from pallasc.specs.artifacts.plan import Binding, Buffer, LaunchPlan
from pallasc.specs.bundle.tuned import MOST_VALUES, parse_reference
from pallasc.specs.gpus import resolve_target
from pallasc.specs.spec import Budget, Tolerance, Variant
from pallasc.specs.tuning import Tuning

REFERENCES = """
import os
import jax

assert jax.default_backend() == "cpu"

def by_name(a, cache, *, scale):
    assert isinstance(cache["k"], list) and cache["none"] is None
    return {"sum": a * scale + cache["k"][0], "b": cache["b"] - 1}

def by_position(first, second, /, **static):
    assert static == {"scale": 3, "kind": ("x", 1)}
    return first - second["y"]

def plain(a):
    return a

def wide(a):
    return a + 2**40

def shouting(a):
    raise ValueError("a" * 10**7)

def dying(a, **static):
    os._exit(7)

def twice(a, *, factor):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write("called\\n")
    return a * factor

def narrow(a, *, factor):
    return a[:1]

def failing(a, *, factor):
    raise ValueError("no such factor")
"""
SIZE = 5000
ARRAY = resolve_array("f32[4]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the references."""
    made = tmp_path_factory.mktemp("references")
    (made / "references.py").write_text(REFERENCES)
    return made


def _variant(folder: Path, reference: str | None, args: Any, static: Any, **more: Any) -> Variant:
    fields: dict[str, Any] = {"name": "kernel", "params": (), "tolerance": None, **more}
    return Variant(
        target=resolve_target("h100-sxm"),
        entry="references.py:plain",
        args=args,
        static=static,
        reference=reference and f"references.py:{reference}",
        budget=Budget(),
        files=(),
        location=Location("kernels.yaml", 4, 5),
        base_dir=str(folder),
        **fields,
    )


def _array(path: str, value: float, kind: str = "f4") -> tuple[Binding, bytes]:
    values = np.full(4, value, kind)
    return Binding(path, {"f4": "f32", "i8": "i64"}[kind], values.shape, 0), values.tobytes()


def test_references_get_what_the_kernel_gets(folder: Path, tmp_path: Path) -> None:
    cache = {"k": [ARRAY], "none": None, "b": ARRAY}
    variants = [
        _variant(folder, "by_name", {"cache": cache, "a": ARRAY}, {"scale": 2, "tile": 64}),
        _variant(folder, "by_position", [ARRAY, {"z": ARRAY, "y": ARRAY}],
                 {"scale": 3, "kind": ["x", 1]}),
        _variant(folder, "wide", {"a": resolve_array("i64[4]")}, {}),
    ]  # fmt: skip
    launches = [
        (
            [_array("a", 1), _array("cache.b", 10), _array("cache.k.0", 5)],
            [_array("out.b", 9), _array("out.sum", 7)],
        ),
        # JAX flattens a mapping in the order of its keys: y, then z.
        ([_array("first", 1), _array("second.y", 2), _array("second.z", 3)], [_array("out", -1)]),
        ([_array("a", 1, "i8")], [_array("out", 2**40 + 1, "i8")]),
    ]
    found = dict(compare(variants, lambda n: launches[n]))
    assert sorted(found) == [0, 1, 2]
    assert all(output.mismatches == 0 for outputs in found.values() for output in outputs)
    assert [output.max_abs for output in found[0]] == [0, 0]


@pytest.mark.parametrize(
    ("reference", "kind", "words"),
    [
        ("dying", PallascError, "the process that runs the reference of kernel@h100"),
        ("shouting", SpecError, r"ValueError: aaa.*characters cut"),
    ],
)
def test_a_reference_that_fails_is_an_error_of_a_few_words(
    folder: Path, tmp_path: Path, reference: str, kind: type[Exception], words: str
) -> None:
    variant, arrays = _variant(folder, reference, {"a": ARRAY}, {}), [_array("a", 1)]
    with pytest.raises(kind, match=words) as caught:
        list(compare([variant], lambda _: (arrays, arrays)))
    assert len(str(caught.value)) < 10_000


def test_a_launch_that_fails_ends_the_comparison(folder: Path) -> None:
    def launch(_: int) -> Any:
        raise SpecError("no launch today")

    with pytest.raises(SpecError, match="no launch today"):
        list(compare([_variant(folder, "plain", {"a": ARRAY}, {})] * 2, launch))


@pytest.mark.parametrize("call", [kernel_call, run_reference])
def test_arrays_of_single_bits_are_refused_before_jax_fails(call: Any, folder: Path) -> None:
    variant = _variant(folder, "plain", {"a": resolve_array("i1[8]")}, {})
    with pytest.raises(SpecError, match="JAX cannot compute with arrays of i1") as caught:
        call(variant, {"a": np.zeros(8, ml_dtypes.int1)})
    assert caught.value.location == variant.location


def test_few_elements_are_all_compared_and_many_are_sampled_in_order() -> None:
    assert positions_of("out", 3) == [0, 1, 2]
    sampled = positions_of("out", 10**9)
    assert sampled == sorted(set(sampled))
    assert len(sampled) == MOST_VALUES
    assert sampled == positions_of("out", 10**9)
    assert sampled != positions_of("other", 10**9)


def test_points_that_differ_in_tuned_parameters_share_one_call_of_the_reference(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("CALLS", str(calls))

    def variant(reference: str | None, tile: int = 1, **more: Any) -> Variant:
        fields: dict[str, Any] = {
            "name": reference or "none",
            "params": (("n", SIZE), ("tile", tile)),
            "tolerance": Tolerance(rtol=0.25, atol=None),
            "env": ("CALLS",),
            "tuning": Tuning(by=("n",), over=("tile",)),
        }
        args = {"a": resolve_array(f"f32[{SIZE}]")}
        return _variant(folder, reference, args, {"factor": 2}, **{**fields, **more})

    buffers = (Buffer("input", 4 * SIZE), Buffer("output", 4 * SIZE))
    arrays = (Binding("a", "f32", (SIZE,), 0), Binding("out", "f32", (SIZE,), 1))
    plan = LaunchPlan(buffers, arrays[:1], arrays[1:], (), [0], 0)
    meshed = variant("twice", mesh=(("x", 2),), name="meshed")
    variants = [
        variant("twice", 1), variant("narrow"), variant("twice", 2), variant("failing"),
        variant("dying"), variant(None), meshed,
    ]  # fmt: skip
    found = sample_references([(each, plan) for each in variants])
    assert calls.read_text() == "called\n"

    assert found[0] == found[2]
    assert found[0].data is not None
    reference = parse_reference(found[0].data, [(SIZE,)])
    (output,) = reference.outputs
    values = np.frombuffer(random_bytes("f32", 4 * SIZE, seed=SEED, name="a"), np.float32)
    assert list(output.positions) == positions_of("out", SIZE)
    assert list(output.values) == list(2 * values[list(output.positions)])
    assert (reference.seed, reference.rtol, reference.atol) == (SEED, 0.25, 0.0)

    assert all(samples.data is None for n, samples in enumerate(found) if n not in (0, 2))
    assert "gives arrays of the shapes [1], and the kernel [5000]" in found[1].why
    assert found[3].why.endswith("failed: ValueError: no such factor")
    assert "ended" in found[4].why
    assert found[5].why == "the spec names no reference"
    assert found[6].why == "it runs on several devices"
