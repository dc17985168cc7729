"""`pallasc run` and `pallasc bench` of a bundle, on the stand-in driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunCommand = Callable[..., Any]

F32 = "add[m=1024,dtype=f32]@h100-sxm"


@pytest.fixture
def gpu(gpu: Any, standin_gpu: Any) -> Any:
    """Return the GPU with a kernel that adds."""
    gpu.kernel("*")(standin_gpu.add_kernel())
    return gpu


@pytest.fixture
def bundle(run: RunCommand, built: Any, tmp_path: Path) -> Path:
    """Give a bundle of what was built."""
    file = tmp_path / "kernels.pallasc"
    result = run("bundle", "create", *built.arguments, "-o", file)
    assert result.code == 0, result.err
    return file


def test_a_bundle_is_launched_without_store_and_spec(
    gpu: Any, run: RunCommand, bundle: Path, built: Any, tmp_path: Path
) -> None:
    store = ["--store", tmp_path / "none"]
    result = run("run", bundle, "-k", "dtype=f32", "--json", *store)
    assert (result.code, result.err) == (0, "")
    (row,) = json.loads(result.out)["results"]
    assert (row["id"], row["same"], row["reference"]) == (F32, None, None)
    with_spec = run("run", *built.arguments, "-k", "dtype=f32", "--json")
    (other,) = json.loads(with_spec.out)["results"]
    assert row["outputs"][0]["sha256"] == other["outputs"][0]["sha256"]
    assert not (tmp_path / "none").exists()


def test_a_bundle_is_measured(gpu: Any, run: RunCommand, bundle: Path) -> None:
    result = run("bench", bundle, "--all", "--repeats", "3", "--flops", "{m * 4096}", "--json")
    assert (result.code, result.err) == (0, "")
    rows = json.loads(result.out)["results"]
    assert sorted(row["params"]["dtype"] for row in rows) == ["bf16", "f32"]
    assert [row["median_us"] for row in rows] == [pytest.approx(20)] * 2
    assert {row["flop"] for row in rows} == {1024 * 4096}


def test_a_bundle_is_known_by_what_it_holds(
    gpu: Any, run: RunCommand, bundle: Path, tmp_path: Path
) -> None:
    other = bundle.rename(tmp_path / "kernels.bin")
    assert run("run", other, "-k", "dtype=f32").code == 0


def test_several_points_of_a_bundle_are_told_apart(gpu: Any, run: RunCommand, bundle: Path) -> None:
    result = run("run", bundle)
    assert result.code == 2
    assert "2 variants of add can be launched on" in result.err
    assert '-k "dtype=' in result.err


def test_a_bundle_for_another_gpu_is_refused(
    gpu: Any, standin_gpu: Any, run: RunCommand, bundle: Path
) -> None:
    gpu.devices("8.0")
    standin_gpu.made.forget()
    result = run("run", bundle, "-k", "dtype=f32")
    assert result.code == 4
    assert "no variant of add fits GPU 0" in result.err
    assert "sm_90a runs on exactly sm_90, and this GPU is sm_80" in result.err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("missing.pallasc", 2, "missing.pallasc"),
        ("damaged.pallasc", 5, "damaged.pallasc"),
    ],
)
def test_what_cannot_be_read_is_refused(
    name: str, code: int, message: str, gpu: Any, run: RunCommand, bundle: Path, tmp_path: Path
) -> None:
    if name.startswith("damaged"):
        (tmp_path / name).write_bytes(bundle.read_bytes()[:-1])
    result = run("run", tmp_path / name)
    assert result.code == code
    assert message in result.err


def test_bundles_and_specs_do_not_go_together(
    gpu: Any, run: RunCommand, bundle: Path, built: Any
) -> None:
    result = run("run", bundle, built.spec)
    assert result.code == 2
    assert f"{bundle} is a bundle and {built.spec} is not:" in result.err
