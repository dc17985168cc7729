"""`bench/corpus.py` and `bench/sweep.py`, over a made-up test file in the style of JAX's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
TESTS = """\
import inspect

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import test_util as jtu

NEW = "out_type" in inspect.signature(plgpu.kernel).parameters
OUT = {"out_type" if NEW else "out_shape": jax.ShapeDtypeStruct((256,), jnp.float32)}


class SmallTest(jtu.JaxTestCase):

    @parameterized.parameters(2, 3)
    def test_scale(self, factor):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...] * factor

        x = jnp.arange(256, dtype=jnp.float32)
        np.testing.assert_array_equal(plgpu.kernel(kernel, **OUT)(x), x * factor)

    def test_add(self):
        def kernel(x_ref, y_ref, o_ref):
            o_ref[...] = x_ref[...] + y_ref[...]

        x = jnp.arange(256, dtype=jnp.float32)
        np.testing.assert_array_equal(plgpu.kernel(kernel, **OUT)(x, x), x + x)

    def test_without_a_kernel(self):
        self.assertEqual(np.arange(3).shape, (3,))


if __name__ == "__main__":
    absltest.main()
"""


def test_kernels_of_a_test_file_are_counted_and_timed_both_ways(tmp_path: Path) -> None:
    """Of its three kernels the first warms up."""
    file = tmp_path / "small_test.py"
    file.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, BENCH / "corpus.py", file, "--json", "--check", "--kernels", "2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(done.stdout)["figures"]}
    counted = figures.pop("kernels")
    assert (counted["value"], counted["goal"], counted["met"]) == (2, 200, False)
    for name in ("in sum", "median"):
        assert figures[f"pallasc / plain JAX, {name}"]["goal"] == 1.1
        assert figures[f"pallasc / plain JAX, {name}"]["value"] > 0
    assert figures["plain JAX, in sum"]["value"] > 0
    for name in (
        "compiled by plain JAX alone",
        "left out, plain JAX refuses them",
        "left out, no Mosaic GPU kernel",
    ):
        assert figures[name]["value"] == 0
    lines = done.stderr.splitlines()
    timed = {line.split()[-1] for line in lines if line[:3] in ("1: ", "2: ")}
    tests = {f"SmallTest.{name}" for name in ("test_scale0", "test_scale1", "test_add")}
    assert len(timed) == 2
    assert timed < tests


def test_the_sweep_counts_tests_by_how_they_end(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "pallas" / "mosaic_gpu_test.py"
    file.parent.mkdir(parents=True)
    file.write_text(TESTS.replace("x * factor)\n", "x * min(factor, 2))\n"))
    done = subprocess.run(
        [sys.executable, BENCH / "sweep.py", tmp_path, "--target", "sm_90a", "--json", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    counted = {name.removeprefix("sm_90a: "): count for name, count in found.items() if count}
    assert counted == {"right": 2, "wrong": 1, "no kernel": 1}, done.stderr
    (wrong,) = (line for line in done.stderr.splitlines() if "\twrong\t" in line)
    assert "SmallTest.test_scale1" in wrong
