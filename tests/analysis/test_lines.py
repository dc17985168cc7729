"""The user's lines of machine code, found by compiling once more."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pallasc.analysis.find_lines import Compiled, code_of, find_source_lines
from pallasc.analysis.lines import read_source_lines
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.compiler.lowering.line_tables import check_code
from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import CompileError, PallascError
from pallasc.specs import library
from pallasc.specs.artifacts.source_lines import SourceLines, to_json
from pallasc.specs.canonical import digest
from pallasc.specs.loading.matrix import expand

MATMUL = Path(library.__file__).resolve().parent / "hopper_matmul.py"
SPEC = """
schema: 1
targets: [sm_90a]
kernels:
  - {name: matmul, entry: "kernel.py:matmul", args: {a: "f16[256, 128]", b: "f16[128, 128]"}}
  - {name: moved, entry: "moved.py:matmul", args: {a: "f16[256, 128]", b: "f16[128, 128]"}}
  - {name: changed, entry: "changed.py:matmul", args: {a: "f16[256, 128]", b: "f16[128, 128]"}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Return a folder with a spec, and a store."""
    place = tmp_path_factory.mktemp("lines")
    shutil.copytree(warm_store.root, place / "store")
    text = MATMUL.read_text()
    for name, source in (("kernel", text), ("moved", f"# a line more\n{text}"), ("changed", text)):
        (place / f"{name}.py").write_text(source)
    (place / "spec.yaml").write_text(SPEC)
    return place


@pytest.fixture(scope="module")
def compiled(folder: Path) -> dict[str, Compiled]:
    """Return the spec's variants, one of which was changed after it was compiled."""
    store = Store(folder / "store")
    variants = expand(SpecReader(store=store).specs([str(folder / "spec.yaml")]))
    results = build(variants, store=store, options=Options(jobs=1)).results
    changed = folder / "changed.py"
    changed.write_text(changed.read_text().replace("wgmma_wait(0)", "wgmma_wait(1)"))
    assert all(result.artifact and result.action_key for result in results)
    return {
        r.variant.name: Compiled(r.variant, r.artifact, r.action_key)
        for r in results
        if r.artifact and r.action_key
    }


@pytest.fixture(scope="module")
def found(folder: Path, compiled: dict[str, Compiled]) -> dict[str, SourceLines | PallascError]:
    """Return what is found for each of them."""
    with prepare() as setup:
        answers = find_source_lines([*compiled.values()], setup, Store(folder / "store"))
    return dict(zip(compiled, answers, strict=True))


def lines(found: Any) -> SourceLines:
    """Return what was found where it is no error."""
    assert isinstance(found, SourceLines), found
    return found


def test_machine_code_has_the_lines_that_made_it(found: Any, compiled: Any) -> None:
    from pallasc.analysis.nvdisasm import sass
    from pallasc.compiler.toolchain.toolchain import find_disassembler

    if find_disassembler() is None:
        pytest.skip("nvdisasm is not installed")
    known = lines(found["matmul"])
    (kernel,) = known.kernels
    text = sass(compiled["matmul"].artifact.cubin(), kernel=kernel.name)
    listed = [line for line in text.splitlines() if line.lstrip().startswith("/*")]
    assert len(listed) == len(kernel.stacks)
    shown = [known.text(known.stack(number)[0]) if number else "" for number in kernel.stacks]
    products = {line for code, line in zip(listed, shown, strict=True) if "HGMMA" in code}
    assert [line.strip() for line in products] == ["plgpu.wgmma(acc, a_smem.at[rows], b_smem)"]
    assert sum(map(bool, kernel.stacks)) > 0.95 * len(listed)
    artifact = compiled["matmul"].artifact  # the record fits no other machine code
    code = code_of(artifact, artifact.kernels[0])
    assert known.of(kernel.name, digest(code)) == kernel
    assert len(kernel.ptx_lines) * 16 == len(code)
    assert digest(artifact.ptx().encode()) == kernel.ptx


def test_one_action_key_has_the_lines_of_the_source_that_was_last(
    found: Any, compiled: Any, folder: Path
) -> None:
    kernel, moved = lines(found["matmul"]), lines(found["moved"])
    assert [frame.line + 1 for frame in kernel.stacks[0]] == [f.line for f in moved.stacks[0]]
    assert compiled["matmul"].action_key == compiled["moved"].action_key
    store = Store(folder / "store")
    assert read_source_lines(store, compiled["moved"].action_key, base_dir=str(folder)) == moved
    assert [file.name for file in kernel.files] == ["kernel.py"]
    assert str(folder) not in to_json(kernel).decode()


def test_a_source_that_has_changed_since_is_refused(found: Any) -> None:
    assert isinstance(found["changed"], CompileError)
    assert "its PTX differs from what ships at instruction" in found["changed"].message


def test_the_parts_of_shared_memory_add_up_and_have_names(found: Any, compiled: Any) -> None:
    known = lines(found["matmul"])
    parts = known.kernels[0].shared_memory
    (kernel,) = compiled["matmul"].artifact.kernels
    assert sum(part.bytes for part in parts) == kernel.dynamic_smem_bytes
    scratch = [part for part in parts if part.what == "scratch"]
    assert scratch
    barriers = {part.name for part in parts if part.what == "barrier"}
    assert barriers


def test_other_machine_code_is_refused() -> None:
    check_code({"ptx": "a", "other": "b"}, ["b", "a", "c"])
    with pytest.raises(CompileError, match="its machine code differs from what ships"):
        check_code({"ptx": "a", "other": "d"}, ["b", "a", "c"])


def test_another_toolchain_is_refused(compiled: Any, folder: Path) -> None:
    variant, artifact, key = compiled["matmul"]
    other = type(artifact)({**artifact.record, "toolchain": {"ptxas": "12.0"}}, artifact.blob)
    with prepare() as setup:
        store = Store(folder / "store")
        (error,) = find_source_lines([Compiled(variant, other, key)], setup, store)
    assert isinstance(error, CompileError)
    assert "it was compiled with another toolchain" in error.message
