"""What JAX's transformations make of kernels: vmap, derivatives, shard_map."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import native_build
import pytest
import standin as control

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    if reason := control.why_not():
        pytest.skip(reason)
    path = os.pathsep.join([str(HERE), str(HERE / "programs"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", HERE / "programs" / "jax_rules.py"],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "JAX_PLATFORMS": "cpu",
            "PALLASC_NATIVE": str(native_build.build()),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["handlers"]
    return found


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("both", [15, 25]),
        ("inside jit", [15, 25]),
        ("another axis", [15, 25]),
        ("repeated", [15, 25]),
        ("as it is", "nothing"),
        ("another kernel", [6, 10]),
        ("of a spec: single", [6, 10]),
        ("of a spec: own", [6, 10]),
        ("of a spec: the rest forgotten", [6, 10]),
        ("of a spec: chosen", [6, 10]),
        (
            "of a spec: alone",
            "ArgumentError: alone cannot be used under jax.vmap: its spec names the kernel "
            "elsewhere for that, which was not opened with it.",
        ),
        (
            "of a spec: undeclared",
            "ArgumentError: undeclared cannot be used under jax.vmap: its shapes are fixed.",
        ),
        (
            "of a spec: several",
            "ArgumentError: variants of several name several kernels for jax.vmap: batched, own.",
        ),
        (
            "of a spec: overridden",
            "ArgumentError: single has no variant for a batch of 2 under jax.vmap: arrays of the "
            "shapes [2, 4, 64].",
        ),
        (
            "undeclared",
            "ArgumentError: multiply cannot be used under jax.vmap: its shapes are fixed.",
        ),
        (
            "of a size",
            "ArgumentError: multiply has no variant for a batch of 5 under jax.vmap: arrays of the "
            "shapes [5, 4, 64], [5, 4, 64].",
        ),
        (
            "other results",
            "ArgumentError: wrong: the variant for a batch of 2 gives results of the shapes "
            "[3, 4, 64], and jax.vmap needs [2, 4, 64].",
        ),
        (
            "no kernel",
            "ArgumentError: multiply: defvmap takes a kernel, not a builtin_function_or_method.",
        ),
    ],
)
def test_vmap_calls_the_variant_for_a_batch_where_one_is_declared(
    what: str, expected: Any, report: dict[str, Any]
) -> None:
    assert report["vmap"][what] == expected


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("none", "ArgumentError: multiply has no derivative."),
        ("function", [15, 9]),
        ("of vmap", 5),
        ("result as residual", [15, 0]),
        ("kernel", 5),
        ("kernel with results", 30),
        (
            "too few",
            "ArgumentError: the backward function of multiply must give 2 gradients, one for each "
            "array, and gives 1.",
        ),
        (
            "other type",
            "ArgumentError: multiply: the gradient of x0 is f32[64], and x0 is f32[4, 64].",
        ),
        (
            "other count",
            "ArgumentError: the backward kernel of multiply must take 3 or 4 arrays: its inputs, "
            "its results or not, and their cotangents. backward takes 1.",
        ),
        (
            "too few results",
            "ArgumentError: the backward kernel of multiply must give 2 results, the gradients of "
            "its arrays, and backward gives 1.",
        ),
        (
            "nothing to call",
            "ArgumentError: multiply: the backward function of a kernel is an int.",
        ),
    ],
)
def test_gradients_are_what_the_declared_backward_gives(
    what: str, expected: Any, report: dict[str, Any]
) -> None:
    assert report["grad"][what] == expected


def test_gradients_must_be_a_tuple(report: dict[str, Any]) -> None:
    message = report["grad"]["no tuple"]
    assert message.startswith("ArgumentError: the backward function of multiply must give 2")
    assert "and gives a" in message


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("both", [9, 25, 9, 25]),
        ("unchecked", [9, 25, 9, 25]),
        ("temporaries", [9, 25, 9, 25]),
        ("gradient", [3, 5, 3, 5]),
        ("gradient of one replicated", 3 + 5 + 3 + 5),
        ("second replicated", [15, 25, 15, 25]),
        ("first replicated", [9, 15, 9, 15]),
    ],
)
def test_shard_map_runs_a_kernel_on_each_device(
    what: str, expected: Any, report: dict[str, Any]
) -> None:
    assert report["shard_map"][what] == expected
