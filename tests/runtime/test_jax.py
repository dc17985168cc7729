"""Arrays of JAX: inside `jit` and outside, updated in place, refused where it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import made
import native_build
import pytest
import standin as control

from pallasc.runtime.adapters.jax_arrays import _load
from pallasc.runtime.device.devices import state

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["handlers", "callback"])
def report(request: pytest.FixtureRequest) -> dict[str, Any]:
    if reason := control.why_not():
        pytest.skip(reason)
    path = os.pathsep.join([str(HERE), str(HERE / "programs"), os.environ.get("PYTHONPATH", "")])
    has_handlers = request.param == "handlers"
    done = subprocess.run(
        [sys.executable, "-P", HERE / "programs" / "jax_ways.py"],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "JAX_PLATFORMS": "cpu",
            "PALLASC_NATIVE": str(native_build.build()) if has_handlers else "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["handlers"] == has_handlers
    return found


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_results_updates_and_repeated_outputs_are_right_and_inputs_stay(
    where: str, report: dict[str, Any]
) -> None:
    assert report[where] == [3, 4, 3, 1, 2]


def test_a_call_outside_jit_launches_once(report: dict[str, Any]) -> None:
    assert report["one launch a call"] == 1


def test_arrays_go_by_name(report: dict[str, Any]) -> None:
    assert report["by name"] == 3


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("donated", [3, 4, 3, True]),
        ("updated twice", [3, 4, 3, 2, 3, 4, 3]),
        ("loop", 7),
        ("map", [3, 4]),
        ("derivative", 1),
        ("shapes", [[4, 64]] * 3),
        ("no elements", [4, 64]),
        ("nothing by position", [4, 64]),
    ],
)
def test_what_jax_makes_of_a_call_is_right(
    what: str, expected: Any, report: dict[str, Any]
) -> None:
    assert report[what] == expected


def test_nodes_are_flattened_as_jax_does_or_refused(report: dict[str, Any]) -> None:
    assert report["nodes"] == {
        "inside": [3, 3, 3, 3],
        "outside": [3, 3, 3, 3],
        "of numpy": 3,
        "other static data": "ArgumentError: made: w is a QArray with the static data (1), and the "
        "kernel was compiled for (0).",
        "other type": "ArgumentError: made: w must be a QArray, not an Opaque.",
        "an array": "ArgumentError: made: w must be a QArray, not an ArrayImpl.",
        "other parts": "ArgumentError: made: w.0 is a Opaque of 2 parts, not of 3.",
        "a part too many": "ArgumentError: made: w.0.1 must be None, as it was when the kernel was "
        "compiled.",
    }


def test_arrays_get_to_a_kernel_in_the_layout_that_it_takes(report: dict[str, Any]) -> None:
    assert report["laid out"] == [True] * 3


def test_an_argument_that_is_none_chooses_the_variant(report: dict[str, Any]) -> None:
    assert report["optional"] == [[1, 1]] * 3 + [[3, 3]] * 2


def test_temporaries_are_memory_of_xla(report: dict[str, Any]) -> None:
    assert report["temporaries"] == {
        "result": 3,
        "types": "(tensor<4x64xf32>, tensor<512xui8>)",
        "on the device": [True, 0],
    }


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("vmap", "made cannot be used under jax.vmap: its shapes are fixed."),
        ("vmap of jit", "made cannot be used under jax.vmap: its shapes are fixed."),
        ("out", "made: out cannot be given with JAX arrays, which are never written into."),
        ("stream", "made: inside JAX the stream is XLA's and cannot be given."),
        ("numpy beside", "made: b is a ndarray among JAX arrays."),
        ("numpy before", "made: a is a ndarray among JAX arrays."),
        ("shape", "made: a has shape [2, 64], and the kernel takes f32[4, 64]."),
        ("dtype", "made has no variant for i32[4, 64], f32[4, 64]."),
        ("gradient", "made has no derivative."),
        ("tangent inside", "made has no derivative."),
        ("key", "made: a has dtype key<fry>, and the kernel takes f32[4, 64]."),
        ("type alone", "made: a is a ShapeDtypeStruct among JAX arrays."),
        ("64 bits", "made: out is f64, and JAX has 64-bit dtypes switched off."),
        ("operator", "sum: b has dtype f16, and the kernel takes f32[4, 64]."),
    ],
)
def test_what_cannot_be_is_refused(what: str, message: str, report: dict[str, Any]) -> None:
    assert report["refused"][what] == f"ArgumentError: {message}"


def test_the_warm_up_loads_on_every_local_device(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.devices("9.0", "8.0", "9.0")
    local = [SimpleNamespace(local_hardware_id=number) for number in (2, 1, 0)]
    fake = SimpleNamespace(default_backend=lambda: "gpu", local_devices=lambda: local)
    monkeypatch.setitem(sys.modules, "jax", fake)
    kernel = made.kernel(made.add())
    _load(kernel, [("f32", (4, 64))] * 2)
    (candidate,) = kernel.variants
    # There is no code for the second one, which the callback will say.
    assert set(state.programs[candidate.artifact]) == {0, 2}
