"""Results that depend on the order of blocks, without a race: compared between schedules."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.checks.artifact.order import differences
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.spec import Tolerance

PAGE = Path(__file__).parents[2] / "docs" / "check.md"
WRONG, RIGHT = (
    textwrap.indent(code, "    ")
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
KERNELS = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT = "out_shape" if OLD else "out_type"
BLOCKS = 4


def run(body, x):
    shape = jax.ShapeDtypeStruct((128,), x.dtype)
    return plgpu.kernel(body, grid=(BLOCKS,), grid_names=("i",), **{OUT: shape})(x)


def horner(x):
WRONG
    return run(body, x)


def horner_of(x):
    for i in range(BLOCKS):
        x = x * 2 + i
    return x


def added(x):
    def body(x, o):
        i = lax.axis_index("i")
        lock = pl.get_global(plgpu.SemaphoreType.REGULAR)

        @pl.when(i == 0)
        def _():
            o[...] = x[...]
            pl.semaphore_signal(lock, 1)

        pl.semaphore_wait(lock, 1)
        o[...] = o[...] + x[...] * (i + 1).astype(x.dtype)
        pl.semaphore_signal(lock, 1)

    return run(body, x)


def added_of(x):
    return x * (1 + 1 + 2 + 3 + 4)


def first_reduces(x):
RIGHT
    shapes = [jax.ShapeDtypeStruct(s, x.dtype) for s in ((BLOCKS, 128), (128,))]
    options = {"grid": (BLOCKS,), "grid_names": ("i",), OUT: shapes}
    return plgpu.kernel(body, **options)(x)


def scattered(places, x):
    return jnp.zeros((8,), x.dtype).at[places % 8].add(x)
""".replace("WRONG", WRONG).replace("RIGHT", RIGHT)
SPEC: dict[str, dict[str, Any]] = {
    "horner": {"args": ["i32[128]"]},
    "horner_compared": {"args": ["i32[128]"], "reference": "kernels.py:horner_of"},
    "horner_floats": {"args": ["f32[128]"]},
    "added": {"args": ["i32[128]"]},
    "added_floats": {"args": ["f32[128]"]},
    "added_compared": {
        "args": ["f32[128]"],
        "reference": "kernels.py:added_of",
        "tolerance": {"rtol": 1e-4, "atol": 1e-4},
    },
    "first_reduces": {"args": ["f32[128]"]},
    "scattered": {"args": ["i32[1024]", "f32[1024]"]},
    "scattered_integers": {"args": ["i32[1024]", "i32[1024]"]},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("order")
    (folder / "kernels.py").write_text(KERNELS)
    kernels = [
        {"name": name, "entry": f"kernels.py:{_function(name)}", **fields}
        for name, fields in SPEC.items()
    ]
    spec = {"schema": 1, "targets": ["h100-sxm"], "kernels": kernels}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return checking.check(folder, "spec.yaml", "--json", "--level", "artifact").results


def _function(name: str) -> str:
    functions = ("first_reduces", "horner", "added", "scattered")
    return next(function for function in functions if name.startswith(function))


@pytest.mark.parametrize("name", ["horner", "horner_floats"])
def test_a_result_that_another_order_changes_is_found_without_a_reference(
    name: str, results: Any
) -> None:
    (finding,) = results[name]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "error")
    assert "out[0] depends on the order of blocks: it is " in finding["message"]
    assert " in schedule 1 and " in finding["message"]
    assert "128 of 128 elements differ" in finding["message"]
    assert finding["message"].endswith("; in schedule 2 of 3")
    line = KERNELS.splitlines()[finding["location"]["line"] - 1]
    assert "* 2 + i.astype" in line


def test_a_result_that_is_right_in_the_order_of_the_grid_alone_is_found(results: Any) -> None:
    (finding,) = results["horner_compared"]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "error")
    assert "128 of 128 elements differ from the reference" in finding["message"]
    assert "; it is right in schedule 1; " in finding["message"]


@pytest.mark.parametrize("name", ["added_floats", "added_compared", "scattered"])
def test_another_rounding_is_a_note(name: str, results: Any) -> None:
    (finding,) = results[name]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "note")
    assert "depends on the order of blocks" in finding["message"]
    assert finding["hint"].startswith("Each order of additions rounds differently")
    assert finding["location"] is not None


@pytest.mark.parametrize("name", ["added", "first_reduces", "scattered_integers"])
def test_results_that_no_order_changes_pass(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", "")


def binding(dtype: str, shape: Sequence[int] = (3,)) -> Binding:
    return Binding(path="out", buffer=0, dtype=dtype, shape=tuple(shape))


CLOSE = Tolerance(rtol=0.1, atol=0.0)
PAIRS: list[tuple[str, Any, Any, Tolerance | None, str]] = [
    ("f32", [1, np.nan, 0.0], [1, np.nan, -0.0], None, "nothing"),
    ("i32", [1, 2, 3], [1, 2, 3], None, "nothing"),
    ("i32", [1, 2, 3], [1, 2, 4], None, "error"),
    ("i32", [1, 2, 30], [1, 2, 31], CLOSE, "note"),
    ("i64", [1, 2, 1 << 60], [1, 2, (1 << 60) + 1], None, "error"),
    ("f32", [1, 2, 3], [1, 2, 3.0000002], None, "note"),
    ("f32", [1, 2, 3], [1, 2, 3.0001], None, "note"),
    ("f32", [1, 2, 3], [1, 2, 3.1], None, "error"),
    ("f32", [1, 2, 3], [1, 2, 3.1], CLOSE, "note"),
    ("f32", [1, 2, 3], [1, 2, 3.0001], Tolerance(rtol=1e-6, atol=0.0), "error"),
    ("f32", [1, 2, 3], [1, 2, np.nan], CLOSE, "error"),
    ("f32", [1, 2, np.inf], [1, 2, -np.inf], CLOSE, "error"),
]


@pytest.mark.parametrize(("dtype", "one", "other", "tolerance", "told"), PAIRS)
def test_what_tolerances_allow_is_a_note(
    dtype: str, one: Any, other: Any, tolerance: Tolerance | None, told: str
) -> None:
    kind = np.dtype({"f32": "f4", "i32": "i4", "i64": "i8"}[dtype])
    plan = LaunchPlan((), (), (binding(dtype),), (), None, 0)
    pair = [[np.array(one, kind)]], [[np.array(other, kind)]]
    found = [f for f, _ in differences(plan, *pair, tolerance, agree=False)]
    assert [each.severity for each in found] == ([] if told == "nothing" else [told])
    agreeing = [f.severity for f, _ in differences(plan, *pair, tolerance, agree=True)]
    assert agreeing == ([] if told == "nothing" else ["note"])
