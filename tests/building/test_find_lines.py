"""The user's lines behind PTX, found by a worker that compiles with locations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import Tables, find_lines
from pallasc.errors import CompileError
from pallasc.specs import library

LIBRARY = Path(library.__file__).resolve().parent
ADD = LIBRARY / "elementwise.py"
MATMUL = LIBRARY / "hopper_matmul.py"
HERE = """
import functools
from pallasc.specs.library.elementwise import add

def doubled(x):
    return add(x, x, block_size=1024)  # INNER

def run(x):
    return doubled(x)  # OUTER
"""


Found = tuple[str, Tables]


@pytest.fixture(scope="module")
def found(make_project: Any) -> dict[str, Found]:
    """Return the PTX and the lines of kernels, one of which was changed after it was compiled."""
    project = make_project()
    project.write("kernel.py", HERE)
    project.write("changed.py", HERE)
    project.spec(
        {"name": "matmul", "entry": "pallasc.specs.library.hopper_matmul:matmul",
         "args": {"a": "f16[256, 128]", "b": "f16[128, 128]"},
         "static": {"max_concurrent_steps": 2}},
        {"name": "kernel", "entry": "kernel.py:run"},
        {"name": "changed", "entry": "changed.py:run"},
    )  # fmt: skip
    results = project.build().results
    ptx = [{k.ptx: r.artifact.ptx(k.name) for k in r.artifact.kernels} for r in results]
    project.write("changed.py", HERE.replace("block_size=1024", "block_size=512"))
    kernels = [(result.variant, texts) for result, texts in zip(results, ptx, strict=True)]
    with prepare() as setup:
        tables = find_lines(kernels, setup, project.store)
    names = [result.variant.name for result in results]
    texts = ["".join(each.values()) for each in ptx]
    return dict(zip(names, zip(texts, tables, strict=True), strict=True))


def stacks(found: Found, instruction: str) -> set[tuple[str, ...]]:
    """Return the stacks of the lines of PTX that contain a text: file and line of each frame."""
    text, tables = found
    (table,) = tables.values()
    return {
        tuple(f"{Path(place.file).name}:{place.line}" for place in table.stack(number))
        for number, line in enumerate(text.splitlines(), 1)
        if instruction in line
    }


def place(file: Path, text: str) -> str:
    """Return the only line of a file with a text."""
    (line,) = [n for n, each in enumerate(file.read_text().splitlines(), 1) if text in each]
    return f"{file.name}:{line}"


def test_a_stack_goes_from_the_kernels_body_through_its_calls(found: dict[str, Found]) -> None:
    lines = HERE.splitlines()
    inner, outer = ([m in line for line in lines].index(True) + 1 for m in ("# INNER", "# OUTER"))
    (stack,) = stacks(found["kernel"], "st.global")
    body, call = place(ADD, "out_gmem[elements] ="), place(ADD, "return kernel(x")
    assert stack == (body, call, f"kernel.py:{inner}", f"kernel.py:{outer}")


def test_a_pipeline_and_what_no_equation_made_have_the_lines_of_their_calls(
    found: dict[str, Found],
) -> None:
    matmul = found["matmul"]
    call, body = place(MATMUL, "plgpu.emit_pipeline_warp"), place(MATMUL, "plgpu.wgmma_wait(0)")
    # JAX waits for its accumulators after the pipeline, too.
    waits = stacks(matmul, "wgmma.wait_group")
    assert body in {stack[0] for stack in waits}
    assert all(call in stack[1:] for stack in waits)
    for instruction, text in {
        "fence.proxy.async": "plgpu.commit_smem()",
        "wgmma.mma_async": "plgpu.wgmma(acc",
        "mbarrier.init": "return kernel(a, b)",
    }.items():
        assert {stack[0] for stack in stacks(matmul, instruction)} == {place(MATMUL, text)}
    (table,) = matmul[1].values()
    lines = [line for line in matmul[0].splitlines() if line.endswith(";") and line[0] not in ".$"]
    assert sum(number > 0 for number in table.numbers) > 0.9 * len(lines)


def test_a_kernel_that_was_changed_since_has_no_lines_and_says_why(found: dict[str, Found]) -> None:
    error = found["changed"][1]
    assert isinstance(error, CompileError)
    assert "its PTX differs from what ships at instruction" in error.message
