"""Both levels check one kernel: which races are real, the same lines, what each can execute.

A copy out of shared memory that a block leaves is the same at each level; where JAX loses a stride,
the interpreter gives other numbers than the machine code. One run checks all kernels.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

JAX = tuple(map(int, metadata.version("jax").split(".")[:2]))
needs_new = pytest.mark.skipif(JAX < (0, 11), reason="the kernels are written for JAX 0.11")
LEVELS = ["interpreter", "artifact"]

KERNELS = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def refilled(x, waits=True):
    def body(x, o, smem, bar):
        for i in range(2):
            plgpu.copy_gmem_to_smem(x.at[i], smem, bar)  # refills what was read
            if waits or i == 0:
                plgpu.barrier_wait(bar)
            o[i] = smem[...]

    memory = [plgpu.SMEM((128,), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=x, scratch_types=memory)(x)


def same(x, waits=True):
    return x


def mapped(x):
    source = jax.new_ref(x, memory_space=plgpu.GMEM)
    result = jax.new_ref(jnp.zeros_like(x), memory_space=plgpu.GMEM)

    @pl.core_map(plgpu.Mesh(grid=(2,), grid_names=("i",)))
    def body():
        i = lax.axis_index("i")
        result[i] = source[i] * 1.0

    return result[...]


def past_the_end(g, o):
    i = lax.axis_index("i")
    o[i] = g[i + 1]  # past the end


def reads_past_scratch(x):
    def body(x, o, smem):
        smem[...] = x[...]
        start = x[0].astype(jnp.int32) * 0 + 64
        o[...] = smem[pl.ds(start, 128)]  # half of it is past its end

    return plgpu.kernel(body, out_type=x, scratch_types=[plgpu.SMEM((128,), jnp.float32)])(x)


def waits_for_nothing(x):
    def body(x, o, first, second):
        plgpu.barrier_wait(first.at[1])
        o[...] = x[...]

    memory = [plgpu.Barrier(num_barriers=2)] * 2
    return plgpu.kernel(body, out_type=x, scratch_types=memory)(x)


def refused(g, o):
    o[...] = jnp.sort(g[...])  # Mosaic cannot sort


def gradient(kernel):
    @jax.custom_vjp
    def f(x):
        return x

    def backward(_, g):
        return (plgpu.kernel(kernel, out_type=g, grid=(2,), grid_names=("i",))(g),)

    f.defvjp(lambda x: (x, None), backward)
    return lambda x: jax.vjp(f, x)[1](x)[0]


def reads_past_the_end(x):
    return gradient(past_the_end)(x)


def is_refused(x):
    return gradient(refused)(x)
"""
COPIES = """\
import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as plgpu

OLD = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 11)
OUT, SCRATCH = ("out_shape", "scratch_shapes") if OLD else ("out_type", "scratch_types")


def copied(x, left, read_only):
    def body(x, o, smem):
        for half in range(2):
            smem[half] = x[half] + 3.0
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(smem.at[half], o.at[half])
        if left is not None:
            plgpu.wait_smem_to_gmem(left, wait_read_only=read_only)

    memory = [plgpu.SMEM((2, 128), jnp.float32)]
    shape = jax.ShapeDtypeStruct((2, 128), jnp.float32)
    return plgpu.kernel(body, **{OUT: shape, SCRATCH: memory}, grid=(1,), grid_names=("i",))(x)


def plus_three(x):
    return x + 3
"""
STRIDES = """\
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def rows(x):
    def body(x, o, smem, barrier):
        plgpu.copy_gmem_to_smem(x.at[pl.dslice(0, 64, 2)], smem, barrier)  # JAX loses the stride
        plgpu.barrier_wait(barrier)
        o[...] = smem[...]

    shape = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    memory = [plgpu.SMEM((64, 128), jnp.float32), plgpu.Barrier()]
    return plgpu.kernel(body, out_type=shape, scratch_types=memory)(x)


def every_second(x):
    return x[::2]
"""
ENDS: dict[str, dict[str, Any]] = {
    "no_wait": {"left": None, "read_only": False},
    "one_left": {"left": 1, "read_only": False},
    "one_left_unread": {"left": 1, "read_only": True},
    "read": {"left": 0, "read_only": True},
    "complete": {"left": 0, "read_only": False},
}


def new_kernels() -> list[dict[str, Any]]:
    """Return the kernels that JAX 0.11 compiles, and later versions."""
    args = ["f32[2, 128]"]
    right = {"entry": "kernels.py:refilled", "args": args}
    rows = {"entry": "strides.py:rows", "reference": "strides.py:every_second"}
    return [
        {**right, "name": "ordered", "static": {"waits": True}},
        {**right, "name": "racing", "static": {"waits": False}},
        *({"name": name, "args": args} for name in ("mapped", "reads_past_the_end", "is_refused")),
        {**rows, "name": "rows", "args": ["f32[128, 128]"]},
        {"name": "reads_past_scratch"},
        {"name": "waits_for_nothing"},
    ]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("both")
    for name, text in {"kernels": KERNELS, "copies": COPIES, "strides": STRIDES}.items():
        (folder / f"{name}.py").write_text(text)
    copied = {"entry": "copies.py:copied", "reference": "copies.py:plus_three"}
    kernels = [
        {**copied, "name": name, "args": {"x": "f32[2, 128]"}, "static": static}
        for name, static in ENDS.items()
    ]
    if JAX >= (0, 11):
        kernels += new_kernels()
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    ran = checking.check(folder, "spec.yaml", "--level", "all", "--json")
    assert ran.code == 1, ran.err
    return checking.Checked(folder, ran)


@pytest.fixture(scope="module")
def results(checked: Any) -> dict[str, dict[str, Any]]:
    variants = checked.ran.report["variants"]
    return {each["name"]: {r["level"]: r for r in each["results"]} for each in variants}


def line(text: str) -> int:
    (number,) = [n for n, each in enumerate(KERNELS.splitlines(), 1) if text in each]
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
def test_a_read_past_the_end_of_a_scratch_array_is_named(results: Any) -> None:
    by_level = results["reads_past_scratch"]
    (read,) = by_level["interpreter"]["findings"]
    assert "read of smem (SMEM): reading [64:192] but buffer has shape (128,)" in read["message"]
    (finding,) = by_level["artifact"]["findings"]
    place = next(each for each in finding["places"] if "ld.shared" in each["text"])
    assert place["text"].endswith("memory (past the end of smem f32[128]), never written")
    assert place["location"]["line"] == line("# half of it is past its end")


@needs_new
def test_a_deadlock_names_the_barrier_that_is_waited_for(results: Any) -> None:
    (finding,) = results["waits_for_nothing"]["artifact"]["findings"]
    assert re.search(r"mbarrier at shared address 0x\w+ \(first\[1\]\)", finding["message"])


@needs_new
@pytest.mark.parametrize("level", LEVELS)
def test_findings_in_a_backward_rule_have_the_line_of_the_kernel(level: str, results: Any) -> None:
    found = results["reads_past_the_end"][level]["findings"]
    lines = [each["location"]["line"] for each in found if each["rule"] == "out-of-bounds"]
    assert lines == [line("# past the end")], found


@needs_new
def test_a_build_error_in_a_backward_rule_has_the_line_of_the_kernel(checked: Any) -> None:
    (failed,) = [v for v in checked.ran.report["variants"] if v["name"] == "is_refused"]
    assert failed["error"]["line"] == line("# Mosaic cannot sort"), failed["error"]


@needs_new
def test_inspect_attributes_instructions_to_the_kernel_of_a_backward_rule(checked: Any) -> None:
    words = ["spec.yaml", "--lines", "-k", "reads_past_the_end", "--store", "store"]
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "pallasc", "inspect", *words],
        cwd=checked.folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines = {int(number) for number in re.findall(r"^ *(\d+) +\d", shown, re.MULTILINE)}
    assert line("# past the end") in lines
    assert line("jax.vjp(f, x)") not in lines


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["no_wait", "one_left", "one_left_unread"])
def test_a_copy_that_may_still_read_is_an_error(name: str, level: str, results: Any) -> None:
    if level == "interpreter" and JAX < (0, 12):
        pytest.skip("the interpreter of this JAX does not look for copies that are left")
    found = results[name][level]["findings"]
    assert {(each["rule"], each["severity"]) for each in found} == {("unfinished-copy", "error")}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["read", "complete"])
def test_a_copy_that_has_read_may_be_left(name: str, level: str, results: Any) -> None:
    result = results[name][level]
    assert (result["status"], result["findings"]) == ("passed", []), result


def test_a_bundle_is_checked_without_the_level_that_needs_source(
    checked: Any, checking: Any
) -> None:
    words = ["spec.yaml", "-k", "name=complete", "--keep-ptx", "-o", "one.pallasc"]
    subprocess.run(
        [sys.executable, "-P", "-m", "pallasc", "bundle", "create", *words, "--store", "store"],
        cwd=checked.folder, capture_output=True, check=True,
    )  # fmt: skip
    shown = checking.check(checked.folder, "one.pallasc", "--level", "all")
    assert shown.code == 0, shown.err
    assert re.search(r"not checked +interpreter .*it needs the source", shown.out + shown.err)
    assert re.search(r"passed +artifact", shown.out + shown.err)


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
    assert finding["location"]["file"].endswith("strides.py")
    assert re.match(
        r"JAX compiles this kernel wrongly: .*strides.py:\d+: .*`stride`", finding["hint"]
    )
