"""The lines of machine code: found by compiling once more, kept in a store, and their costs."""

import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pallasc.analysis.find_lines import Compiled, Files, code_of, obtain_source_lines, with_products
from pallasc.analysis.lines import (
    LineCosts,
    add_cost,
    key_of,
    put_source_lines,
    read_source_lines,
)
from pallasc.analysis.sass import Instruction
from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.prune import clear
from pallasc.cache.store import Store
from pallasc.cache.verify import verify
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.compiler.lowering.line_tables import check_code
from pallasc.errors import CompileError, PallascError
from pallasc.specs import library
from pallasc.specs.artifacts.source_lines import KernelLines, SourceLines, to_json
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
    answers = obtain_source_lines([*compiled.values()], Store(folder / "store"), jobs=1)
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
    variant, artifact, _ = compiled["matmul"]
    other = type(artifact)({**artifact.record, "toolchain": {"ptxas": "12.0"}}, artifact.blob)
    without_lines = Compiled(variant, other, "0" * 64)
    (error,) = obtain_source_lines([without_lines], Store(folder / "store"), jobs=1)
    assert isinstance(error, CompileError)
    assert "it was compiled with another toolchain" in error.message


def instruction(opcode: str, live: int | None = None) -> Instruction:
    """Return an instruction with an opcode, and as many registers live."""
    return Instruction(0, "", opcode, (), "", live, bytes(16))


@pytest.mark.parametrize(
    ("opcode", "waits"),
    [
        ("BAR.SYNC.DEFER_BLOCKING", True),
        ("BAR.ARV", False),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", True),
        ("SYNCS.ARRIVE.TRANS64", False),
        ("WARPGROUP.DEPBAR.LE", True),
        ("WARPGROUP.ARRIVE", False),
        ("DEPBAR.LE", True),
        ("LDGDEPBAR", False),
        ("UCGABAR_WAIT", True),
    ],
)
def test_waits_are_told_from_arrivals(opcode: str, waits: bool) -> None:
    costs: LineCosts = Counter()
    add_cost(costs, instruction(opcode))
    assert costs["waits"] == waits


def test_a_line_has_sums_and_the_most_registers() -> None:
    costs: LineCosts = Counter()
    for opcode, live in (("STL", 9), ("LDL.64", 40), ("HGMMA.64x64x16.F32", 12), ("LDS", None)):
        add_cost(costs, instruction(opcode, live))
    assert costs == {
        "instructions": 4, "local": 2, "tensor": 1, "shared": 1, "waits": 0, "registers": 40,
    }  # fmt: skip


PTX = """\
mov.u32 a, b;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {…};
add.s32 c, d, e;
add.s32 f, g, h;
wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {…};
"""


def code(*operations: int) -> bytes:
    """Return machine code with these operations."""
    return b"".join(number.to_bytes(2, "little") + bytes(14) for number in operations)


@pytest.mark.parametrize(
    ("operations", "told", "expected"),
    [
        ((0x9F0, 0x224, 0xDF0), [1, 3, 3], [2, 3, 5]),  # as many as statements: in their order
        ((0x9F0, 0x9F0, 0x9F0), [1, 3, 4], [2, 2, 5]),  # unrolled: the nearest
        ((0x224, 0x225), [1, 3], [1, 3]),
    ],
)
def test_products_have_the_line_of_their_statement(
    operations: tuple[int, ...], told: list[int], expected: list[int]
) -> None:
    assert with_products(code(*operations), PTX, told) == expected


KEY = "ab" * 32
SOURCE = """\
import jax


def kernel(x):
    def body(ref):
        return ref[...]

    return body(x)


LAST = kernel(1)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with a record, and source lines of `spec/kernel.py` beside it."""
    folder = tmp_path / "spec"
    folder.mkdir()
    (folder / "kernel.py").write_text(SOURCE)
    held = Store(tmp_path / "store")
    held.put_artifact(KEY, {"a": 1}, {"cubin": b"code"})
    put_source_lines(held, KEY, lines_of(folder))
    return held


def lines_of(folder: Path) -> SourceLines:
    """Return source lines with two frames of a file."""
    files = Files(str(folder), time.time_ns())
    stack = tuple(files.frame(str(folder / "kernel.py"), line) for line in (6, 11))
    kernel = KernelLines("k", "c" * 64, "d" * 64, (1, 2, 3, 0), (0, 1, 0))
    return SourceLines((kernel,), (stack,), files.files())


def test_lines_come_back_with_functions_and_text(store: Store, tmp_path: Path) -> None:
    found = read_source_lines(store, KEY, base_dir=str(tmp_path / "spec"))
    assert found == lines_of(tmp_path / "spec")
    assert [str(frame) for frame in found.stack(1)] == ["kernel.py:6", "kernel.py:11"]
    assert [frame.function for frame in found.stack(1)] == ["kernel.body", ""]
    assert found.text(found.stack(1)[0]) == "        return ref[...]"
    # The whole of the functions that frames are in is shown, and nothing else of the file.
    assert sorted(found.files[0].text) == [*range(4, 9), 11]
    # Lines of PTX without a location belong to a neighbour.
    assert found.kernels[0].stacks == (1, 1, 1, 0)
    assert found.of("k", "c" * 64) is found.kernels[0]
    assert found.of("k", "d" * 64) is None


def test_lines_of_a_source_that_has_changed_do_not_fit(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "spec" / "kernel.py"
    source.write_text(f"# a line more\n{SOURCE}")
    assert read_source_lines(store, KEY, base_dir=str(source.parent)) is None
    assert read_source_lines(store, KEY) is not None  # as they were, with their text
    source.unlink()
    assert read_source_lines(store, KEY, base_dir=str(source.parent)) is None


def test_lines_count_as_python_counts_them(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_bytes(b"one = 1\r\n\x0c\r\ntwo = 2  # \x0c\rthree = 3\n")
    files = Files(str(tmp_path), time.time_ns())
    files.frame(str(tmp_path / "kernel.py"), 4)
    assert files.files()[0].text == {4: "three = 3"}


def test_a_file_that_changes_while_lines_are_found_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(SOURCE)
    with pytest.raises(CompileError, match=r"kernel\.py changed while it was compiled again"):
        Files(str(tmp_path), 0).frame(str(tmp_path / "kernel.py"), 6)


@pytest.mark.parametrize("lines", ["no base64", "eJwDAAAAAAE=", ""])
def test_a_damaged_record_is_none(store: Store, lines: str) -> None:
    store.put_manifest(key_of(KEY), Manifest(action=KEY, lines=lines))
    assert read_source_lines(store, KEY) is None


def test_they_are_verified_and_go_with_their_artifact(store: Store) -> None:
    assert verify(store).ok
    path = store.path(MANIFESTS, key_of(KEY))
    held = path.read_bytes()
    path.write_bytes(held.replace(b'"lines":"', b'"lines":"A'))
    assert [finding.kind for finding in verify(store).findings] == ["corrupt"]
    path.write_bytes(held)
    clear(store)
    assert not store.names(MANIFESTS)
