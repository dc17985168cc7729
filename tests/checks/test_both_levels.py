"""Both levels check one kernel: which races are real, the same lines, what each can execute.

A copy out of shared memory that a block leaves is the same at each level; where JAX loses a stride,
the interpreter gives other numbers than the machine code. Causes are named: a grid that does not
fit, a reduction into memory that nothing wrote, an access to another array. One run checks all.
"""

from importlib import metadata
from typing import Any

import pytest

from pallasc.checks.findings import Finding, Place
from pallasc.checks.locate import with_lines
from pallasc.compiler.lowering import LineTable, Part
from pallasc.errors import Location

JAX = tuple(map(int, metadata.version("jax").split(".")[:2]))
needs_new = pytest.mark.skipif(JAX < (0, 11), reason="the kernels are written for JAX 0.11")
LEVELS = ["interpreter", "artifact"]

MORE = """

def refilled(x, waits=True):
    def body(x, o, smem, bar):
        for i in range(2):
            plgpu.copy_gmem_to_smem(x.at[i], smem, bar)  # refills what was read
            if waits or i == 0:
                plgpu.barrier_wait(bar)
            o[i] = smem[...]

    memory = [plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()]
    return run(body, x, shape=x.shape, memory=memory)


def reads_past_scratch(x):
    def body(x, o, smem):
        smem[...] = x[...]
        start = x[0].astype(jnp.int32) * 0 + 64
        o[...] = smem[pl.ds(start, 128)]  # half of it is past its end

    return run(body, x, memory=[plgpu.SMEM((128,), jnp.float32)])


def reads_past_the_end(x):
    def past_the_end(g, o):
        i = lax.axis_index("i")
        o[i] = g[i + 1]  # past the end

    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (run(past_the_end, g, shape=g.shape, grid=2),))
    return jax.vjp(f, x)[1](x)[0]


def copied(x, left, read_only):
    def body(x, o, smem):
        for half in range(2):
            smem[half] = x[half] + 3.0
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem.at[half], o.at[half])
        plgpu.wait_smem_to_gmem(left, wait_read_only=read_only)

    return run(body, x, shape=(2, 128), memory=[plgpu.SMEM((2, 128), jnp.float32)])


def plus_three(x):
    return x + 3


def rows(x):
    def body(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x.at[pl.dslice(0, 64, 2)], smem, barrier)  # JAX loses the stride
        plgpu.barrier_wait(barrier)
        o[...] = smem[...]

    memory = [plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()]
    return run(body, x, shape=(64, 128), memory=memory)


def every_second(x):
    return x[::2]


ALL = plgpu.SMEM((200_000,), jnp.int8)  # only one block fits on a multiprocessor
FIRST, SECOND = plgpu.SMEM((2, 128), jnp.float32), plgpu.SMEM((256,), jnp.float32)


def twice(x):
    return x * 2


def met(x, blocks, awaited, together=True):
    def body(x, o, _, barrier):
        lock = pl.get_global(plgpu.SemaphoreType.REGULAR)
        pl.semaphore_signal(lock, 1)
        if together:
            pl.semaphore_wait(lock, awaited, decrement=False)  # the grid barrier
        else:
            plgpu.barrier_wait(barrier)  # no thread arrives

        @pl.when(lax.axis_index("i") == 0)
        def _():
            o[...] = x[...]

    memory = [ALL, plgpu.Barrier()]
    return run(body, x, memory=memory, grid=blocks)


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
    return run(body, x, memory=memory, shape=(64, 64))


def filled(first, second, x):
    first[0] = x[...]
    first[1] = x[...]
    second[...] = jnp.ones((256,), jnp.float32)


def row_read(x, row):
    def body(x, o, first, second):
        filled(first, second, x)
        o[...] = first[row + lax.axis_index("i")]  # the read of a row

    return run(body, x, memory=[FIRST, SECOND])


def part_written(x, start):
    def body(x, o, first, second):
        filled(first, second, x)
        second[pl.ds(start + lax.axis_index("i"), 128)] = x[...]  # the write of a part
        o[...] = x[...]

    return run(body, x, memory=[FIRST, SECOND])


def copied_out(x, row):
    def body(x, o, first, second):
        filled(first, second, x)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(first.at[row + lax.axis_index("i")], o)  # the copy of a row
        plgpu.wait_smem_to_gmem(0)

    return run(body, x, memory=[FIRST, SECOND])
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
    "write_after": ("part_written", {"start": 200}, "the write of a part"),
    "copy_after": ("copied_out", {"row": 2}, "the copy of a row"),
}
"""By name of a kernel: its function, its static arguments, and the text of its line."""
INSIDE: dict[str, tuple[str, dict[str, int], str]] = {
    "last_row": ("row_read", {"row": 1}, ""),
    "last_part": ("part_written", {"start": 128}, ""),
    "last_copy": ("copied_out", {"row": 1}, ""),
}
ARGS = {"args": ["f32[2, 128]"]}
COPIED = {"entry": "kernels.py:copied", "reference": "kernels.py:plus_three"}
REFILLED = {"entry": "kernels.py:refilled", **ARGS}
ENDS: dict[str, dict[str, Any]] = {
    "one_left": {"left": 1, "read_only": False},
    "one_left_unread": {"left": 1, "read_only": True},
    "read": {"left": 0, "read_only": True},
}
KERNELS: list[dict[str, Any]] = [
    *({"name": name, **COPIED, **ARGS, "static": static} for name, static in ENDS.items()),
    *({"name": name, "entry": "kernels.py:met", "static": s} for name, s in MEETING.items()),
    *(
        {
            "name": name, "entry": "kernels.py:added", "static": {"stored": stored},
            "args": ["f32[64, 64]"], "reference": "kernels.py:twice",
        }
        for name, stored in (("added", True), ("added_to_nothing", False))
    ),
]  # fmt: skip
NEW_KERNELS: list[dict[str, Any]] = [
    {"name": "ordered", **REFILLED, "static": {"waits": True}},
    {"name": "racing", **REFILLED, "static": {"waits": False}},
    {"name": "reads_past_the_end", **ARGS},
    {"name": "rows", "reference": "kernels.py:every_second", "args": ["f32[128, 128]"]},
    {"name": "reads_past_scratch"},
    *(
        {"name": name, "entry": f"kernels.py:{function}", "static": static}
        for name, (function, static, _) in (OUTSIDE | INSIDE).items()
    ),
]
"""Those that JAX 0.11 compiles, and later versions."""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    kernels = KERNELS + (NEW_KERNELS if JAX >= (0, 11) else [])
    words = ("--level", "all", "--schedules", "2")
    return checking.check_kernels(tmp_path_factory.mktemp("both"), MORE, kernels, *words)


@pytest.fixture
def results(checked: Any) -> Any:
    return checked.levels


@needs_new
def test_a_race_is_a_note_where_the_artifact_level_finds_the_accesses_ordered(
    checked: Any, results: Any, checking: Any
) -> None:
    ordered, racing = results["ordered"], results["racing"]
    assert ordered["artifact"]["status"] == "passed", ordered
    (note,) = ordered["interpreter"]["findings"]
    assert (note["rule"], note["severity"]) == ("race", "note")
    assert note["hint"].endswith("executed the kernel and found these accesses ordered.")
    assert "race" in {found["rule"] for found in racing["artifact"]["findings"]}
    races = [each for each in racing["interpreter"]["findings"] if each["rule"] == "race"]
    assert {each["severity"] for each in races} == {"error"}
    assert any("barrier_wait is missing" in each["hint"] for each in races), races
    shown = checking.check(checked.folder, "spec.yaml", "--level", "all", "-k", "ordered")
    assert shown.code == 0, shown.out
    assert ": note: a write of SMEM races with a read" in shown.out


@needs_new
def test_a_read_past_the_end_of_a_scratch_array_is_named(results: Any, checked: Any) -> None:
    by_level = results["reads_past_scratch"]
    (read,) = by_level["interpreter"]["findings"]
    assert "read of smem (SMEM): reading [64:192] but buffer has shape (128,)" in read["message"]
    (finding,) = by_level["artifact"]["findings"]
    place = next(each for each in finding["places"] if "ld.shared" in each["text"])
    assert place["text"].endswith("memory (past the end of smem f32[128]), never written")
    assert place["location"]["line"] == checked.line("# half of it is past its end")


@needs_new
@pytest.mark.parametrize("level", LEVELS)
def test_findings_in_a_backward_rule_have_the_line_of_the_kernel(
    level: str, results: Any, checked: Any
) -> None:
    found = results["reads_past_the_end"][level]["findings"]
    lines = [each["location"]["line"] for each in found if each["rule"] == "out-of-bounds"]
    assert lines == [checked.line("# past the end")], found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["one_left", "one_left_unread"])
def test_a_copy_that_may_still_read_is_an_error(name: str, level: str, results: Any) -> None:
    if level == "interpreter" and JAX < (0, 12):
        pytest.skip("the interpreter of this JAX does not look for copies that are left")
    found = results[name][level]["findings"]
    assert {(each["rule"], each["severity"]) for each in found} == {("unfinished-copy", "error")}


@pytest.mark.parametrize("level", LEVELS)
def test_a_copy_that_has_read_may_be_left(level: str, results: Any) -> None:
    result = results["read"][level]
    assert (result["status"], result["findings"]) == ("passed", []), result


@needs_new
def test_a_lost_stride_is_found_with_reference_and_interpreter(results: Any) -> None:
    by_level = results["rows"]
    assert by_level["interpreter"]["status"] == "passed", by_level["interpreter"]
    (finding,) = by_level["artifact"]["findings"]
    assert finding["rule"] == "compiled-wrongly"
    assert "[1, 0] is " in finding["message"]
    assert "elements differ" in finding["message"]
    assert "wrote it in body_mosaic_gpu_kernel" in finding["message"]
    assert finding["instruction"].startswith("st.global")
    assert finding["location"]["file"].endswith("kernels.py")


def test_a_grid_that_does_not_fit_is_the_first_cause_of_a_deadlock(
    results: Any, checked: Any
) -> None:
    (finding,) = results["too_many"]["artifact"]["findings"]
    assert finding["rule"] == "deadlock"
    assert finding["message"].startswith(
        f"the grid has {ROOM + 3} blocks, but at most {ROOM} run at once (h100-sxm: {ROOM} "
        "multiprocessors x 1 block), so 3 never start: no warp can make progress: "
    )
    assert f"to change, which are {ROOM}" in finding["message"]
    assert "must all run at once" in finding["hint"]
    assert finding["location"]["line"] == checked.line("# the grid barrier")


@pytest.mark.parametrize(
    ("name", "text"), [("wrong_count", "the grid barrier"), ("stuck", "no thread")]
)
def test_another_cause_of_a_deadlock_comes_first(
    name: str, text: str, results: Any, checked: Any
) -> None:
    (finding,) = results[name]["artifact"]["findings"]
    assert finding["message"].startswith("no warp can make progress: ")
    assert finding["location"]["line"] == checked.line(f"# {text}")


def test_a_reduction_into_what_nothing_wrote_is_found_at_its_line(
    results: Any, checked: Any
) -> None:
    assert results["added"]["artifact"]["status"] == "passed"
    (finding,) = results["added_to_nothing"]["artifact"]["findings"]
    assert finding["rule"] == "uninitialized-read"
    assert finding["instruction"].partition(" ")[2].startswith("cp.reduce.async.bulk.tensor")
    assert finding["location"]["line"] == checked.line("# the reduction")


@needs_new
@pytest.mark.parametrize("name", OUTSIDE)
def test_an_access_outside_of_a_scratch_array_is_found(
    name: str, results: Any, checked: Any
) -> None:
    (finding,) = results[name]["interpreter"]["findings"]
    assert finding["rule"] == "out-of-bounds", finding
    assert finding["location"]["line"] == checked.line(f"# {OUTSIDE[name][2]}")


@needs_new
@pytest.mark.parametrize("name", INSIDE)
def test_an_access_up_to_the_end_of_an_array_is_right(
    name: str, results: Any, checked: Any
) -> None:
    assert [results[name][level]["findings"] for level in ("interpreter", "artifact")] == [[], []]


@needs_new
def test_wrong_numbers_name_the_array_that_is_read(results: Any, checked: Any) -> None:
    (finding,) = results["row_after"]["artifact"]["findings"]
    (place,) = [each for each in finding["places"] if "ld.shared" in each["text"]]
    assert place["text"].endswith(" of second f32[256]")
    assert place["location"]["line"] == checked.line("# the read of a row")


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
