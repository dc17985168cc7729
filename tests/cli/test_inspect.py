"""`pallasc inspect`, of what a real build left in the store."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pallasc.cli.inspect import SUFFIXES
from pallasc.specs.canonical import canonical_json, digest

F32 = "add[m=1024,dtype=f32]@h100-sxm"
BF16 = "add[m=1024,dtype=bf16]@h100-sxm"

PRINTING = """
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

def printing(x):
    def body(x_ref, o_ref):
        pl.debug_print("the sum is {}", x_ref[...].sum())
        o_ref[...] = x_ref[...]

    mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
    params = plgpu.CompilerParams()
    return pl.kernel(body, out_type=x, mesh=mesh, compiler_params=params, debug=True)(x)
"""
SPEC = """
schema: 1
targets: [sm_90a]
kernels:
  - {name: printing, entry: "kernels.py:printing", args: {x: "f32[128]"}}
"""


@pytest.fixture
def inspect(run: Any, built: Any) -> Any:
    """Inspect the variant in f32."""

    def inspect_one(*arguments: str | Path) -> Any:
        return run("inspect", *built.arguments, "-k", "dtype=f32", *arguments)

    return inspect_one


def test_the_summary_names_target_arrays_launches_and_resources(inspect: Any) -> None:
    result = inspect()
    lines = result.out.splitlines()
    assert (result.code, result.err, lines[0]) == (0, "", F32)
    assert re.fullmatch("artifact   [0-9a-f]{64}", lines[1])
    assert lines[2] == "target     h100-sxm (sm_90a)"
    assert re.fullmatch(r"toolchain  jax \d[\d.]+, ptxas \d[\d.]+", lines[3])
    assert re.fullmatch(r"driver     CUDA \d+\.\d, Linux \d[\d.]+ or newer", lines[4])
    assert lines[5] == "inputs     x: f32[1024, 4096], y: f32[1024, 4096]"
    assert lines[6].startswith("outputs    ")
    assert lines[7] == "buffers    2 inputs, 1 output; 50,331,648 bytes"
    assert lines[8] == "steps      1 launch"
    assert lines[9] == "kernels    1 from Mosaic GPU"
    assert re.fullmatch(r"  \w+ grid=\(2048,1,1\) block=\(128,1,1\) smem=\d+", lines[11])
    assert lines[12] == "resources"
    assert len(lines) == 15


def test_the_resources_are_a_table_and_numbers_of_each_launch(inspect: Any) -> None:
    head, row, empty, *lines = inspect("--resources").out.splitlines()
    assert head.split()[:4] == ["KERNEL", "ORIGIN", "REGISTERS", "STACK"]
    assert row.split()[1] == "mosaic"
    assert int(row.split()[2]) > 0
    assert empty == ""
    assert lines[0].startswith("launch 0: ")
    assert lines[1] == "  grid          2,048 blocks of 128 threads"
    occupancy = r"  occupancy     \d+ blocks, \d+ of 64 warps/SM; limited by \w+"
    assert re.fullmatch(occupancy, lines[2])
    assert re.fullmatch(r"  waves         \d[\d.]*", lines[3])
    assert lines[4] == "  bound         at least 15.01 µs by memory (50.33 MB of arrays)"
    assert re.match(r"  instructions  \d+: ", lines[5])
    assert max(map(len, lines)) <= 80


def test_what_needs_the_disassembler_is_left_out_with_one_note(
    run: Any, built: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallasc.analysis import nvdisasm

    monkeypatch.setattr(nvdisasm, "find_disassembler", lambda: None)
    result = run("inspect", *built.arguments, "--resources")
    assert result.code == 0
    assert result.err.count("note: instructions and loops are left out: nvdisasm") == 1
    assert result.out.count("waves") == 2
    assert "instructions" not in result.out


def test_json_holds_the_record_under_its_digest_and_the_numbers_that_were_asked_for(
    inspect: Any,
) -> None:
    data = json.loads(inspect("--json").out)
    (artifact,) = data["artifacts"]
    assert (data["schema"], artifact["id"]) == (1, F32)
    assert artifact["digest"] == digest(canonical_json(artifact["record"]))
    assert artifact["record"]["target"]["name"] == "h100-sxm"
    assert "metrics" not in artifact
    (artifact,) = json.loads(inspect("--resources", "--json").out)["artifacts"]
    (launch,) = artifact["metrics"]
    assert launch["roofline"]["least_bytes"] == 3 * 1024 * 4096 * 4
    assert launch["occupancy"]["blocks_per_sm"] > 1
    assert launch["mix"]["floating"] > 0


def test_output_writes_what_would_have_been_printed_into_a_file_for_each_view_and_variant(
    run: Any, built: Any, inspect: Any, tmp_path: Path
) -> None:
    file = tmp_path / "folder" / "file"
    for view in ("--ptx", "--json"):
        result = inspect(view, "--output", file)
        assert (result.code, result.out, result.err) == (0, "", f"wrote {file}\n")
        assert file.read_text() == inspect(view).out
    new = tmp_path / "new"
    assert inspect("--plan", "--ptx", "--output", f"{new}/").code == 0
    assert sorted(path.name for path in new.iterdir()) == [f"{F32}.plan.txt", f"{F32}.ptx"]
    assert (new / f"{F32}.ptx").read_text() == inspect("--ptx").out
    assert run("inspect", *built.arguments, "--ptx", "--output", new).out == ""
    assert (new / f"{BF16}.ptx").exists()
    assert len(set(SUFFIXES.values())) == len(SUFFIXES)


def test_an_artifact_is_found_by_its_action_key_and_its_digest(
    run: Any, built: Any, inspect: Any
) -> None:
    (record,) = json.loads(inspect("--json").out)["artifacts"]
    shown = inspect("--plan").out
    store = ("--store", built.store)
    for name in ("action_key", "digest"):
        for digits in (64, 8):
            result = run("inspect", record[name][:digits], *store, "--plan")
            assert (result.code, result.out, result.err) == (0, shown, "")
    # A store has the parameters in the order of their names.
    own_id = "add[dtype=f32,m=1024]@h100-sxm"
    assert run("inspect", record["digest"], *store).out.splitlines()[0] == own_id
    (again,) = json.loads(run("inspect", record["digest"], *store, "--json").out)["artifacts"]
    assert again == {**record, "id": own_id}
    result = run("inspect", "0" * 64, *store)
    assert (result.code, result.out) == (3, "")
    assert f"{'0' * 64} is not a file, and the store has no artifact" in result.err


def test_a_bundle_is_inspected_but_for_what_tracing_printed(
    run: Any, built: Any, tmp_path: Path
) -> None:
    bundle, with_ptx = tmp_path / "kernels.pallasc", tmp_path / "ptx.pallasc"
    run("bundle", "create", *built.arguments, "-o", bundle)
    run("bundle", "create", *built.arguments, "-o", with_ptx, "--keep-ptx")
    lines = run("inspect", bundle).out.splitlines()
    assert [line for line in lines if "@" in line] == [BF16, F32]
    shown = run("inspect", bundle, "-k", "dtype=f32", "--plan")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith("buffers: 3\n")
    assert run("inspect", bundle, "-k", "dtype=f32", "--ptx").out == (
        "// add_body_mosaic_gpu_kernel: the bundle has no PTX; pallasc bundle create --keep-ptx "
        "adds it\n"
    )
    assert ".visible .entry" in run("inspect", with_ptx, "-k", "dtype=f32", "--ptx").out
    result = run("inspect", bundle, "--debug-output")
    assert (result.code, result.out) == (2, "")
    assert "which bundles and artifacts do not contain" in result.err


def test_debug_output_shows_what_tracing_printed_of_a_hit(
    run: Any, inspect: Any, tmp_path: Path
) -> None:
    (tmp_path / "kernels.py").write_text(PRINTING)
    spec, store = tmp_path / "kernels.yaml", tmp_path / "store"
    spec.write_text(SPEC)
    assert run("build", spec, "--store", store).code == 0
    result = run("inspect", spec, "--store", store, "--debug-output")
    assert (result.code, result.err) == (0, "")
    assert "debug_print" in result.out
    assert "module @" in result.out
    assert result.out.splitlines()[-2:] == [
        "body_mosaic_gpu_kernel prints when it runs:",
        r'  "the sum is %f\n"',
    ]
    assert inspect("--debug-output").out == "nothing was printed\n"
