"""Both levels check one kernel: which races are real, the same lines, what each can execute.

A copy out of shared memory that a block leaves is the same at each level; where JAX loses a stride,
the interpreter gives other numbers than the machine code. One run checks all kernels.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import pytest

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
"""
ARGS = {"args": ["f32[2, 128]"]}
COPIED = {"entry": "kernels.py:copied", "reference": "kernels.py:plus_three"}
REFILLED = {"entry": "kernels.py:refilled", **ARGS}
ENDS: dict[str, dict[str, Any]] = {
    "one_left": {"left": 1, "read_only": False},
    "one_left_unread": {"left": 1, "read_only": True},
    "read": {"left": 0, "read_only": True},
}
KERNELS: list[dict[str, Any]] = [
    {"name": name, **COPIED, **ARGS, "static": static} for name, static in ENDS.items()
]
NEW_KERNELS: list[dict[str, Any]] = [
    {"name": "ordered", **REFILLED, "static": {"waits": True}},
    {"name": "racing", **REFILLED, "static": {"waits": False}},
    {"name": "reads_past_the_end", **ARGS},
    {"name": "rows", "reference": "kernels.py:every_second", "args": ["f32[128, 128]"]},
    {"name": "reads_past_scratch"},
]
"""Those that JAX 0.11 compiles, and later versions."""


@pytest.fixture(scope="module")
def source(checking: Any) -> str:
    return str(checking.KERNELS + MORE)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any, source: str) -> Any:
    folder = tmp_path_factory.mktemp("both")
    (folder / "kernels.py").write_text(source)
    kernels = KERNELS + (NEW_KERNELS if JAX >= (0, 11) else [])
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    ran = checking.check(folder, "spec.yaml", "--level", "all", "--json")
    assert ran.code == 1, ran.err
    return checking.Checked(folder, ran)


@pytest.fixture(scope="module")
def results(checked: Any) -> dict[str, dict[str, Any]]:
    variants = checked.ran.report["variants"]
    return {each["name"]: {r["level"]: r for r in each["results"]} for each in variants}


def line(text: str, source: str) -> int:
    (number,) = [n for n, each in enumerate(source.splitlines(), 1) if text in each]
    return number


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
    assert any("is asynchronous (copy_gmem_to_smem)" in each["message"] for each in races), races
    assert any("barrier_wait is missing" in each["hint"] for each in races), races
    shown = checking.check(checked.folder, "spec.yaml", "--level", "all", "-k", "ordered")
    assert shown.code == 0, shown.out
    assert ": note: a write of SMEM races with a read" in shown.out


@needs_new
def test_a_read_past_the_end_of_a_scratch_array_is_named(results: Any, source: str) -> None:
    by_level = results["reads_past_scratch"]
    (read,) = by_level["interpreter"]["findings"]
    assert "read of smem (SMEM): reading [64:192] but buffer has shape (128,)" in read["message"]
    (finding,) = by_level["artifact"]["findings"]
    place = next(each for each in finding["places"] if "ld.shared" in each["text"])
    assert place["text"].endswith("memory (past the end of smem f32[128]), never written")
    assert place["location"]["line"] == line("# half of it is past its end", source)


@needs_new
@pytest.mark.parametrize("level", LEVELS)
def test_findings_in_a_backward_rule_have_the_line_of_the_kernel(
    level: str, results: Any, source: str
) -> None:
    found = results["reads_past_the_end"][level]["findings"]
    lines = [each["location"]["line"] for each in found if each["rule"] == "out-of-bounds"]
    assert lines == [line("# past the end", source)], found


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
    assert re.match(
        r"JAX compiles this kernel wrongly: .*kernels.py:\d+: .*`stride`", finding["hint"]
    )
