"""Arrays of JAX: inside `jit` a kernel becomes a callback on device buffers.

`jax.experimental.buffer_callback` gives the callback XLA's stream and its buffers, and lets XLA
capture what it launches into command buffers. Memory for temporaries is a result of the callback
that nobody reads, so that XLA allocates it too. Such a function cannot be serialised.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pallasc.errors import ArgumentError, PallascError
from pallasc.runtime.adapters.capsules import CPU, read_capsule
from pallasc.runtime.adapters.numpy_arrays import check_unpacked, short_dtype
from pallasc.runtime.calls.host import launch_on_host
from pallasc.runtime.calls.match import Call, Variants
from pallasc.runtime.calls.program import lay_out
from pallasc.runtime.device.devices import current_device
from pallasc.runtime.matching.arrays import Adapter, ArrayView
from pallasc.runtime.matching.candidates import ArrayType, array_type
from pallasc.specs.artifacts.arguments import MISSING
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.trees import unflatten
from pallasc.specs.dtypes import parse_dtype
from pallasc.specs.spelling import an


class JaxAdapter(Adapter):
    """Arrays of JAX, traced ones and others; both end in a callback."""

    name = "a JAX array"
    takes_calls = True

    def view(self, array: Any) -> ArrayView:
        """Return dtype and shape of an array; nothing here may write into it."""
        dtype = short_dtype(array.dtype)
        return ArrayView(0, dtype, tuple(array.shape), True, None, is_writable=False)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Refuse: JAX allocates what a callback writes.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError("JAX allocates results itself.", hint="Pass all arrays as JAX arrays.")

    def run(self, call: Call) -> Any:
        """Put a call into the function that is being traced, or run it through `jit`.

        Raises:
            ArgumentError: it cannot be done inside JAX.
        """
        import jax

        name = call.variants.name
        if call.out is not MISSING and not call.allocates:
            raise ArgumentError(
                f"{name}: out cannot be given with JAX arrays, which are never written into.",
                hint=f"Call {name}(...), which returns new arrays.",
            )
        if call.stream is not None:
            raise ArgumentError(f"{name}: inside JAX the stream is XLA's and cannot be given.")
        for array, binding in zip(call.arrays, call.variants.signature.inputs, strict=True):
            if not isinstance(array, jax.Array):
                raise ArgumentError(
                    f"{name}: {binding.path} is {an(type(array).__name__)} among JAX arrays.",
                    hint="Convert it with jax.numpy.asarray.",
                )
        if any(isinstance(array, jax.core.Tracer) for array in call.arrays):
            return _traced(call.variants, *call.arrays)
        if all(_is_on_host(array) for array in call.arrays):
            # What hinders the launch is said here, and not by JAX around the callback's error.
            kernel, arrays = call.variants, call.arrays
            kernel.route(None, _types(kernel, arrays))
        # Kept with the kernel, so that JAX traces once for each set of shapes.
        variants = call.variants
        function = vars(variants).get("_jax_function")
        if function is None:
            function = vars(variants)["_jax_function"] = jax.jit(partial(_traced, variants))
        return function(*call.arrays)


def _is_on_host(array: Any) -> bool:
    """Tell whether JAX keeps an array in the memory of the host, and computes there."""
    return all(device.platform == "cpu" for device in array.devices())


def _traced(kernel: Variants, *arrays: Any) -> Any:
    """Return the results of the callback in a traced function."""
    from jax.experimental.buffer_callback import buffer_callback

    types = _types(kernel, arrays)
    signature = kernel.signature_for(types)
    _load(kernel, types)
    updated = list(signature.updated)
    written = [*(signature.inputs[number] for number in updated), *signature.results]
    results = [_result(kernel.name, binding) for binding in written]
    workspace_bytes = _workspace_bytes(kernel, types)

    def launch(context: Any, outputs: Any, *inputs: Any) -> None:
        # XLA gives an aliased input the output's memory, and has copied it there where it had to.
        places = dict(zip(updated, outputs, strict=False))
        taken = [places.get(number, buffer) for number, buffer in enumerate(inputs)]
        workspace = outputs[len(results)] if workspace_bytes else None
        _launch(kernel, context, types, taken, outputs[len(updated) : len(results)], workspace)

    callback = buffer_callback(
        launch,
        [*results, *_workspace(workspace_bytes)],
        input_output_aliases={number: leaf for leaf, number in enumerate(updated)} or None,
        command_buffer_compatible=True,
    )
    made = _guarded(kernel.name, callback)(*map(_in_memory, arrays, signature.inputs))
    places = {
        **{("input", number): leaf for leaf, number in enumerate(updated)},
        **{("result", n): len(updated) + n for n in range(len(signature.results))},
    }
    leaves = [made[places[source]] for source in signature.sources]
    return unflatten(signature.output_tree, leaves)


def _types(kernel: Variants, arrays: Sequence[Any]) -> list[ArrayType]:
    """Return the types of arrays; as XLA lays them out as is asked, their layouts are a variant's.

    A variant whose arrays are row-major goes first.
    """
    types = [array_type(short_dtype(array.dtype), array.shape) for array in arrays]
    by_variant = [variant.arrays for variant in kernel.variants]
    fitting = [arrays for arrays in by_variant if [array[:2] for array in arrays] == types]
    return list(min(fitting, key=lambda own: sum(map(len, own)), default=types))


def _in_memory(array: Any, binding: Binding) -> Any:
    """Return an array whose row-major memory is that of the layout that a kernel takes.

    XLA copies, unless the array lies so already.
    """
    if binding.layout is None:
        return array
    return array.transpose(tuple(reversed(binding.layout)))


def _load(kernel: Variants, types: Sequence[ArrayType]) -> None:
    """Load the variant on each GPU that JAX may run it on: a command buffer cannot.

    What hinders it is for the callback to say: the function may be traced for other devices.
    """
    import jax

    if jax.default_backend() == "gpu":
        for device in jax.local_devices():
            with suppress(PallascError):
                ordinal = device.local_hardware_id
                kernel.route(ordinal, types).program(ordinal)


def _result(name: str, binding: Binding) -> Any:
    """Return what JAX wants to know of a result.

    Raises:
        ArgumentError: JAX has no such dtype, or has switched it off.
    """
    import jax
    import numpy

    dtype = numpy.dtype(getattr(jax.numpy, parse_dtype(binding.dtype).jax_name, None))
    if short_dtype(dtype) != binding.dtype:
        raise ArgumentError(f"{name}: this version of JAX has no dtype for {binding.dtype}.")
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ArgumentError(
            f"{name}: {binding.path} is {binding.dtype}, and JAX has 64-bit dtypes switched off.",
            hint='Call jax.config.update("jax_enable_x64", True).',
        )
    return jax.ShapeDtypeStruct(binding.shape, dtype)


def _workspace_bytes(kernel: Variants, types: Sequence[ArrayType]) -> int:
    """Return the bytes for temporaries that any variant for these arrays needs."""
    return max(
        (
            lay_out(variant.artifact.plan)[1]
            for variant in kernel.variants
            if list(variant.arrays) == list(types)
        ),
        default=0,
    )


def _workspace(size_bytes: int) -> list[Any]:
    import jax

    return [jax.ShapeDtypeStruct((size_bytes,), "uint8")] if size_bytes else []


def _guarded(name: str, callback: Any) -> Any:
    """Return the callback with our own refusals of `vmap` and of derivatives."""
    import jax

    function = jax.custom_batching.custom_vmap(callback)

    @function.def_vmap
    def refuse(*_: Any) -> Any:
        raise ArgumentError(
            f"{name} cannot be used under jax.vmap: its shapes are fixed.",
            hint="Compile a variant for the batched shape, or use jax.lax.map.",
        )

    differentiated = jax.custom_jvp(lambda *arrays: function(*arrays))

    @differentiated.defjvp
    def refuse_derivative(*_: Any) -> Any:
        raise ArgumentError(
            f"{name} has no derivative.", hint="Give it one with jax.custom_vjp around the call."
        )

    return differentiated


def _launch(
    kernel: Variants,
    context: Any,
    types: Sequence[ArrayType],
    arrays: Any,
    results: Any,
    workspace: Any,
) -> None:
    """Run in the callback: launch into XLA's stream, with results in XLA's buffers."""
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
    kernel: Variants, types: Sequence[ArrayType], arrays: Any, results: Any
) -> None:
    """Run for JAX on the CPU: its buffers are copied as numpy's arrays are."""
    import numpy

    inputs = [numpy.asarray(buffer) for buffer in arrays]
    outputs = [numpy.asarray(buffer) for buffer in results]
    for array in (*inputs, *outputs):
        check_unpacked(array.dtype)
    launch_on_host(kernel.route(current_device(), types), inputs, outputs)


def _view(buffer: Any) -> ArrayView:
    _, ordinal = buffer.__dlpack_device__()
    return read_capsule(buffer.__dlpack__(), int(ordinal))


def make_adapter() -> JaxAdapter:
    """Return the adapter; JAX is imported already where one of its arrays is at hand."""
    return JaxAdapter()
