"""`pallasc run` of specs and bundles, on the stand-in driver with a function as the kernel."""

import hashlib
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pallasc.compiler.arrays import random_bytes

F32 = "add[m=1024,dtype=f32]@h100-sxm"
BF16 = "add[m=1024,dtype=bf16]@h100-sxm"
GPU = "GPU 0 (NVIDIA H100 80GB HBM3, sm_90)"

REFERENCES = """
import jax.numpy as jnp

def add_reference(x, y):
    return (x.astype(jnp.float32) + y.astype(jnp.float32)).astype(x.dtype)

def narrow_reference(x, y):
    return (x + y)[:, 1:]

def failing_reference(x, y):
    raise ValueError("not today")
"""


@pytest.fixture
def gpu(gpu: Any, standin_gpu: Any) -> Any:
    """Return the GPU with a kernel that adds."""
    gpu.kernel("*")(standin_gpu.add_kernel())
    return gpu


@pytest.fixture
def launch(run: Any, built: Any, tmp_path: Path) -> Any:
    """Run a spec like the built one, with a reference; `reference` names another one or none."""

    def launch_one(*arguments: str | Path, reference: str | None = "add", more: str = "") -> Any:
        (tmp_path / "references.py").write_text(REFERENCES)
        entry = f"    reference: references.py:{reference}_reference\n" if reference else ""
        spec = tmp_path / "kernels.yaml"
        text = built.spec.read_text().replace("    args:", f"{entry}{more}    args:")
        spec.write_text(text)
        return run("run", spec, "--store", built.store, *arguments)

    return launch_one


@pytest.fixture
def bundle(run: Any, built: Any, tmp_path: Path) -> Path:
    """Give a bundle of what was built."""
    file = tmp_path / "kernels.bin"  # it is known by its content
    result = run("bundle", "create", *built.arguments, "-o", file)
    assert result.code == 0, result.err
    return file


def _sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x.astype(np.float32) + y.astype(np.float32)).astype(x.dtype)


def _expected(kind: Any, dtype: str, seed: int = 0) -> np.ndarray:
    """Return the sum of the inputs that a seed gives."""
    size = 1024 * 4096 * np.dtype(kind).itemsize
    data = [random_bytes(dtype, size, seed=seed, name=name) for name in "xy"]
    x, y = (np.frombuffer(each, kind).reshape(1024, 4096) for each in data)
    return _sum(x, y)


def test_what_is_as_the_reference_is_said_in_a_line_for_each_array(gpu: Any, launch: Any) -> None:
    result = launch("-k", "dtype=f32", more="    tolerance: {rtol: 1.0e-6}\n")
    digest = hashlib.sha256(_expected(np.float32, "f32").tobytes()).hexdigest()[:16]
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"{F32} on {GPU}",
        "  x    f32[1024, 4096]  random, seed 0",
        "  y    f32[1024, 4096]  random, seed 0",
        "  out  f32[1024, 4096]  matches the reference: largest absolute error 0, relative error 0 "
        f"(rtol 1e-06, atol 0); sha256 {digest}",
    ]


def test_a_launch_is_reported_as_json(gpu: Any, launch: Any) -> None:
    result = launch("-k", "dtype=bf16", "--json", "--seed", "3")
    report = json.loads(result.out)
    assert (result.code, len(gpu.launches)) == (0, 1)
    assert report["device"] == {
        "ordinal": 0, "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "driver": "13.0",
    }  # fmt: skip
    assert report["emulated"] is False
    (row,) = report["results"]
    shape = [1024, 4096]
    assert row["inputs"][0] == {"path": "x", "dtype": "bf16", "shape": shape, "file": None}
    assert (row["id"], row["seed"], row["same"]) == (BF16, 3, True)
    (output,) = row["outputs"]
    eps = 4 * float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
    assert output["compared"] == {
        "count": 1024 * 4096, "mismatches": 0, "rtol": eps, "atol": eps, "max_abs": 0.0,
        "max_rel": 0.0, "first": None,
    }  # fmt: skip
    right = _expected(ml_dtypes.bfloat16, "bf16", 3)
    assert output["sha256"] == hashlib.sha256(right.tobytes()).hexdigest()


def test_a_difference_is_located_and_ends_with_1(gpu: Any, standin_gpu: Any, launch: Any) -> None:
    def spoil(out: Any) -> None:
        out[3, 5:7] += np.float32(0.5)

    gpu.kernel("*")(standin_gpu.add_kernel(spoil))
    result = launch("-k", "dtype=f32", more="    tolerance: {atol: 0.25}\n")
    wanted = _expected(np.float32, "f32")[3, 5]
    assert result.code == 1
    assert result.out.splitlines()[3].startswith(
        "  out  f32[1024, 4096]  differs in 2 of 4,194,304 elements, first at [3, 5]: "
        f"{wanted + np.float32(0.5)!s}, expected {wanted!s}; largest absolute error 0.5, "
    )
    assert result.err == f"error: {F32} differs from its reference.\n"


def test_inputs_come_from_files_and_outputs_go_to_them(
    gpu: Any, launch: Any, tmp_path: Path
) -> None:
    kind = ml_dtypes.bfloat16
    x = np.arange(1024 * 4096).reshape(1024, 4096).astype(kind)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", x.view(np.uint16))
    files = [f"--input={name}={tmp_path / name}.npy" for name in ("x", "y")]
    result = launch("-k", "dtype=bf16", *files, "--output", tmp_path / "out", reference=None)
    assert result.code == 0
    assert result.out.splitlines()[1] == f"  x    bf16[1024, 4096]  {tmp_path / 'x.npy'}"
    assert "not compared (no reference); sha256 " in result.out.splitlines()[3]
    assert result.err == f"wrote {tmp_path / 'out' / 'out.npy'}\n"
    assert (np.load(tmp_path / "out" / "out.npy").view(kind) == _sum(x, x)).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--input", "x"], "error: --input 'x' is not NAME=FILE."),
        (["--input", "x=a.npy", "--input", "x=b.npy"], "error: --input gives x twice."),
        (["--input", "z=/dev/null"], f"error: {F32} has no input 'z'.\n  Inputs: x, y."),
        (["--device", "3"], "error: there is no GPU 3: the driver counts 1."),
    ],
)
def test_a_wrong_option_is_refused(arguments: list[str], text: str, gpu: Any, launch: Any) -> None:
    result = launch("-k", "dtype=f32", *arguments)
    assert (result.code, result.out, gpu.launches) == (2, "", [])
    assert result.err.startswith(text)


def test_a_gpu_of_another_architecture_and_none_are_refused(
    gpu: Any, launch: Any, run: Any, bundle: Path
) -> None:
    gpu.devices("10.0")
    reason = f"  {F32}: sm_90a runs on exactly sm_90, and this GPU is sm_100"
    for result in (launch("-k", "dtype=f32"), run("run", bundle, "-k", "dtype=f32")):
        assert (result.code, result.out) == (4, "")
        head, *lines = result.err.splitlines()
        assert head.endswith("no variant of add fits GPU 0 (Stand-in B200, sm_100):")
        assert lines == [reason, "  Compile for this GPU: --target sm_100a."]


def test_mistakes_are_told_before_a_gpu_is_looked_for_and_without_one_the_driver_is_quoted(
    gpu: Any, launch: Any, run: Any, tmp_path: Path
) -> None:
    gpu.devices()
    for arguments, text in (
        (("-k", "dtype=f32", "--input", "x=/none.npy"), "error: /none.npy cannot be read: No such"),
        (("-k", "dtype=f16"), "error: -k 'dtype=f16' selects none of 2 variants."),
    ):
        result = launch(*arguments)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(text)
    for name in ("nosuch.yaml", "nosuch.pallasc"):
        result = run("run", tmp_path / name)
        assert (result.code, result.out) == (2, "")
        assert name in result.err
        assert "NVIDIA" not in result.err
    result = launch("-k", "dtype=f32")
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith(
        "error: the NVIDIA driver does not start: cuInit answers CUDA_ERROR_NO_DEVICE (100), "
    )
    assert result.err.splitlines()[1:] == [
        "  Run nvidia-smi; in a container, start it with --gpus all.",
        "  Without a GPU, --emulate executes the kernels on the CPU.",
    ]


@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        ("cuLaunchKernelEx", 701, " cannot be launched: cuLaunchKernelEx answers "),
        ("cuMemAlloc_v2", 2, ": cannot allocate 16777216 bytes for f32[1024, 4096] "),
    ],
)
def test_a_launch_that_fails_names_the_variant(
    call: str, code: int, text: str, gpu: Any, launch: Any
) -> None:
    gpu.fault(call, code)
    result = launch("-k", "dtype=f32", reference=None)
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith(f"error: {F32}{text}")


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("failing", "references.py:11: the reference references.py:failing_reference of add "
                    "failed: ValueError: not today\n"),
        ("narrow", "gives arrays of the shapes [1024, 4095], and the kernel [1024, 4096].\n"
                   "  It must return arrays like the kernel's.\n"),
        ("no", "has no 'no_reference'"),
    ],
)  # fmt: skip
def test_a_reference_that_does_not_fit_is_refused(
    reference: str, text: str, gpu: Any, launch: Any
) -> None:
    result = launch("-k", "dtype=f32", reference=reference)
    assert (result.code, result.out) == (2, "")
    assert text in result.err


def test_neither_numpy_nor_jax_is_loaded_by_a_launch(
    gpu: Any,
    standin_gpu: Any,
    built: Any,
    process: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in standin_gpu.standin.environment().items():
        monkeypatch.setenv(name, value)
    modules = tmp_path / "modules"
    result = process("run", *built.arguments, "-k", "dtype=f32", modules=modules)
    assert (result.code, result.err) == (0, "")
    loaded = {name.partition(".")[0] for name in modules.read_text().splitlines()}
    assert loaded & {"numpy", "jax", "jaxlib", "ml_dtypes", "torch"} == set()
    assert "cuda" in loaded


# ---- bundles


def test_a_bundle_is_launched_and_measured_without_store_and_spec(
    gpu: Any, run: Any, bundle: Path, built: Any, tmp_path: Path
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
    result = run("bench", bundle, "--all", "--repeats", "3", "--flops", "{m * 4096}", "--json")
    assert (result.code, result.err) == (0, "")
    rows = json.loads(result.out)["results"]
    assert sorted(row["params"]["dtype"] for row in rows) == ["bf16", "f32"]
    assert [row["median_us"] for row in rows] == [pytest.approx(20)] * 2
    assert {row["flop"] for row in rows} == {1024 * 4096}
