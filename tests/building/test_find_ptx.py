"""PTX of XLA's kernels and the user's lines, found by a worker that compiles once more."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.lowering.compile import written_kernels
from pallasc.compiler.toolchain.setup import prepare
from pallasc.compiler.workers.pool import Texts, find_lines, find_ptx, without_ptx
from pallasc.errors import PallascError

AROUND = """
from pallasc.specs.library.elementwise import add

def run(x):
    doubled = add(x * 2, x, block_size=1024)
    return doubled.reshape(64, 16).T + 1, doubled.sum()

def doubled(x):
    return add(x, x, block_size=1024)  # INNER

def alone(x):
    return doubled(x)  # OUTER
"""


@pytest.fixture(scope="module")
def built(make_project: Any) -> tuple[Any, Sequence[VariantResult]]:
    """Return a project, and what its kernels were compiled to."""
    project = make_project()
    project.write("around.py", AROUND)
    project.write("changed.py", AROUND)
    vector = {"x": "f32[1024]"}
    project.spec(
        {"name": "around", "entry": "around.py:run", "args": vector},
        {"name": "alone", "entry": "around.py:alone", "args": vector},
        {"name": "changed", "entry": "changed.py:run", "args": vector},
    )
    return project, project.build().results


@pytest.fixture(scope="module")
def found(built: Any) -> dict[str, tuple[VariantResult, Texts | PallascError]]:
    """Return what kernels were compiled to and the PTX; `changed` was changed in between."""
    project, results = built
    project.write("changed.py", AROUND.replace("x * 2", "x * 3"))
    with prepare() as setup:
        texts = find_ptx([(r.variant, r.artifact) for r in results], setup, project.store)
    return {r.variant.name: (r, text) for r, text in zip(results, texts, strict=True)}


def test_a_stack_goes_from_the_kernels_body_through_its_calls(built: Any) -> None:
    project, results = built
    ((kernel,), text) = results[1].artifact.kernels, results[1].artifact.ptx()
    with prepare() as setup:
        (tables,) = find_lines([(results[1].variant, {kernel.ptx: text})], setup, project.store)
    numbers = [n for n, line in enumerate(text.splitlines(), 1) if "st.global" in line]
    ((body, call, inner, outer),) = {tuple(tables[kernel.ptx].stack(n)) for n in numbers}
    files = {frame.file: Path(frame.file).read_text().splitlines() for frame in (body, inner)}
    shown = [files[frame.file][frame.line - 1] for frame in (body, call, inner, outer)]
    assert "out_gmem[elements] =" in shown[0]
    assert "return kernel(x" in shown[1]
    assert [line[-7:] for line in shown[2:]] == ["# INNER", "# OUTER"]


def test_each_kernel_of_xla_has_its_ptx(found: dict[str, Any]) -> None:
    result, texts = found["around"]
    lacking = without_ptx(result.artifact)
    assert len(lacking) > 1
    assert texts.keys() == lacking.keys()
    for cubin, (name,) in lacking.items():
        assert re.search(rf"\.entry {name}\(", texts[cubin])


def test_mosaics_kernels_need_none_and_what_was_changed_since_has_none(
    found: dict[str, Any],
) -> None:
    assert found["alone"][1] == {}
    error = found["changed"][1]
    assert isinstance(error, PallascError)
    assert "is compiled to another cubin now" in str(error)
    assert error.location is not None
    assert error.location.file.endswith("changed.py")


def test_two_texts_for_one_name_are_told_apart(tmp_path: Path) -> None:
    for number, body in enumerate(["ret;", "ret;", "trap;"]):
        text = f".visible .entry fusion_{number // 2}()\n{{\n{body}\n}}\n"
        (tmp_path / f"module.{number}.ptx").write_text(text)
    (tmp_path / "module.3.ptx").write_text(".entry fusion_0()\n{\ntrap;\n}\n")
    texts: Mapping[str, set[str]] = written_kernels(tmp_path)
    assert {name: len(each) for name, each in texts.items()} == {"fusion_0": 2, "fusion_1": 1}
