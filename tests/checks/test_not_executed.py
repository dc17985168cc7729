"""Lines that no schedule executes are a note, so that a check that passes does not hide them."""

from __future__ import annotations

import json
from typing import Any

import pytest

KERNELS = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT = "out_shape" if OLD else "out_type"


def chosen(x, least):
    def body(x, out):
        out[...] = x[...]

        @pl.when(x[0] >= least)
        def _():
            double = x[...] * 2  # first

            out[...] = double + 1  # last

    return plgpu.kernel(body, **{OUT: jax.ShapeDtypeStruct((128,), jnp.float32)})(x)
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("not_executed")
    (folder / "kernels.py").write_text(KERNELS)
    same = {"entry": "kernels.py:chosen", "args": {"x": "f32[128]"}}
    least = {"always": -1e30, "never": 1e30}
    kernels = [{"name": k, **same, "static": {"least": value}} for k, value in least.items()]
    spec = {"schema": 1, "targets": ["h100-sxm"], "kernels": kernels}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return checking.check(folder, "spec.yaml", "--json", "--level", "artifact")


def test_lines_that_no_schedule_executes_are_a_note(checked: Any) -> None:
    (finding,) = checked.results["never"]["findings"]
    lines = KERNELS.splitlines()
    first, last = (n for n, line in enumerate(lines, 1) if line.endswith(("# first", "# last")))
    assert finding["message"] == f"not executed: kernels.py:{first}-{last}"
    assert (finding["rule"], finding["severity"]) == ("not-executed", "note")
    assert finding["location"]["line"] == first
    assert checked.code == 0


def test_a_branch_that_is_taken_is_executed(checked: Any) -> None:
    result = checked.results["always"]
    assert (result["status"], result["findings"]) == ("passed", [])
