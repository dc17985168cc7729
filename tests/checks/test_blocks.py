"""Kernels of several blocks at the artifact level, all checked by one run.

Results that depend on which block stores last, with a race or without one; lines that no schedule
executes.
"""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.checks.artifact import differences
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.spec import Tolerance

PAGE = Path(__file__).parents[2] / "docs" / "check.md"
WRONG, RIGHT = (
    textwrap.indent(code, "    ")
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
MORE = """

BLOCKS = 4


def horner(x):
WRONG
    return run(body, x, dtype=x.dtype, grid=BLOCKS)


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

    return run(body, x, dtype=x.dtype, grid=BLOCKS)


def added_of(x):
    return x * (1 + 1 + 2 + 3 + 4)


def first_reduces(x):
RIGHT
    shapes = [jax.ShapeDtypeStruct(s, x.dtype) for s in ((BLOCKS, 128), (128,))]
    return run(body, x, shape=shapes, grid=BLOCKS)


def three_more(x):
    return x + 3


def last_block(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("i").astype(jnp.float32)  # each block its own

    return run(body, x, grid=4)


def warpgroups(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("w").astype(jnp.float32)  # each warpgroup its own

    return run(body, x, num_threads=2, thread_name="w")


def copies(x, value):
    def body(x, o, smem):
        smem[...] = x[...] + value()
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o)  # each block copies its own
        plgpu.wait_smem_to_gmem(0)

    return run(body, x, grid=4, memory=[plgpu.SMEM((128,), jnp.float32)])


def copied(x):
    return copies(x, lambda: lax.axis_index("i").astype(jnp.float32))


def agreeing_copies(x):
    return copies(x, lambda: 3.0)


def agreeing(x):
    def body(x, o):
        o[...] = x[...] + 3.0

    return run(body, x, grid=4)


def counting(x):
    def body(x, o, smem):
        def step(k, _):
            smem[0] = x[k]  # the warps of the warpgroup may be in different iterations

        lax.fori_loop(0, 40, step, None)
        o[...] = x[...] + 3.0

    return run(body, x, memory=[plgpu.SMEM((8,), jnp.float32)])


def chosen(x, least):
    def body(x, out):
        out[...] = x[...]

        @pl.when(x[0] >= least)
        def _():
            double = x[...] * 2  # first

            out[...] = double + 1  # last

    return run(body, x)
""".replace("WRONG", WRONG).replace("RIGHT", RIGHT)
RACING = {
    "last_block": "# each block its own",
    "warpgroups": "# each warpgroup its own",
    "copied": "# each block copies its own",
}
AGREEING = ("agreeing", "agreeing_copies", "counting")
THREE_MORE = {"reference": "kernels.py:three_more"}
FIRST = {"entry": "kernels.py:chosen", "reference": None}
INTEGERS = {"args": ["i32[128]"], "entry": "kernels.py:horner"}
KERNELS: dict[str, dict[str, Any]] = {
    "horner": {**INTEGERS, "reference": None},
    "horner_compared": {**INTEGERS, "reference": "kernels.py:horner_of"},
    "added": {"reference": "kernels.py:added_of", "tolerance": {"rtol": 1e-4, "atol": 1e-4}},
    "first_reduces": {"reference": None},
    **dict.fromkeys((*RACING, *AGREEING), THREE_MORE),
    "warpgroups": {"reference": None},
    "always": {**FIRST, "static": {"least": -1e30}},
    "never": {**FIRST, "static": {"least": 1e30}},
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    kernels = [{"name": name, **fields} for name, fields in KERNELS.items()]
    words, folder = ("--level", "artifact"), tmp_path_factory.mktemp("blocks")
    return checking.check_kernels(folder, MORE, kernels, *words, targets=["h100-sxm"])


def test_a_result_that_another_order_changes_is_found_without_a_reference(checked: Any) -> None:
    (finding,) = checked.results["horner"]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "error")
    assert "out[0] depends on the order of blocks: it is " in finding["message"]
    assert " in schedule 1 and " in finding["message"]
    assert "128 of 128 elements differ" in finding["message"]
    assert finding["message"].endswith("; in schedule 2 of 3")
    assert "* 2 + i.astype" in checked.source[finding["location"]["line"] - 1]


def test_a_result_that_is_right_in_the_order_of_the_grid_alone_is_found(checked: Any) -> None:
    (finding,) = checked.results["horner_compared"]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "error")
    assert "128 of 128 elements differ from the reference" in finding["message"]
    assert "; it is correct in schedule 1; " in finding["message"]


def test_another_rounding_is_a_note(checked: Any) -> None:
    (finding,) = checked.results["added"]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "note")
    assert "depends on the order of blocks" in finding["message"]
    assert finding["hint"].startswith("Each order of additions rounds differently")
    assert finding["location"] is not None


@pytest.mark.parametrize("name", [*AGREEING, "first_reduces", "always"])
def test_results_that_no_order_changes_pass(name: str, checked: Any) -> None:
    """Unordered stores of one value, and branches that are taken."""
    result = checked.results[name]
    assert (result["status"], result["reason"], result["findings"]) == ("passed", "", [])


@pytest.mark.parametrize("name", RACING)
def test_unordered_stores_of_different_values_are_a_race(name: str, checked: Any) -> None:
    result = checked.results[name]
    assert result["status"] == "found", result
    (race,) = [each for each in result["findings"] if each["rule"] == "race"]
    assert "writes other values to the same bytes" in race["message"]
    here = race["location"]["line"]
    assert RACING[name] in checked.source[here - 1]
    assert here in {each["location"]["line"] for each in race["places"]}


def test_lines_that_no_schedule_executes_are_a_note(checked: Any) -> None:
    (finding,) = checked.results["never"]["findings"]
    first, last = (
        n for n, line in enumerate(checked.source, 1) if line.endswith(("# first", "# last"))
    )
    assert finding["message"] == f"not executed: kernels.py:{first}-{last}"
    assert (finding["rule"], finding["severity"]) == ("not-executed", "note")
    assert finding["location"]["line"] == first


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
