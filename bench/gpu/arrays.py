"""Arrays of a variant in every framework, from arrays of numpy and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from carried import Carried
from desk import MissingError, need, need_cupy, need_torch

Arrays = Mapping[str, Any]
Call = Callable[[Any, Arrays], Any]
"""(kernel, inputs of numpy) -> the result as an array of numpy."""


def device_arrays(inputs: Arrays) -> dict[str, Any]:
    """Return arrays in device memory of our own."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray
    from pallasc.runtime.adapters.numpy_arrays import short_dtype

    made = {}
    for name, array in inputs.items():
        made[name] = DeviceArray(array.shape, short_dtype(array.dtype))
        made[name].copy_from(np.ascontiguousarray(array).view("u1"))
    return made


def results(kernel: Any) -> Any:
    """Return device memory for the one result of a kernel."""
    from pallasc.runtime.adapters.device_arrays import DeviceArray

    (result,) = kernel.signature.results
    return DeviceArray(result.shape, result.dtype)


def from_device(array: Any) -> Any:
    """Return a device array of ours as one of numpy."""
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
    """Return a tensor as an array of numpy."""
    import torch

    host = tensor.detach().cpu()
    if host.dtype == torch.bfloat16:
        import ml_dtypes

        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return host.numpy()


def _with_numpy(kernel: Any, inputs: Arrays) -> Any:
    return kernel(**inputs)


def _with_device_arrays(kernel: Any, inputs: Arrays) -> Any:
    out = results(kernel)
    kernel.into(**device_arrays(inputs), out=out)
    return from_device(out)


class OnlyDlpack:
    """An array that has nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's kind of device, and its ordinal."""
        device: tuple[int, int] = self._array.__dlpack_device__()
        return device

    def __dlpack__(self, **wishes: Any) -> Any:
        """Return the capsule."""
        return self._array.__dlpack__(**wishes)


class OnlyInterface:
    """An array that has nothing but `__cuda_array_interface__`."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Return what the interface says."""
        said: dict[str, Any] = self._array.__cuda_array_interface__
        return said


def _with_dlpack(kernel: Any, inputs: Arrays) -> Any:
    return from_device(kernel(**{n: OnlyDlpack(a) for n, a in device_arrays(inputs).items()}))


def _with_interface(kernel: Any, inputs: Arrays) -> Any:
    held = device_arrays(inputs)
    for array in held.values():
        if not hasattr(array, "__cuda_array_interface__"):
            raise MissingError(f"__cuda_array_interface__ has no name for {array.dtype}")
    return from_device(kernel(**{name: OnlyInterface(array) for name, array in held.items()}))


def _with_torch(kernel: Any, inputs: Arrays) -> Any:
    return from_torch(kernel(**to_torch(inputs)))


def _with_torch_into(kernel: Any, inputs: Arrays) -> Any:
    torch = need_torch()
    given = to_torch(inputs)
    wanted = kernel(**given)
    out = torch.empty_like(wanted)
    kernel.into(**given, out=out)
    return from_torch(out)


def _with_torch_dlpack(kernel: Any, inputs: Arrays) -> Any:
    torch = need_torch()
    wrapped = {name: OnlyDlpack(tensor) for name, tensor in to_torch(inputs).items()}
    return from_torch(torch.from_dlpack(kernel(**wrapped)))


def _with_cupy(kernel: Any, inputs: Arrays) -> Any:
    cupy = need_cupy()
    try:
        given = {name: cupy.asarray(array) for name, array in inputs.items()}
    except Exception as error:
        raise MissingError(f"cupy makes no such arrays: {type(error).__name__}: {error}") from error
    return cupy.asnumpy(kernel(**given))


def _with_jax(kernel: Any, inputs: Arrays) -> Any:
    jax = need("jax")
    return np.asarray(kernel(**{name: jax.numpy.asarray(array) for name, array in inputs.items()}))


def _with_jax_in_jit(kernel: Any, inputs: Arrays) -> Any:
    jax = need("jax")
    function = jax.jit(lambda **arrays: kernel(**arrays))
    return np.asarray(function(**{n: jax.numpy.asarray(array) for n, array in inputs.items()}))


ADAPTERS: Mapping[str, Call] = {
    "numpy": _with_numpy,
    "device arrays": _with_device_arrays,
    "DLPack": _with_dlpack,
    "__cuda_array_interface__": _with_interface,
    "torch": _with_torch,
    "torch, into": _with_torch_into,
    "torch, DLPack": _with_torch_dlpack,
    "cupy": _with_cupy,
    "JAX": _with_jax,
    "JAX in jit": _with_jax_in_jit,
}


def small(variants: list[Carried]) -> Carried:
    """Return the variant that moves the fewest bytes."""
    return min(variants, key=moved_bytes)


def moved_bytes(variant: Carried) -> int:
    """Return the bytes of a variant's inputs and outputs, each once."""
    from pallasc.cli.bench import moved_bytes as moved
    from pallasc.runtime.matching.candidates import Signature

    return moved(Signature.of(variant.opened().plan))
