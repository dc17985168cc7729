"""Causes that findings name: a full GPU, a reduction, an array that is accessed instead of another.

* Blocks that wait for blocks that never start: the size of the grid comes before the wait.
* A bulk reduction into memory that nothing wrote has the line of the reduction.
* An access outside of a scratch array, but inside shared memory: the interpreter level reports it;
  where numbers are wrong, the artifact level names the array that is accessed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.checks.findings import Finding, Place
from pallasc.checks.locate import with_lines
from pallasc.compiler.lowering import LineTable, Part
from pallasc.errors import Location

JAX = tuple(map(int, metadata.version("jax").split(".")[:2]))
interpreted = pytest.mark.skipif(JAX < (0, 11), reason="JAX 0.10 interprets fewer kernels")

KERNELS = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT, SCRATCH = ("out_shape", "scratch_shapes") if OLD else ("out_type", "scratch_types")
ALL = plgpu.SMEM((200_000,), jnp.int8)  # only one block fits on a multiprocessor
FIRST, SECOND = plgpu.SMEM((2, 128), jnp.float32), plgpu.SMEM((256,), jnp.float32)


def run(body, arrays, scratch, shape=(128,), **options):
    options |= {OUT: jax.ShapeDtypeStruct(shape, jnp.float32), SCRATCH: scratch}
    return plgpu.kernel(body, **options)(*arrays)


def same(x):
    return x


def twice(x):
    return x * 2


def met(x, blocks, awaited, together=True):
    def body(x, o, _, barrier):
        lock = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(lock, 1)
        if together:
            pl.semaphore_wait(lock, awaited, decrement=False)  # the grid barrier
        else:
            plgpu.barrier_wait(barrier)  # nobody arrives

        @pl.when(lax.axis_index("i") == 0)
        def _():
            o[...] = x[...]

    memory = [ALL, plgpu.Barrier()]
    return run(body, [x], memory, grid=(blocks,), grid_names=("i",))


def added(x, stored):
    def body(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x, smem, barrier)
        plgpu.barrier_wait(barrier)
        if stored:
            plgpu.copy_smem_to_gmem(smem, o)
            plgpu.wait_smem_to_gmem(0)
        plgpu.copy_smem_to_gmem(smem, o, reduction_op="add")  # the reduction
        plgpu.wait_smem_to_gmem(0)

    memory = [plgpu.SMEM((64, 64), jnp.float32), plgpu.Barrier()]
    return run(body, [x], memory, (64, 64))


def filled(first, second, x):
    first[0] = x[...]
    first[1] = x[...]
    second[...] = jnp.ones((256,), jnp.float32)


def row_read(x, row):
    def body(x, o, first, second):
        filled(first, second, x)
        o[...] = first[row + lax.axis_index("i")]  # the read of a row

    return run(body, [x], [FIRST, SECOND], grid=(1,), grid_names=("i",))


def part_read(x, start):
    def body(x, o, first, second):
        filled(first, second, x)
        o[...] = second[pl.ds(start + lax.axis_index("i"), 128)]  # the read of a part

    return run(body, [x], [FIRST, SECOND], grid=(1,), grid_names=("i",))


def part_written(x, start):
    def body(x, o, first, second):
        filled(first, second, x)
        second[pl.ds(start + lax.axis_index("i"), 128)] = x[...]  # the write of a part
        o[...] = x[...]

    return run(body, [x], [FIRST, SECOND], grid=(1,), grid_names=("i",))


def copied_out(x, row):
    def body(x, o, first, second):
        filled(first, second, x)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(first.at[row + lax.axis_index("i")], o)  # the copy of a row
        plgpu.wait_smem_to_gmem(0)

    return run(body, [x], [FIRST, SECOND], grid=(1,), grid_names=("i",))

"""
ROOM = 132  # h100-sxm
MEETING: dict[str, dict[str, Any]] = {
    "all_meet": {"blocks": ROOM, "awaited": ROOM},
    "too_many": {"blocks": ROOM + 3, "awaited": ROOM + 3},
    "wrong_count": {"blocks": 4, "awaited": 5},
    "stuck": {"blocks": ROOM + 3, "awaited": 0, "together": False},
}
OUTSIDE: dict[str, tuple[str, dict[str, int], str]] = {
    "row_after": ("row_read", {"row": 2}, "the read of a row"),
    "part_after": ("part_read", {"start": 160}, "the read of a part"),
    "write_after": ("part_written", {"start": 200}, "the write of a part"),
    "copy_after": ("copied_out", {"row": 2}, "the copy of a row"),
}
"""By name of a kernel: its function, its static arguments, and the text of its line."""
INSIDE: dict[str, tuple[str, dict[str, int], str]] = {
    "last_row": ("row_read", {"row": 1}, ""),
    "last_part": ("part_written", {"start": 128}, ""),
    "last_copy": ("copied_out", {"row": 1}, ""),
}


def spec_kernels() -> list[dict[str, Any]]:
    x = {"x": "f32[128]"}
    found: list[dict[str, Any]] = [
        {"name": name, "entry": "kernels.py:met", "args": x, "static": static}
        for name, static in MEETING.items()
    ]
    square = {"args": {"x": "f32[64, 64]"}, "reference": "kernels.py:twice"}
    for name, stored in (("added", True), ("added_to_nothing", False)):
        found.append(
            {"name": name, "entry": "kernels.py:added", "static": {"stored": stored}, **square}
        )
    if JAX < (0, 11):  # its compiler refuses constant indices that are out of bounds
        return found
    for name, (function, static, _) in (OUTSIDE | INSIDE).items():
        found.append({"name": name, "entry": f"kernels.py:{function}", "args": x, "static": static})
    return found


@pytest.fixture(scope="module")
def results(shared: Callable[..., Path], checking: Any) -> dict[str, dict[str, Any]]:
    """Return the result of each level by kernel."""

    def fill(folder: Path) -> None:
        (folder / "kernels.py").write_text(KERNELS)
        spec = checking.spec_of(*spec_kernels(), targets=["h100-sxm"])
        (folder / "spec.yaml").write_text(spec)
        words = ("spec.yaml", "--json", "--level", "all", "--schedules", "2")
        (folder / "ran.json").write_text(checking.check(folder, *words).out)

    report = checking.Ran(0, (shared("later", fill) / "ran.json").read_text(), "").report
    return {
        each["name"]: {result["level"]: result for result in each["results"]}
        for each in report["variants"]
    }


def line(text: str) -> int:
    (number,) = [n for n, each in enumerate(KERNELS.splitlines(), 1) if text in each]
    return number


def test_a_grid_that_does_not_fit_is_the_first_cause_of_a_deadlock(results: Any) -> None:
    (finding,) = results["too_many"]["artifact"]["findings"]
    assert finding["rule"] == "deadlock"
    assert finding["message"].startswith(
        f"the grid has {ROOM + 3} blocks, but at most {ROOM} run at once (h100-sxm: {ROOM} "
        "multiprocessors x 1 block), so 3 never start: no warp can make progress: "
    )
    assert f"waiting for a semaphore to reach {ROOM + 3}, which is {ROOM}" in finding["message"]
    assert "must all run at once" in finding["hint"]
    assert finding["location"]["line"] == line("# the grid barrier")


@pytest.mark.parametrize(
    ("name", "text"), [("wrong_count", "the grid barrier"), ("stuck", "nobody")]
)
def test_another_cause_of_a_deadlock_comes_first(name: str, text: str, results: Any) -> None:
    (finding,) = results[name]["artifact"]["findings"]
    assert finding["message"].startswith("no warp can make progress: ")
    assert finding["location"]["line"] == line(f"# {text}")


def test_a_reduction_into_what_nothing_wrote_is_found_at_its_line(results: Any) -> None:
    assert results["added"]["artifact"]["status"] == "passed"
    (finding,) = results["added_to_nothing"]["artifact"]["findings"]
    assert finding["rule"] == "uninitialized-read"
    assert finding["instruction"].partition(" ")[2].startswith("cp.reduce.async.bulk.tensor")
    assert finding["location"]["line"] == line("# the reduction")


@interpreted
@pytest.mark.parametrize("name", OUTSIDE)
def test_an_access_outside_of_a_scratch_array_is_found(name: str, results: Any) -> None:
    (finding,) = results[name]["interpreter"]["findings"]
    assert finding["rule"] == "out-of-bounds", finding
    assert finding["location"]["line"] == line(f"# {OUTSIDE[name][2]}")


@interpreted
@pytest.mark.parametrize("name", INSIDE)
def test_an_access_up_to_the_end_of_an_array_is_right(name: str, results: Any) -> None:
    assert [results[name][level]["findings"] for level in ("interpreter", "artifact")] == [[], []]


@interpreted
def test_wrong_numbers_name_the_array_that_is_read(results: Any) -> None:
    (finding,) = results["row_after"]["artifact"]["findings"]
    (place,) = [each for each in finding["places"] if "ld.shared" in each["text"]]
    assert place["text"].endswith(" of second f32[256]")
    assert place["location"]["line"] == line("# the read of a row")


@pytest.mark.parametrize(
    ("last", "arrays"), [("5ff", "of tile f32[128]"), ("803", "from tile f32[128] to next i32[1]")]
)
def test_sources_name_all_arrays_that_they_access(last: str, arrays: str) -> None:
    memory = (
        Part("scratch", "tile", "f32[128]", 512, 0),
        Part("scratch", "next", "i32[1]", 4, 1024),
    )
    tables = {("c", "k"): LineTable(((Location("k.py", 1),),), (1,), memory)}
    text = f"the value comes from: ld at bytes 0x400 to 0x{last} of shared memory"
    finding = Finding(
        rule="race", message="", kernel="k", cubin="c", places=(Place(text, None, 1),)
    )
    assert with_lines(finding, tables).places[0].text == f"the value comes from: ld {arrays}"
