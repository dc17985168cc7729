"""Mosaic kernels of each format version, and the refusal of every other."""

from importlib import metadata
from typing import Any

import pytest

from pallasc.compiler.lowering.mosaic_kernel import read_mosaic_kernel
from pallasc.compiler.lowering.serialized import message_type, parse_executable
from pallasc.errors import CompileError, CorruptError
from pallasc.specs.artifacts.cubin import parse_cubin

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])


@pytest.fixture(scope="module")
def proto(build: Any) -> Any:
    executable = parse_executable(build("functions")["around"].executable)
    state = executable.thunks[0].custom_call_thunk.execution_state.state
    return message_type("MosaicGpuKernelProto").FromString(state)


def _changed(proto: Any, **fields: Any) -> bytes:
    copy = type(proto)()
    copy.CopyFrom(proto)
    for name, value in fields.items():
        setattr(copy, name, value)
    return bytes(copy.SerializeToString())


def test_the_kernel_of_this_jax_is_read(proto: Any) -> None:
    assert proto.version == {(0, 10): 1, (0, 11): 3, (0, 12): 4}[JAX]
    kernel = read_mosaic_kernel(proto.SerializeToString(), buffers=2)
    assert kernel.launch.kernel == "body_mosaic_gpu_kernel"
    assert parse_cubin(kernel.cubin).kernels[kernel.launch.kernel].parameter_bytes[1] == 8
    assert (kernel.launch.grid, kernel.launch.block) == ((1, 1, 1), (128, 1, 1))
    assert (kernel.uses_nvshmem, kernel.uses_multimem) == (False, False)


@pytest.mark.parametrize("version", [0, 2, 5, 99])
def test_another_version_is_refused_with_the_versions_named(proto: Any, version: int) -> None:
    with pytest.raises(CompileError) as caught:
        read_mosaic_kernel(_changed(proto, version=version), buffers=2)
    assert caught.value.message == (
        f"Mosaic GPU kernel format version {version} is unknown; "
        "tested are 1 (JAX 0.10), 3 (JAX 0.11) and 4 (JAX 0.12)"
    )
    assert "pallasc doctor" in (caught.value.hint or "")


def test_damaged_kernels_are_refused(proto: Any) -> None:
    with pytest.raises(CompileError, match="does not define other"):
        read_mosaic_kernel(_changed(proto, host_func_name="other"), buffers=2)
    with pytest.raises(CorruptError):
        read_mosaic_kernel(_changed(proto, object_file=proto.object_file[:200]), buffers=2)


@pytest.mark.skipif(JAX < (0, 11), reason="until JAX 0.10 these lie in the host object")
def test_a_name_or_shared_memory_that_contradicts_the_launch_is_refused(proto: Any) -> None:
    with pytest.raises(KeyError, match="other"):
        read_mosaic_kernel(_changed(proto, kernel_name="other"), buffers=2)
    with pytest.raises(CompileError, match="declares 77 bytes of shared memory but is launched"):
        read_mosaic_kernel(_changed(proto, smem_bytes=77), buffers=2)
    with pytest.raises(CorruptError):
        read_mosaic_kernel(_changed(proto, gpu_binary=b"no cubin"), buffers=2)
