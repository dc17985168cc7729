"""Whole functions around kernels: every step, buffer and cubin of their plans."""

import runpy
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from pallasc.specs.artifacts.plan import Copy, Launch, Pointer

JAX = tuple(int(part) for part in metadata.version("jax").split(".")[:2])
CONSTANTS = runpy.run_path(str(Path(__file__).parent / "programs" / "constants.py"))
_ARRAY = 128 * 128 * 4
_MOSAIC = "body_mosaic_gpu_kernel"


def _steps(result: Any) -> list[Any]:
    """Return the steps in short: (kernel, its pointers), or the step itself."""
    return [
        (step.kernel, [(p.buffer, p.offset) for p in step.parameters if isinstance(p, Pointer)])
        if isinstance(step, Launch)
        else step
        for step in result.plan.steps
    ]


def _buffers(result: Any) -> list[tuple[str, int]]:
    return [(buffer.role, buffer.size) for buffer in result.plan.buffers]


def _constants(result: Any) -> list[bytes]:
    found = [buffer for buffer in result.plan.buffers if buffer.role == "constant"]
    return [result.artifact.blob(buffer.digest or "") for buffer in found]


def test_work_around_a_kernel_becomes_five_launches_over_three_buffers(functions: Any) -> None:
    result = functions["around"]
    assert _buffers(result) == [("input", _ARRAY), ("output", _ARRAY), ("temporary", _ARRAY)]
    assert _steps(result) == [
        (_MOSAIC, [(0, 0), (1, 0)]),
        ("wrapped_transpose", [(1, 0), (2, 0)]),
        ("loop_sine_fusion", [(2, 0), (1, 0)]),
        (_MOSAIC, [(1, 0), (2, 0)]),
        ("loop_add_fusion", [(2, 0), (1, 0)]),
    ]
    assert [launch.origin for launch in result.plan.launches] == [
        "mosaic", "xla", "xla", "mosaic", "xla",
    ]  # fmt: skip
    assert [launch.grid for launch in result.plan.launches] == [
        (1, 1, 1), (16, 1, 1), (128, 1, 1), (1, 1, 1), (128, 1, 1),
    ]  # fmt: skip
    assert all(launch.block == (128, 1, 1) for launch in result.plan.launches)


def test_a_constant_array_is_copied_and_zeros_that_add_nothing_vanish(functions: Any) -> None:
    result = functions["zeros_and_constant"]
    assert _buffers(result) == [
        ("input", _ARRAY), ("output", _ARRAY), ("output", 12), ("constant", 12),
    ]  # fmt: skip
    assert _steps(result) == [(_MOSAIC, [(0, 0), (1, 0)]), Copy(3, 0, 2, 0, 12)]
    assert _constants(result) == [np.array([1, 2, 3], np.float32).tobytes()]


def test_slices_are_offsets_where_a_kernel_may_read_them_and_copies_elsewhere(
    functions: Any,
) -> None:
    steps, half = _steps(functions["aligned_slice"]), _ARRAY // 2
    if JAX >= (0, 11):
        assert steps == [(_MOSAIC, [(0, half), (1, 0)])]
    else:
        assert steps == [Copy(0, half, 2, 0, half), (_MOSAIC, [(2, 0), (1, 0)])]
    assert _steps(functions["slice_of_result"]) == [
        (_MOSAIC, [(0, 0), (2, 0)]),
        Copy(2, 3 * 128 * 4, 1, 0, 2 * 128 * 4),
    ]
    result, size = functions["misaligned_slice"], 64 * 32 * 4
    # Up to JAX 0.10 it is XLA that copies.
    assert _steps(result) == [Copy(0, 128, 2, 0, size), (_MOSAIC, [(2, 0), (1, 0)])]
    assert _buffers(result)[2] == ("temporary", size)


def test_a_constant_of_each_dtype_has_the_bytes_of_device_memory(functions: Any) -> None:
    expected = {CONSTANTS["dense_bytes"](name) for name in CONSTANTS["CONSTANTS"]}
    assert expected <= set(_constants(functions["constants"]))
