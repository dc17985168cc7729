"""Compile library kernels, run them on the stand-in with their references as the device.

Usage: library.py FOLDER, which gets artifacts, inputs and results, for other frameworks. Some are
executed too: their own PTX is the device.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import emulated
import foreign
import jax
import jax.numpy as jnp
import made
import numpy as np
import standin
from emulate import emulate
from jax.experimental.pallas.ops.gpu import hopper_mixed_type_matmul_mgpu, ragged_dot_mgpu

import pallasc
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.library import elementwise, hopper_matmul


def cases() -> dict[str, Any]:
    """Return kernel -> (function, reference, arrays, static arguments), by the specs' names."""
    tiles = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "max_concurrent_steps": 2}
    mixed = hopper_mixed_type_matmul_mgpu.TuningConfig(**{**tiles, "tile_m": 64})

    def product(a: Any, b: Any) -> Any:
        return (a.astype("float32") @ b.astype("float32")).astype(b.dtype)

    return {
        "add": (elementwise.add, elementwise.add_reference,
                ["f32[32, 4096]", "f32[32, 4096]"], {"block_size": 2048}),
        "add_bf16": (elementwise.add, elementwise.add_reference,
                     ["bf16[32, 4096]", "bf16[32, 4096]"], {"block_size": 2048}),
        "hopper_matmul": (hopper_matmul.matmul, hopper_matmul.matmul_reference,
                   ["bf16[128, 256]", "bf16[256, 128]"], tiles),
        # Random group sizes have no product, so the device gives any numbers.
        "jax_ragged_dot": (lambda lhs, rhs, sizes: ragged_dot_mgpu.ragged_dot(
                               lhs, rhs, group_sizes=sizes, block_m=64, block_n=128, block_k=64,
                               max_concurrent_steps=2, grid_block_n=2),
                           None, ["f16[256, 128]", "f16[2, 128, 256]", "i32[2]"], {}),
        "jax_hopper_mixed_type_matmul": (
            lambda a, b: hopper_mixed_type_matmul_mgpu.mixed_matmul_kernel(
                a, b, out_dtype=jnp.bfloat16, config=mixed),
            product, ["i8[256, 256]", "bf16[256, 256]"], {}),
    }  # fmt: skip


def random_arrays(bindings: Any, seed: int) -> list[Any]:
    """Return an array of small numbers for each binding."""
    generator = np.random.default_rng(seed)
    return [
        generator.integers(-4, 5, array.shape).astype(numpy_dtype(array.dtype))
        for array in bindings
    ]


def compute(reference: Any, inputs: list[Any], static: Any) -> Any:
    """Return what the reference gives, as an array of numpy."""
    known = inspect.signature(reference).parameters
    chosen = {name: value for name, value in static.items() if name in known}
    return np.asarray(reference(*map(jnp.asarray, inputs), **chosen))


class Offset:
    """A view into memory of the stand-in that starts behind its beginning."""

    def __init__(self, array: Any, offset: int) -> None:
        self.memory = DeviceArray((array.nbytes + 2 * offset,), "u8")
        whole = np.zeros(self.memory.nbytes, np.uint8)
        whole[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.memory.copy_from(whole)
        self.offset, self.nbytes, self.shape = offset, array.nbytes, array.shape

    def tensor(self, dtype: str) -> made.Tensor:
        """Return it as a tensor."""
        return made.Tensor(self.memory.pointer + self.offset, dtype, self.shape)


def on_device(array: Any, dtype: str) -> DeviceArray:
    held = DeviceArray(array.shape, dtype)
    held.copy_from(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return held


def check(artifact: Artifact, inputs: list[Any], wanted: Any) -> None:
    """Call a kernel in every way; each must give the right bytes."""
    kernel, right = made.kernel(artifact), wanted.tobytes()
    (result,), dtypes = artifact.plan.outputs, [array.dtype for array in artifact.plan.inputs]
    assert kernel(*inputs).tobytes() == right
    out = np.zeros(result.shape, numpy_dtype(result.dtype))
    assert kernel.into(*inputs, out=out).tobytes() == right
    held = [on_device(*row) for row in zip(inputs, dtypes, strict=True)]
    tensors = [made.Tensor(array.pointer, array.dtype, array.shape) for array in held]
    kinds = [foreign.DlpackArray]
    if all(hasattr(array, "__cuda_array_interface__") for array in held):
        kinds.append(foreign.CudaArray)
    for kind in kinds * 2:
        assert kernel(*map(kind, tensors)).to_bytes() == right, kind
    moved = [Offset(array, 256 * (n + 1)) for n, array in enumerate(inputs)]
    target = Offset(np.zeros_like(out), 768)
    tensors = [array.tensor(dtype) for array, dtype in zip(moved, dtypes, strict=True)]
    for _ in range(2):
        kernel.into(*tensors, out=target.tensor(result.dtype))
    assert target.memory.to_bytes() == bytes(768) + right + bytes(768)
    arrays = [jnp.asarray(array) for array in inputs]
    assert np.asarray(jax.jit(lambda *a: kernel(*a))(*arrays)).tobytes() == right
    assert np.asarray(kernel(*arrays)).tobytes() == right


def execute(artifact: Artifact, inputs: list[Any], wanted: Any, driver: Any) -> None:
    """Call a kernel whose PTX is executed."""
    gpu = emulated.install(driver)
    gpu.know(artifact)
    kernel, arrays = made.kernel(artifact), [jnp.asarray(array) for array in inputs]
    assert emulated.close(jax.jit(lambda *a: kernel(*a))(*arrays), wanted)
    assert emulated.close(kernel(*arrays), wanted)
    driver.check()
    assert gpu.launched == 2


def save(own: Path, artifact: Artifact, inputs: list[Any], wanted: Any) -> None:
    """Write an artifact with inputs and result for another process."""
    (own / "blobs").mkdir(parents=True)
    (own / "record.json").write_text(json.dumps(artifact.record))
    for key, data in artifact.blobs().items():
        (own / "blobs" / key).write_bytes(data)
    for number, array in enumerate(inputs):
        (own / f"in{number}").write_bytes(array.tobytes())
    (own / "out0").write_bytes(wanted.tobytes())


def device(inputs: list[Any], wanted: Any) -> Any:
    """Return the device: it wants the right inputs, and gives what the reference gave."""

    def run(*arrays: Any) -> list[Any]:
        for number, (got, right) in enumerate(zip(arrays, inputs, strict=True)):
            assert got.tobytes() == right.tobytes(), f"input {number} has other bytes"
        return [wanted]

    return run


def main() -> None:
    """Compile, then compute, then launch."""
    driver = standin.load()
    known = cases()
    artifacts = {
        name: pallasc.compile(function, *arrays, target="h100-sxm", **static)
        for name, (function, _, arrays, static) in known.items()
    }
    for name, (_, reference, _, static) in known.items():
        artifact = artifacts[name]
        inputs = random_arrays(artifact.plan.inputs, 7)
        (wanted,) = random_arrays(artifact.plan.outputs, 11)
        if reference is not None:
            wanted = compute(reference, inputs, static)
        driver.reset()
        made.forget()
        made.install()
        driver.devices("9.0")
        driver.kernel("*")(emulate(artifact, device(inputs, wanted)))
        check(artifact, inputs, wanted)
        driver.check()
        if name in emulated.EXECUTED:
            execute(artifact, inputs, wanted, driver)
        save(Path(sys.argv[1]) / name, artifact, inputs, wanted)


main()
