"""What no cubin launch can do, or an architecture has not, is refused at the user's own line."""

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pallasc.compiler.lowering.constructs import need_of
from pallasc.compiler.lowering.serialized import fields
from pallasc.compiler.lowering.translate import describe_call, describe_thunk

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
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


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_be_launched_is_refused_by_name_and_line(
    build: Any, marked: Any, name: str
) -> None:
    error = build("refused")[name].error
    assert error["message"] == (
        f"the function contains {REFUSED[name]}, which cannot be launched from a cubin"
    )
    assert (Path(error["file"]), error["line"]) == marked("refused", name)
    assert error["exit_code"] == 1
    assert error["type"] in ("UnsupportedError", "UnsupportedStepError")
    assert error["hint"].startswith("Leave it out of the function")


def test_a_kernel_built_into_xla_is_refused_where_there_is_one(build: Any, marked: Any) -> None:
    result = build("refused")["approx_top"]
    if JAX >= (0, 12):
        assert all(launch.origin == "xla" for launch in result.plan.launches)
    else:
        assert "XLA's built-in kernel topk_k4_float_uint32_t" in result.error["message"]
        assert result.error["line"] == marked("refused", "approx_top")[1]


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


MISSING = {
    "registers": "set_max_registers",
    "cluster": "a cluster of blocks",
    "tma": "asynchronous copies by TMA (copy_gmem_to_smem)",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_kernel_is_refused_before_hopper_at_its_line(build: Any, marked: Any, name: str) -> None:
    """`tests/wrong` has kernels that Hopper and Blackwell refuse."""
    error = build("architectures", "sm_80")[name].error
    words = f"the kernel uses {MISSING[name]}, which sm_80 does not have, only "
    if name == "tma" and JAX >= (0, 11):
        words = "is only supported Hopper"
    assert words in error["message"]
    assert (Path(error["file"]), error["line"]) == marked("architectures", name)


@pytest.mark.parametrize(
    ("primitive", "tma", "feature"),
    [
        ("tcgen05_commit_arrive", False, "tcgen05"),
        ("async_store_tmem", False, "tcgen05"),
        ("wgmma_accumulator_deref_p", False, "wgmma"),
        ("set_max_registers_p", False, "setmaxnreg"),
        ("griddepcontrol_wait", False, "griddepcontrol"),
        ("try_cluster_cancel", False, "cluster_cancel"),
        ("copy_smem_to_gmem", True, "tma"),
    ],
)
def test_needs_of_primitives(primitive: str, tma: bool, feature: str) -> None:
    need = need_of(primitive, copies_use_tma=tma)
    assert need is not None
    assert need[1] == feature
    for common in ("add", "copy_gmem_to_smem", "barrier_wait", "mma"):
        assert need_of(common, copies_use_tma=False) is None
