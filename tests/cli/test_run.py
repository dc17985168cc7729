"""`pallasc run`, on the stand-in driver with a function of Python as the kernel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

RunCommand = Callable[..., Any]

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
def launch(run: RunCommand, built: Any, tmp_path: Path) -> RunCommand:
    """Run a spec like the built one, with a reference; `reference` names another one or none."""

    def launch_one(*arguments: str | Path, reference: str | None = "add", more: str = "") -> Any:
        (tmp_path / "references.py").write_text(REFERENCES)
        entry = f"    reference: references.py:{reference}_reference\n" if reference else ""
        spec = tmp_path / "kernels.yaml"
        text = built.spec.read_text().replace("    args:", f"{entry}{more}    args:")
        spec.write_text(text)
        return run("run", spec, "--store", built.store, *arguments)

    return launch_one


def _sum(seed_x: np.ndarray, seed_y: np.ndarray) -> np.ndarray:
    return (seed_x.astype(np.float32) + seed_y.astype(np.float32)).astype(seed_x.dtype)


def _random(path: str, kind: Any, dtype: str, seed: int = 0) -> np.ndarray:
    from pallasc.compiler.arrays import random_bytes

    size = 1024 * 4096 * np.dtype(kind).itemsize
    data = random_bytes(dtype, size, seed=seed, name=path)
    return np.frombuffer(data, kind).reshape(1024, 4096)


def test_what_is_as_the_reference_is_said_in_a_line_for_each_array(
    gpu: Any, launch: RunCommand
) -> None:
    result = launch("-k", "dtype=f32", more="    tolerance: {rtol: 1.0e-6}\n")
    out = _sum(_random("x", np.float32, "f32"), _random("y", np.float32, "f32"))
    digest = hashlib.sha256(out.tobytes()).hexdigest()[:16]
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"{F32} on {GPU}",
        "  x    f32[1024, 4096]  random, seed 0",
        "  y    f32[1024, 4096]  random, seed 0",
        "  out  f32[1024, 4096]  matches the reference: largest absolute error 0, relative error 0 "
        f"(rtol 1e-06, atol 0); sha256 {digest}",
    ]


def test_a_launch_is_reported_as_json(gpu: Any, launch: RunCommand) -> None:
    result = launch("-k", "dtype=bf16", "--json", "--seed", "3")
    report = json.loads(result.out)
    assert (result.code, len(gpu.launches)) == (0, 1)
    assert report["device"] == {
        "ordinal": 0, "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "driver": "13.0",
    }  # fmt: skip
    assert report["emulated"] is False
    (row,) = report["results"]
    assert row["id"] == BF16
    shape = [1024, 4096]
    assert row["inputs"][0] == {"path": "x", "dtype": "bf16", "shape": shape, "file": None}
    assert (row["seed"], row["same"]) == (3, True)
    (output,) = row["outputs"]
    eps = 4 * float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
    assert output["compared"] == {
        "count": 1024 * 4096, "mismatches": 0, "rtol": eps, "atol": eps, "max_abs": 0.0,
        "max_rel": 0.0, "first": None,
    }  # fmt: skip
    kind = ml_dtypes.bfloat16
    right = _sum(_random("x", kind, "bf16", 3), _random("y", kind, "bf16", 3))
    assert output["sha256"] == hashlib.sha256(right.tobytes()).hexdigest()


def test_a_difference_is_located_and_ends_with_1(
    gpu: Any, standin_gpu: Any, launch: RunCommand
) -> None:
    def spoil(out: Any) -> None:
        out[3, 5:7] += np.float32(0.5)

    gpu.kernel("*")(standin_gpu.add_kernel(spoil))
    result = launch("-k", "dtype=f32", more="    tolerance: {atol: 0.25}\n")
    right = _sum(_random("x", np.float32, "f32"), _random("y", np.float32, "f32"))
    wanted = right[3, 5]
    line = result.out.splitlines()[3]
    assert result.code == 1
    assert line.startswith(
        "  out  f32[1024, 4096]  differs in 2 of 4,194,304 elements, first at [3, 5]: "
        f"{wanted + np.float32(0.5)!s}, expected {wanted!s}; largest absolute error 0.5, "
    )
    assert result.err == f"error: {F32} differs from its reference.\n"


def test_without_a_reference_nothing_is_compared(gpu: Any, launch: RunCommand) -> None:
    result = launch("-k", "dtype=f32", reference=None)
    assert result.code == 0
    assert "not compared (no reference); sha256 " in result.out.splitlines()[3]


def test_inputs_come_from_files_and_outputs_go_to_them(
    gpu: Any, launch: RunCommand, tmp_path: Path
) -> None:
    kind = ml_dtypes.bfloat16
    x = np.arange(1024 * 4096).reshape(1024, 4096).astype(kind)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", x.view(np.uint16))
    files = [f"--input={name}={tmp_path / name}.npy" for name in ("x", "y")]
    chosen = ("-k", "dtype=bf16", *files)
    result = launch(*chosen, "--output", tmp_path / "out", reference=None)
    assert result.code == 0
    assert result.out.splitlines()[1] == f"  x    bf16[1024, 4096]  {tmp_path / 'x.npy'}"
    assert result.err == f"wrote {tmp_path / 'out' / 'out.npy'}\n"
    assert (np.load(tmp_path / "out" / "out.npy").view(kind) == _sum(x, x)).all()


def test_the_outputs_of_several_variants_get_folders_and_memory_is_given_back(
    gpu: Any, launch: RunCommand, tmp_path: Path
) -> None:
    result = launch("--all", "--output", tmp_path / "out", reference=None)
    assert (result.code, len(gpu.launches)) == (0, 2)
    written = sorted(path.relative_to(tmp_path / "out") for path in tmp_path.rglob("out.npy"))
    assert written == [Path(BF16, "out.npy"), Path(F32, "out.npy")]
    assert gpu.live()[0] == 0


def _save(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def test_an_array_of_another_type_is_refused(gpu: Any, launch: RunCommand, tmp_path: Path) -> None:
    file = _save(tmp_path / "x.npy", np.zeros((1024, 4096)))
    result = launch("-k", "dtype=bf16", "--input", f"x={file}")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: {BF16}: x: {file} holds f64[1024, 4096], and the kernel takes bf16[1024, 4096].\n"
        "  Save an array of shape [1024, 4096] and of numpy's type uint16, for the bits of bf16.\n"
    )


def test_an_array_of_another_shape_is_refused(gpu: Any, launch: RunCommand, tmp_path: Path) -> None:
    file = _save(tmp_path / "x.npy", np.zeros((4096, 1024), np.float32))
    result = launch("-k", "dtype=f32", "--input", f"x={file}")
    assert result.code == 2
    assert f"{file} holds f32[4096, 1024], and the kernel takes f32[1024, 4096]" in result.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--input", "x"], "error: --input 'x' is not NAME=FILE."),
        (["--input", "x=a.npy", "--input", "x=b.npy"], "error: --input gives x twice."),
        (["--input", "z=/dev/null"], f"error: {F32} has no input 'z'.\n  Its arrays: x, y."),
        (["--input", "x=/none.npy"], "error: /none.npy cannot be read: No such file"),
        (["--device", "3"], "error: there is no GPU 3: the driver counts 1."),
    ],
)
def test_a_wrong_option_is_refused(
    arguments: list[str], text: str, gpu: Any, launch: RunCommand
) -> None:
    result = launch("-k", "dtype=f32", *arguments)
    assert (result.code, result.out, gpu.launches) == (2, "", [])
    assert result.err.startswith(text)


def test_files_are_for_one_variant_only(gpu: Any, launch: RunCommand, tmp_path: Path) -> None:
    file = _save(tmp_path / "x.npy", np.zeros((1024, 4096), np.float32))
    result = launch("--all", "--input", f"x={file}")
    assert (result.code, gpu.launches) == (2, [])
    assert result.err.startswith(
        "error: input files can only be used with a single variant, but 2 are launched."
    )


def test_several_variants_are_listed_and_not_launched(gpu: Any, launch: RunCommand) -> None:
    result = launch()
    assert (result.code, result.out, gpu.launches) == (2, "", [])
    assert result.err.partition(": 2 variants")[2] == (
        f" of add can be launched on {GPU}:\n  {F32}\n  {BF16}\n"
        '  Choose one, such as -k "dtype=f32", or run all with --all.\n'
    )


def test_a_gpu_of_another_architecture_is_refused(gpu: Any, launch: RunCommand) -> None:
    gpu.devices("10.0")
    result = launch("-k", "dtype=f32")
    assert (result.code, result.out) == (4, "")
    head, *lines = result.err.splitlines()
    assert head.endswith("no variant of add fits GPU 0 (Stand-in B200, sm_100):")
    assert lines == [
        f"  {F32}: sm_90a runs on exactly sm_90, and this GPU is sm_100",
        "  Compile for it: --target sm_100a.",
    ]


def test_without_a_gpu_the_driver_is_quoted(gpu: Any, launch: RunCommand) -> None:
    gpu.devices()
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
    ("arguments", "text"),
    [
        (["--input", "x=/none.npy"], "error: /none.npy cannot be read: No such file"),
        (["-k", "dtype=f16"], "error: -k 'dtype=f16' selects none of 2 variants."),
    ],
)
def test_a_wrong_option_is_told_before_a_gpu_is_looked_for(
    arguments: list[str], text: str, gpu: Any, launch: RunCommand
) -> None:
    gpu.devices()
    result = launch("-k", "dtype=f32", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(text)


def test_a_spec_that_is_not_there_is_told_before_a_gpu_is_looked_for(
    gpu: Any, run: RunCommand, tmp_path: Path
) -> None:
    gpu.devices()
    for name in ("nosuch.yaml", "nosuch.pallasc"):
        result = run("run", tmp_path / name)
        assert (result.code, result.out) == (2, "")
        assert name in result.err
        assert "NVIDIA" not in result.err


def test_a_launch_that_fails_names_the_variant(gpu: Any, launch: RunCommand) -> None:
    gpu.fault("cuLaunchKernelEx", 701)
    result = launch("-k", "dtype=f32", reference=None)
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith(f"error: {F32} cannot be launched: cuLaunchKernelEx answers ")


def test_a_kernel_that_fails_names_the_variant(gpu: Any, launch: RunCommand) -> None:
    gpu.kernel("*")(lambda _: 700)
    result = launch("-k", "dtype=f32")
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith(f"error: {F32}: ")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in result.err


def test_a_gpu_without_room_is_quoted(gpu: Any, launch: RunCommand) -> None:
    gpu.fault("cuMemAlloc_v2", 2)
    result = launch("-k", "dtype=f32", reference=None)
    assert result.code == 4
    assert result.err.startswith(
        f"error: {F32}: cannot allocate 16777216 bytes for f32[1024, 4096] "
    )


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
    reference: str, text: str, gpu: Any, launch: RunCommand
) -> None:
    result = launch("-k", "dtype=f32", reference=reference)
    assert (result.code, result.out) == (2, "")
    assert text in result.err


def test_neither_numpy_nor_jax_is_loaded_by_a_launch(
    gpu: Any,
    standin_gpu: Any,
    built: Any,
    process: RunCommand,
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
