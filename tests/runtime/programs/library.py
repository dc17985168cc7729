"""Compile library kernels, run them on the stand-in with their references as the device.

Usage: library.py FOLDER. FOLDER gets artifacts, inputs and results, for other frameworks;
standard output gets one JSON object: kernel -> how it was called -> whether the numbers are right.
`KERNEL, executed` is a kernel whose own PTX was the device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import emulated
import foreign
import made
import numpy as np
import standin
from emulate import emulate

import pallasc
from pallasc.runtime.adapters.device_arrays import DeviceArray
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.artifacts.artifact import Artifact


def cases() -> dict[str, Any]:
    """Return kernel -> (function, reference, arrays, static arguments), by the specs' names."""
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu import hopper_mixed_type_matmul_mgpu, ragged_dot_mgpu

    from pallasc.specs.library import elementwise, hopper_matmul

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


def random_inputs(artifact: Artifact) -> list[Any]:
    """Return an array of small numbers for each input."""
    generator = np.random.default_rng(7)
    return [
        generator.integers(-4, 5, array.shape).astype(numpy_dtype(array.dtype))
        for array in artifact.plan.inputs
    ]


def _any_outputs(artifact: Artifact) -> list[Any]:
    generator = np.random.default_rng(11)
    return [
        generator.integers(-4, 5, array.shape).astype(numpy_dtype(array.dtype))
        for array in artifact.plan.outputs
    ]


def leaves(result: Any) -> list[Any]:
    """Return the arrays of a result."""
    return list(result) if isinstance(result, list | tuple) else [result]


def compute(reference: Any, inputs: list[Any], static: Any) -> list[Any]:
    """Return what the reference gives, as arrays of numpy."""
    import inspect

    import jax.numpy as jnp

    known = inspect.signature(reference).parameters
    chosen = {name: value for name, value in static.items() if name in known}
    return [np.asarray(array) for array in leaves(reference(*map(jnp.asarray, inputs), **chosen))]


def same(got: Any, wanted: list[Any]) -> bool:
    """Tell whether results are byte for byte what they should be."""
    return all(
        np.asarray(array).tobytes() == other.tobytes()
        for array, other in zip(leaves(got), wanted, strict=True)
    )


def execute(artifact: Artifact, inputs: list[Any], wanted: list[Any], driver: Any) -> Any:
    """Call a kernel whose PTX is executed; return which ways give the reference's numbers."""
    import jax
    import jax.numpy as jnp

    gpu = emulated.install(driver)
    gpu.know(artifact)
    kernel = made.kernel(artifact)
    arrays = [jnp.asarray(array) for array in inputs]
    found = {"jax inside jit": jax.jit(lambda *a: kernel(*a))(*arrays)}
    found["jax outside jit"] = kernel(*arrays)
    driver.check()
    assert gpu.launched == len(found)
    return {way: emulated.close(result, wanted[0]) for way, result in found.items()}


class Offset:
    """A view into memory of the stand-in that starts behind its beginning."""

    def __init__(self, array: Any, offset: int) -> None:
        self.memory = DeviceArray((array.nbytes + 2 * offset,), "u8")
        whole = np.zeros(self.memory.nbytes, np.uint8)
        whole[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        self.memory.copy_from(whole)
        self.offset, self.nbytes = offset, array.nbytes
        self.array = array

    def tensor(self, dtype: str) -> made.Tensor:
        """Return it as a tensor."""
        return made.Tensor(self.memory.pointer + self.offset, dtype, self.array.shape)


def run(name: str, artifact: Artifact, inputs: list[Any], wanted: list[Any]) -> dict[str, bool]:
    """Call a kernel in every way; return which ones gave the right bytes."""
    import jax
    import jax.numpy as jnp

    kernel = made.kernel(artifact)
    plan = artifact.plan
    found = {"numpy": same(kernel(*inputs), wanted)}
    out = [np.zeros(array.shape, numpy_dtype(array.dtype)) for array in plan.outputs]
    found["numpy into"] = same(kernel.into(*inputs, out=out[0]), wanted)
    out_array = _cuda_arrays(kernel, plan, inputs)
    found["cuda array interface"] = out_array is None or same(out_array, wanted)
    found["dlpack"] = same(_by_dlpack(kernel, plan, inputs), wanted)
    moved = [Offset(array, 256 * (n + 1)) for n, array in enumerate(inputs)]
    target = Offset(out[0], 768)
    tensors = [array.tensor(bound.dtype) for array, bound in zip(moved, plan.inputs, strict=True)]
    for _ in range(2):
        kernel.into(*tensors, out=target.tensor(plan.outputs[0].dtype))
    raw = np.frombuffer(target.memory.to_bytes(), np.uint8)
    held = raw[768 : 768 + target.nbytes].tobytes() == wanted[0].tobytes()
    found["offsets"] = held and not raw[:768].any() and not raw[768 + target.nbytes :].any()
    arrays = [jnp.asarray(array) for array in inputs]
    found["jax inside jit"] = same(jax.jit(lambda *a: kernel(*a))(*arrays), wanted)
    found["jax outside jit"] = same(kernel(*arrays), wanted)
    return found


def _device_array(array: Any, dtype: str) -> DeviceArray:
    held = DeviceArray(array.shape, dtype)
    held.copy_from(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return held


def _read(held: Any) -> Any:
    return np.frombuffer(held.to_bytes(), numpy_dtype(held.dtype)).reshape(held.shape)


def _cuda_arrays(kernel: Any, plan: Any, inputs: list[Any]) -> Any:
    """Call twice with what has `__cuda_array_interface__` only, None where a dtype has no name."""
    held = [_device_array(a, array.dtype) for a, array in zip(inputs, plan.inputs, strict=True)]
    if not all(hasattr(array, "__cuda_array_interface__") for array in held):
        return None
    tensors = [made.Tensor(array.pointer, array.dtype, array.shape) for array in held]
    arrays = [foreign.CudaArray(array) for array in tensors]
    return [_read(kernel(*arrays)) for _ in range(2)][1]


def _by_dlpack(kernel: Any, plan: Any, inputs: list[Any]) -> Any:
    """Call twice with what has `__dlpack__` only."""
    held = [_device_array(a, array.dtype) for a, array in zip(inputs, plan.inputs, strict=True)]
    tensors = [made.Tensor(array.pointer, array.dtype, array.shape) for array in held]
    arrays = [foreign.DlpackArray(array) for array in tensors]
    return [_read(kernel(*arrays)) for _ in range(2)][1]


def save(folder: Path, name: str, artifact: Artifact, inputs: list[Any], wanted: Any) -> None:
    """Write an artifact with inputs and results for another process."""
    own = folder / name
    (own / "blobs").mkdir(parents=True)
    (own / "record.json").write_text(json.dumps(artifact.record))
    for key, data in artifact.blobs().items():
        (own / "blobs" / key).write_bytes(data)
    for kind, rows in (("in", inputs), ("out", wanted)):
        for number, array in enumerate(rows):
            (own / f"{kind}{number}").write_bytes(array.tobytes())


def main() -> None:
    """Compile, then compute, then launch."""
    driver = standin.load()
    known = cases()
    artifacts = {
        name: pallasc.compile(function, *arrays, target="h100-sxm", **static)
        for name, (function, _, arrays, static) in known.items()
    }
    report = {}
    for name, (_, reference, _, static) in known.items():
        inputs = random_inputs(artifacts[name])
        wanted = compute(reference, inputs, static) if reference else _any_outputs(artifacts[name])
        driver.reset()
        made.forget()
        made.install()
        driver.devices("9.0")
        driver.kernel("*")(emulate(artifacts[name], _checked(inputs, wanted)))
        report[name] = run(name, artifacts[name], inputs, wanted)
        driver.check()
        if name in emulated.EXECUTED:
            report[f"{name}, executed"] = execute(artifacts[name], inputs, wanted, driver)
        save(Path(sys.argv[1]), name, artifacts[name], inputs, wanted)
    print(json.dumps(report))


def _checked(inputs: list[Any], wanted: list[Any]) -> Any:
    """Return the device: it wants the right inputs, and gives what the reference gave."""

    def device(*arrays: Any) -> list[Any]:
        for number, (got, right) in enumerate(zip(arrays, inputs, strict=True)):
            assert got.tobytes() == right.tobytes(), f"input {number} has other bytes"
        return wanted

    return device


main()
