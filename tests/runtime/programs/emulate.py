"""Let a function be the device for a whole plan: it gets the inputs and writes the outputs."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.plan import MAP_BYTES, Bytes, Launch, Pointer, TensorMap


def addresses(step: Launch, launch: Any) -> dict[int, int]:
    """Return where the buffers that a launch names lie, and check that it says so consistently."""
    found: dict[int, set[int]] = {}
    for number, parameter in enumerate(step.parameters):
        if isinstance(parameter, Pointer):
            start = launch.pointer(number) - parameter.offset
            found.setdefault(parameter.buffer, set()).add(start)
            continue
        maps = dict(launch.maps(number))
        assert sorted(maps) == sorted(at for at, _ in parameter.tensor_maps)
        _compare_bytes(parameter, launch.parameters[number])
        for at, described in parameter.tensor_maps:
            _compare_map(described, maps[at])
            start = maps[at].address - described.offset
            found.setdefault(described.buffer, set()).add(start)
    assert all(len(starts) == 1 for starts in found.values()), found
    return {buffer: starts.pop() for buffer, starts in found.items()}


def _compare_bytes(parameter: Bytes, passed: bytes) -> None:
    """Check what lies beside the tensor maps."""
    wanted = bytes.fromhex(parameter.data) or bytes(parameter.size)
    mapped = {at + n for at, _ in parameter.tensor_maps for n in range(MAP_BYTES)}
    assert len(passed) == parameter.size
    assert all(passed[n] == wanted[n] for n in range(parameter.size) if n not in mapped)


def _compare_map(described: TensorMap, encoded: Any) -> None:
    """Check every argument that a tensor map was encoded with, its address apart."""
    names = ["dtype", "dims", "strides", "element_strides", "swizzle", "interleave"]
    for name in [*names, "l2_promotion", "nan_fill"]:
        assert getattr(encoded, name) == getattr(described, name), name
    if described.im2col is None:
        assert encoded.box == described.box


def view(address: int, dtype: str, shape: Sequence[int]) -> Any:
    """View memory as an array of numpy."""
    kind = numpy_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    memory = (ctypes.c_ubyte * size).from_address(address)
    return np.frombuffer(memory, dtype=kind).reshape(shape)


def check_launch(step: Launch, launch: Any) -> dict[int, int]:
    """Compare a launch with its step; return where the buffers lie."""
    assert launch.kernel == step.kernel
    assert (launch.grid, launch.block, launch.cluster) == (step.grid, step.block, step.cluster)
    assert (launch.smem_bytes, launch.pdl) == (step.dynamic_smem_bytes, step.pdl)
    return addresses(step, launch)


def emulate(artifact: Artifact, function: Callable[..., Any]) -> Callable[[Any], None]:
    """Return a kernel function for an artifact with one launch: its outputs by `function`."""
    (step,) = artifact.plan.launches

    def run(launch: Any) -> None:
        found = check_launch(step, launch)
        inputs = [
            view(found[array.buffer], array.dtype, array.shape) for array in artifact.plan.inputs
        ]
        results = function(*inputs)
        for array, result in zip(artifact.plan.outputs, results, strict=True):
            view(found[array.buffer], array.dtype, array.shape)[...] = result

    return run
