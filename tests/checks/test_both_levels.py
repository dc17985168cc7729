"""Both levels check one kernel: which races are real, the same lines, what each can execute."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    metadata.version("jax").startswith("0.10."), reason="the kernels are written for JAX 0.11"
)

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


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    folder = tmp_path_factory.mktemp("both")
    (folder / "kernels.py").write_text(KERNELS)
    args = ["f32[2, 128]"]
    right = {"entry": "kernels.py:refilled", "args": args}
    kernels = [
        {**right, "name": "ordered", "static": {"waits": True}},
        {**right, "name": "racing", "static": {"waits": False}},
        *({"name": name, "args": args} for name in ("mapped", "reads_past_the_end", "is_refused")),
    ]
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    ran = checking.check(folder, "spec.yaml", "--level", "all", "--json")
    return checking.Checked(folder, ran)


@pytest.fixture(scope="module")
def results(checked: Any) -> dict[str, dict[str, Any]]:
    variants = checked.ran.report["variants"]
    return {each["name"]: {r["level"]: r for r in each["results"]} for each in variants}


def line(text: str) -> int:
    (number,) = [n for n, each in enumerate(KERNELS.splitlines(), 1) if text in each]
    return number


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
    shown = checking.check(checked.folder, "spec.yaml", "--level", "all", "-k", "ordered")
    assert shown.code == 0, shown.out
    assert ": note: a write of SMEM races with a read" in shown.out


def test_references_in_a_memory_space_are_interpreted_under_jit(results: Any) -> None:
    assert {each["status"] for each in results["mapped"].values()} == {"passed"}, results["mapped"]


@pytest.mark.parametrize("level", ["interpreter", "artifact"])
def test_findings_in_a_backward_rule_have_the_line_of_the_kernel(level: str, results: Any) -> None:
    found = results["reads_past_the_end"][level]["findings"]
    lines = [each["location"]["line"] for each in found if each["rule"] == "out-of-bounds"]
    assert lines == [line("# past the end")], found


def test_a_build_error_in_a_backward_rule_has_the_line_of_the_kernel(checked: Any) -> None:
    (failed,) = [v for v in checked.ran.report["variants"] if v["name"] == "is_refused"]
    assert failed["error"]["line"] == line("# Mosaic cannot sort"), failed["error"]


def test_inspect_attributes_instructions_to_the_kernel_of_a_backward_rule(checked: Any) -> None:
    words = ["spec.yaml", "--lines", "-k", "reads_past_the_end", "--store", "store"]
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "pallasc", "inspect", *words],
        cwd=checked.folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines = {int(number) for number in re.findall(r"^ *(\d+) +\d", shown, re.MULTILINE)}
    assert line("# past the end") in lines
    assert line("jax.vjp(f, x)") not in lines
