"""Kernels of several blocks at the artifact level, all checked by one run.

Results that depend on which block stores last, with a race or without one; lines that no schedule
executes; prefetches that the blocks of a cluster repeat.
"""

from __future__ import annotations

import json
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
ORDERS = """\
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
STORES = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT, SCRATCH = ("out_shape", "scratch_shapes") if OLD else ("out_type", "scratch_types")


def run(body, x, n=128, grid=4, memory=(), **options):
    shape = jax.ShapeDtypeStruct((n,), jnp.float32)
    options = {OUT: shape, SCRATCH: list(memory), **options}
    return plgpu.kernel(body, grid=(grid,), grid_names=("i",), **options)(x)


def three_more(x):
    return x + 3


def last_block(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("i").astype(jnp.float32)  # each block its own

    return run(body, x)


def overlapping(x):
    def body(x, o):
        i = lax.axis_index("i")
        part = pl.ds(i * 128, 256)
        o[part] = x[part] * (i + 1).astype(jnp.float32)  # half of it is the next block's

    return run(body, x, n=640)


def warpgroups(x):
    def body(x, o):
        o[...] = x[...] + lax.axis_index("w").astype(jnp.float32)  # each warpgroup its own

    return run(body, x, grid=1, num_threads=2, thread_name="w")


def copied(x):
    def body(x, o, smem):
        smem[...] = x[...] + lax.axis_index("i").astype(jnp.float32)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o)  # each block its own
        plgpu.wait_smem_to_gmem(0)

    return run(body, x, memory=[plgpu.SMEM((128,), jnp.float32)])


def agreeing(x):
    def body(x, o):
        o[...] = x[...] + 3.0

    return run(body, x)


def agreeing_copies(x):
    def body(x, o, smem):
        smem[...] = x[...] + 3.0
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(smem, o)
        plgpu.wait_smem_to_gmem(0)

    return run(body, x, memory=[plgpu.SMEM((128,), jnp.float32)])


def counting(x):
    def body(x, o, smem):
        def step(k, _):
            smem[0] = x[k]  # the warps of the warpgroup may be in different iterations

        lax.fori_loop(0, 40, step, None)
        o[...] = x[...] + 3.0

    return run(body, x, grid=1, memory=[plgpu.SMEM((8,), jnp.float32)])
"""
BRANCHES = """\
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
PREFETCHES = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT = "out_shape" if OLD else "out_type"


def fetched(x, axes, semantics="Lane", cluster=True):
    def body(x, out):
        plgpu.async_prefetch(x, collective_axes=axes)
        out[lax.axis_index("i")] = x[...]

    parameters = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics[semantics])
    shape = jax.ShapeDtypeStruct((2, 64, 64), jnp.float32)
    blocks = "cluster" if cluster else "grid"
    options = {blocks: (2,), f"{blocks}_names": ("i",), OUT: shape, "compiler_params": parameters}
    return plgpu.kernel(body, **options)(x)
"""
SPEC: dict[str, dict[str, Any]] = {
    "horner": {"args": ["i32[128]"]},
    "horner_compared": {"args": ["i32[128]"], "reference": "orders.py:horner_of"},
    "added": {"args": ["i32[128]"]},
    "added_compared": {
        "args": ["f32[128]"],
        "reference": "orders.py:added_of",
        "tolerance": {"rtol": 1e-4, "atol": 1e-4},
    },
    "first_reduces": {"args": ["f32[128]"]},
    "scattered": {"args": ["i32[256]", "f32[256]"]},
}
RACING = {
    "last_block": "each block its own",
    "overlapping": "half of it is the next block's",
    "warpgroups": "each warpgroup its own",
    "copied": "each block its own",
}
AGREEING = ("agreeing", "agreeing_copies", "counting")
KINDS: dict[str, dict[str, Any]] = {
    "halves": {"axes": "i"},
    "lost_by_jax": {"axes": "i", "semantics": "Warpgroup"},
    "all_by_each": {"axes": None},
    "without_a_cluster": {"axes": None, "cluster": False},
}
LEAST = {"always": -1e30, "never": 1e30}


def kernels() -> list[dict[str, Any]]:
    """Return the kernels of the spec."""
    found: list[dict[str, Any]] = [
        {"name": name, "entry": f"orders.py:{_function(name)}", **fields}
        for name, fields in SPEC.items()
    ]
    for name in (*RACING, *AGREEING):
        args = ["f32[640]" if name == "overlapping" else "f32[128]"]
        found.append({"name": name, "entry": f"stores.py:{name}", "args": args})
        if name not in ("overlapping", "warpgroups"):  # these are as in a bundle
            found[-1]["reference"] = "stores.py:three_more"
    for name, least in LEAST.items():
        chosen = {"entry": "branches.py:chosen", "static": {"least": least}}
        found.append({"name": name, **chosen, "args": {"x": "f32[128]"}})
    for name, static in KINDS.items():
        fetched = {"entry": "prefetches.py:fetched", "static": static}
        found.append({"name": name, **fetched, "args": {"x": "f32[64, 64]"}})
    return found


def _function(name: str) -> str:
    return name.removesuffix("_compared")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("blocks")
    files = {"orders": ORDERS, "stores": STORES, "branches": BRANCHES, "prefetches": PREFETCHES}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    spec = {"schema": 1, "targets": ["h100-sxm"], "kernels": kernels()}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    ran = checking.check(folder, "spec.yaml", "--json", "--level", "artifact")
    assert ran.code == 1, ran.err
    return ran.results


def test_a_result_that_another_order_changes_is_found_without_a_reference(results: Any) -> None:
    (finding,) = results["horner"]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "error")
    assert "out[0] depends on the order of blocks: it is " in finding["message"]
    assert " in schedule 1 and " in finding["message"]
    assert "128 of 128 elements differ" in finding["message"]
    assert finding["message"].endswith("; in schedule 2 of 3")
    line = ORDERS.splitlines()[finding["location"]["line"] - 1]
    assert "* 2 + i.astype" in line


def test_a_result_that_is_right_in_the_order_of_the_grid_alone_is_found(results: Any) -> None:
    (finding,) = results["horner_compared"]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "error")
    assert "128 of 128 elements differ from the reference" in finding["message"]
    assert "; it is right in schedule 1; " in finding["message"]


@pytest.mark.parametrize("name", ["added_compared", "scattered"])
def test_another_rounding_is_a_note(name: str, results: Any) -> None:
    (finding,) = results[name]["findings"]
    assert (finding["rule"], finding["severity"]) == ("depends-on-order", "note")
    assert "depends on the order of blocks" in finding["message"]
    assert finding["hint"].startswith("Each order of additions rounds differently")
    assert finding["location"] is not None


@pytest.mark.parametrize("name", ["added", "first_reduces"])
def test_results_that_no_order_changes_pass(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", "")


@pytest.mark.parametrize("name", RACING)
def test_unordered_stores_of_different_values_are_a_race(name: str, results: Any) -> None:
    result = results[name]
    assert result["status"] == "found", result
    (race,) = [each for each in result["findings"] if each["rule"] == "race"]
    assert "writes other values to the same bytes" in race["message"]
    here = race["location"]["line"]
    lines = STORES.splitlines()
    begin = lines.index(f"def {name}(x):")
    assert RACING[name] in lines[here - 1]
    assert here > begin
    assert here in {each["location"]["line"] for each in race["places"]}


@pytest.mark.parametrize("name", AGREEING)
def test_unordered_stores_of_one_value_are_none(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", "")


def test_lines_that_no_schedule_executes_are_a_note(results: Any) -> None:
    (finding,) = results["never"]["findings"]
    lines = BRANCHES.splitlines()
    first, last = (n for n, line in enumerate(lines, 1) if line.endswith(("# first", "# last")))
    assert finding["message"] == f"not executed: branches.py:{first}-{last}"
    assert (finding["rule"], finding["severity"]) == ("not-executed", "note")
    assert finding["location"]["line"] == first


def test_a_branch_that_is_taken_is_executed(results: Any) -> None:
    result = results["always"]
    assert (result["status"], result["findings"]) == ("passed", [])


@pytest.mark.parametrize("name", ["lost_by_jax", "all_by_each"])
def test_what_each_block_of_a_cluster_prefetches_is_a_note(name: str, results: Any) -> None:
    (finding,) = results[name]["findings"]
    assert (finding["rule"], finding["severity"]) == ("repeated-prefetch", "note")
    assert finding["message"] == (
        "blocks (0, 0, 0) and (1, 0, 0) of one cluster prefetch the same 16,384 bytes of x"
    )
    line = PREFETCHES.splitlines()[finding["location"]["line"] - 1]
    assert "plgpu.async_prefetch" in line


@pytest.mark.parametrize("name", ["halves", "without_a_cluster"])
def test_blocks_that_share_nothing_prefetch_what_they_like(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["findings"]) == ("passed", [])


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
