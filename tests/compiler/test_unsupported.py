"""What no cubin launch can do is refused by its name, at the user's line."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.lowering.serialized import fields
from pallasc.compiler.lowering.translate import describe_call, describe_thunk

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
FILE = Path(__file__).parent / "programs" / "refused.py"

REFUSED = {
    "fori_loop": "control flow (lax.while_loop, fori_loop or scan)",
    "scan": "a loop of 9000 rounds (more than 4096 steps)",
    "fft": "a Fourier transform by cuFFT",
    "cholesky": "a call into NVIDIA's library cusolver (cusolver_potrf_ffi)",
    "solve": "a triangular solve by cuBLAS",
    "convolution": "a cuDNN convolution",
    "c64_matmul": "a matrix product by cuBLAS",
    "random_bits": "a random seed drawn at run time",
}


def marked_line(file: Path, name: str) -> int:
    """Return the line that a comment marks for the case `name`."""
    lines = file.read_text().splitlines()
    (line,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# HERE {name}")]
    return line


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_be_launched_is_refused_by_name_and_line(build: Any, name: str) -> None:
    error = build("refused")[name].error
    assert error["message"] == (
        f"the function contains {REFUSED[name]}, which cannot be launched from a cubin"
    )
    assert (Path(error["file"]), error["line"]) == (FILE, marked_line(FILE, name))
    assert error["exit_code"] == 1
    assert error["type"] in ("UnsupportedError", "UnsupportedStepError")
    assert error["hint"].startswith("Leave it out of the function")


def test_a_kernel_built_into_xla_is_refused_where_there_is_one(build: Any) -> None:
    result = build("refused")["approx_top"]
    if JAX >= (0, 12):
        assert all(launch.origin == "xla" for launch in result.plan.launches)
    else:
        assert "XLA's built-in kernel topk_k4_float_uint32_t" in result.error["message"]
        assert result.error["line"] == marked_line(FILE, "approx_top")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("xla_ffi_python_gpu_callback", "a host callback (xla_ffi_python_gpu_callback)"),
        ("my_callback", "a host callback (my_callback)"),
        ("cusolver_getrf_ffi", "a call into NVIDIA's library cusolver (cusolver_getrf_ffi)"),
        ("__cublas$gemm", "a call of the library function __cublas$gemm"),
        ("somebody_else", "a call of the library function somebody_else"),
    ],
)
def test_custom_calls_are_named(target: str, words: str) -> None:
    assert describe_call(target) == words


def test_every_kind_of_thunk_has_words() -> None:
    assert all(describe_thunk(kind) for kind, _, _, _ in fields()["Thunk"])
    assert describe_thunk("all_reduce_thunk") == "XLA's operation all_reduce"
    assert describe_thunk("while_thunk") == "control flow (lax.while_loop, fori_loop or scan)"
