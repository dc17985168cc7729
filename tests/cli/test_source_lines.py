"""`inspect --lines` and `--source`, and bundles with lines: real kernels."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.toolchain.toolchain import find_disassembler
from pallasc.specs import library
from pallasc.specs.bundle.bundle import open_bundle

SOURCE = Path(library.__file__).resolve().parent / "hopper_matmul.py"
BODY = "plgpu.wgmma(acc, a_smem.at[rows], b_smem)"
SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - name: matmul
    entry: kernel.py:matmul
    args: {a: "f16[256, 128]", b: "f16[128, 128]"}
"""

pytestmark = pytest.mark.skipif(find_disassembler() is None, reason="nvdisasm is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm_store: Store) -> Path:
    """Return a folder with a spec and a store, which has its lines."""
    from pallasc.cli.main import main

    place = tmp_path_factory.mktemp("lines")
    shutil.copytree(warm_store.root, place / "store")
    shutil.copy(SOURCE, place / "kernel.py")
    (place / "spec.yaml").write_text(SPEC)
    (place / "shown").mkdir()
    lines = ["--lines", "--output", f"{place}/shown"]
    assert main(["inspect", f"{place}/spec.yaml", "--store", f"{place}/store", *lines]) == 0
    return place


@pytest.fixture
def inspect(run: Any, folder: Path) -> Any:
    """Return a function that inspects the spec, or something else."""

    def inspect_one(*arguments: str | Path, of: str | Path = "") -> Any:
        return run("inspect", of or folder / "spec.yaml", "--store", folder / "store", *arguments)

    return inspect_one


def test_the_lines_of_the_source_are_shown_with_what_they_cost(inspect: Any) -> None:
    shown = inspect("--lines")
    assert (shown.code, shown.err) == (0, "")  # what the build has found is not found again
    heading, name, head = shown.out.splitlines()[0], *shown.out.splitlines()[2:4]
    assert re.fullmatch(r"\w+: \d+ of \d+ instructions have a line", heading)
    assert name == "kernel.py"
    assert head.split() == ["LINE", "INSTR", "TENSOR", "SHARED", "WAITS", "REGS", "SOURCE"]
    (row,) = [line.split() for line in shown.out.splitlines() if line.endswith(BODY)]
    assert int(row[2]) > 0  # tensor cores
    assert "shared memory of a block" in shown.out
    assert re.search(r"\d  out_smem f16\[\d+, \d+\] +kernel\.py:\d+", shown.out)


def test_machine_code_and_ptx_stand_beneath_their_lines(inspect: Any) -> None:
    sass = inspect("--sass", "--source").out.splitlines()
    before = ""
    for line in sass:
        before = line if line.startswith("//") else before
        assert "HGMMA" not in line or before.endswith(BODY)
    ptx = inspect("--ptx", "--source").out.splitlines()
    product = next(n for n, line in enumerate(ptx) if "wgmma.mma_async" in line)
    above = [line for line in ptx[:product] if line.startswith("// kernel.py")]
    assert above[-1].endswith(BODY)


def test_a_bundle_has_lines_only_where_it_is_asked_for_them(
    inspect: Any, run: Any, folder: Path, tmp_path: Path
) -> None:
    given = ("bundle", "create", folder / "spec.yaml", "--store", folder / "store", "-q")
    with_lines, without = tmp_path / "with.pallasc", tmp_path / "without.pallasc"
    assert run(*given, "-o", with_lines, "--lines").code == 0
    assert run(*given, "-o", without).code == 0
    assert BODY in inspect("--lines", of=with_lines).out
    assert run("bundle", "verify", with_lines).code == 0
    told = inspect("--sass", "--source", of=without)
    assert told.code == 3
    assert "pallasc bundle create --lines" in told.err
    assert BODY.encode() not in without.read_bytes()
    with open_bundle(with_lines) as first, open_bundle(without) as second:
        assert first.digest != second.digest
        assert (first.reader.head.minor, second.reader.head.minor) == (1, 0)
    stripped = tmp_path / "stripped.pallasc"
    assert run("bundle", "create", with_lines, "-o", stripped).code == 0
    assert stripped.read_bytes() == with_lines.read_bytes()
    assert run("bundle", "create", with_lines, "-o", stripped, "--no-lines").code == 0
    with open_bundle(without) as first, open_bundle(stripped) as second:
        assert first.digest == second.digest
