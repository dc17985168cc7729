"""Convert a variant's numpy arrays to arrays of every framework, and results back to numpy."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from desk import MissingError, need, need_torch

Arrays = Mapping[str, Any]
Call = Callable[[Any, Arrays], Any]
"""(kernel, numpy inputs) -> the result as a numpy array."""


def device_arrays(inputs: Arrays) -> dict[str, Any]:
    """Return pallasc's own device arrays."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.adapters.numpy_arrays import short_dtype

    made = {}
    for name, array in inputs.items():
        made[name] = DeviceArray(array.shape, short_dtype(array.dtype))
        made[name].copy_from(np.ascontiguousarray(array).view("u1"))
    return made


def result_of(kernel: Any) -> Any:
    """Return device memory for the only result of a kernel."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    (result,) = kernel.signature.results
    return DeviceArray(result.shape, result.dtype)


def from_device(array: Any) -> Any:
    """Return a device array as a numpy array."""
    from pallasc.runtime.adapters.numpy_arrays import numpy_dtype

    return np.frombuffer(array.to_bytes(), numpy_dtype(array.dtype)).reshape(array.shape)


def to_torch(inputs: Arrays) -> dict[str, Any]:
    """Return CUDA tensors."""
    torch = need_torch()
    made = {}
    for name, array in inputs.items():
        if array.dtype.name == "bfloat16":
            made[name] = torch.from_numpy(array.view(np.int16)).cuda().view(torch.bfloat16)
        else:
            made[name] = torch.from_numpy(array).cuda()
    return made


def from_torch(tensor: Any) -> Any:
    """Return a tensor as a numpy array."""
    import torch

    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        import ml_dtypes

        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()


def _with_device_arrays(kernel: Any, inputs: Arrays) -> Any:
    out = result_of(kernel)
    kernel.into(**device_arrays(inputs), out=out)
    return from_device(out)


def _with_only(*names: str) -> Call:
    """Return a call that passes objects with only these attributes of a device array."""

    def only(array: Any) -> Any:
        try:
            return type("Only", (), {name: getattr(array, name) for name in names})()
        except AttributeError as error:
            raise MissingError(f"{array.dtype}: {error}") from error

    def call(kernel: Any, inputs: Arrays) -> Any:
        held = device_arrays(inputs)
        return from_device(kernel(**{name: only(array) for name, array in held.items()}))

    return call


def _with_torch(kernel: Any, inputs: Arrays) -> Any:
    return from_torch(kernel(**to_torch(inputs)))


def _with_cupy(kernel: Any, inputs: Arrays) -> Any:
    cupy = need("cupy")
    try:
        given = {name: cupy.asarray(array) for name, array in inputs.items()}
    except Exception as error:
        raise MissingError(f"cupy has no such arrays: {type(error).__name__}: {error}") from error
    return cupy.asnumpy(kernel(**given))


def _to_jax(inputs: Arrays) -> dict[str, Any]:
    jax = need("jax")
    return {name: jax.numpy.asarray(array) for name, array in inputs.items()}


def _with_jax(kernel: Any, inputs: Arrays) -> Any:
    return np.asarray(kernel(**_to_jax(inputs)))


def _with_jax_in_jit(kernel: Any, inputs: Arrays) -> Any:
    function = need("jax").jit(lambda **arrays: kernel(**arrays))
    return np.asarray(function(**_to_jax(inputs)))


ADAPTERS: Mapping[str, Call] = {
    "numpy": lambda kernel, inputs: kernel(**inputs),
    "device arrays": _with_device_arrays,
    "DLPack": _with_only("__dlpack__", "__dlpack_device__"),
    "__cuda_array_interface__": _with_only("__cuda_array_interface__"),
    "torch": _with_torch,
    "cupy": _with_cupy,
    "JAX": _with_jax,
    "JAX in jit": _with_jax_in_jit,
}
