"""Kernels in JAX programs through a Python callback, used if the native library is missing.

`jax.experimental.buffer_callback` passes XLA's stream and buffers to the callback, and lets XLA
capture its launches into command buffers. Such a program cannot be serialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pallasc.errors import PallascError
from pallasc.runtime.adapters.capsules import CPU, read_capsule
from pallasc.runtime.adapters.numpy_arrays import check_unpacked
from pallasc.runtime.calls.host import launch_on_host
from pallasc.runtime.calls.match import RoutedVariants
from pallasc.runtime.device.devices import current_device
from pallasc.runtime.matching.arrays import ArrayView
from pallasc.runtime.matching.candidates import ArrayType


def callback(
    kernel: RoutedVariants,
    types: Sequence[ArrayType],
    results: Sequence[Any],
    aliases: Mapping[int, int],
    count: int,
) -> Callable[..., Any]:
    """Return a function that launches a kernel from inside a JAX program.

    Args:
        kernel: the kernel to launch.
        types: the types of its arrays.
        results: what XLA allocates: inputs updated in place, results, then memory for temporaries.
        aliases: for each input that is updated in place, the number of its result.
        count: the number of results before the memory for temporaries.
    """
    from jax.experimental.buffer_callback import buffer_callback

    _load(kernel, types)

    def launch(context: Any, outputs: Any, *inputs: Any) -> None:
        # XLA gives an aliased input the output's memory, after copying the input there if
        # necessary.
        places = {number: outputs[leaf] for number, leaf in aliases.items()}
        taken = [places.get(number, buffer) for number, buffer in enumerate(inputs)]
        workspace = outputs[count] if len(outputs) > count else None
        _launch(kernel, context, types, taken, outputs[len(aliases) : count], workspace)

    function: Callable[..., Any] = buffer_callback(
        launch,
        results,
        input_output_aliases=dict(aliases) or None,
        command_buffer_compatible=True,
    )
    return function


def _load(kernel: RoutedVariants, types: Sequence[ArrayType]) -> None:
    """Load the variant on each GPU that JAX may run it on: a command buffer cannot.

    Errors are left to the callback to report: the function may be traced for other devices.
    """
    import jax

    if jax.default_backend() == "gpu":
        for device in jax.local_devices():
            with suppress(PallascError):
                ordinal = device.local_hardware_id
                kernel.route(ordinal, types).program(ordinal)


def _launch(
    kernel: RoutedVariants,
    context: Any,
    types: Sequence[ArrayType],
    arrays: Any,
    results: Any,
    workspace: Any,
) -> None:
    """Launch into XLA's stream from inside the callback, with results in XLA's buffers."""
    if any(int(buffer.__dlpack_device__()[0]) == CPU for buffer in (*arrays, *results)):
        _launch_on_host(kernel, types, arrays, results)
        return
    views = [_view(buffer) for buffer in (*arrays, *results)]
    ordinal = views[0].device or 0
    pointers = [view.pointer for view in views]
    route = kernel.route(ordinal, types, pointers[: len(arrays)])
    place = _view(workspace).pointer if route.workspace_bytes else None
    route.enqueue(int(context.stream), ordinal, pointers, place)


def _launch_on_host(
    kernel: RoutedVariants, types: Sequence[ArrayType], arrays: Any, results: Any
) -> None:
    """Run for JAX on the CPU: its buffers are copied like numpy arrays."""
    import numpy

    inputs = [numpy.asarray(buffer) for buffer in arrays]
    outputs = [numpy.asarray(buffer) for buffer in results]
    for array in (*inputs, *outputs):
        check_unpacked(array.dtype)
    launch_on_host(kernel.route(current_device(), types), inputs, outputs)


def _view(buffer: Any) -> ArrayView:
    _, ordinal = buffer.__dlpack_device__()
    return read_capsule(buffer.__dlpack__(), int(ordinal))
