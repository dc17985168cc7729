"""Arrays of JAX: inside `jit` a kernel becomes a callback on device buffers.

`jax.experimental.buffer_callback` gives the callback XLA's stream and its buffers, and lets XLA
capture what it launches into command buffers. Such a function cannot be serialised.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.arrays import ArrayView
from pallasc.runtime.adapters.capsules import CPU, read_capsule
from pallasc.runtime.adapters.numpy_dtypes import numpy_dtype, short_dtype
from pallasc.runtime.arguments import MISSING
from pallasc.runtime.call import Call
from pallasc.runtime.trees import unflatten

if TYPE_CHECKING:
    from pallasc.runtime.kernel import Kernel


class JaxAdapter:
    """Arrays of JAX, traced ones and others; both end in a callback."""

    name = "a JAX array"

    def view(self, array: Any) -> ArrayView:
        """Return dtype and shape of an array; nothing here may write into it."""
        dtype = short_dtype(array.dtype)
        return ArrayView(0, dtype, tuple(array.shape), True, None, is_writable=False)

    def stream(self, device: int) -> int:
        """Return the default stream: XLA names its own when it runs the callback."""
        return 0

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

        name = call.kernel.name
        if call.out is not MISSING and not call.allocates:
            raise ArgumentError(
                f"{name}: out cannot be given with JAX arrays, which are never written into.",
                hint=f"Call {name}(...), which returns new arrays.",
            )
        if call.stream is not None:
            raise ArgumentError(f"{name}: inside JAX the stream is XLA's and cannot be given.")
        for array, binding in zip(call.arrays, call.kernel.signature.inputs, strict=True):
            if not isinstance(array, jax.Array):
                raise ArgumentError(
                    f"{name}: {binding.path} is a {type(array).__name__} among JAX arrays.",
                    hint="Convert it with jax.numpy.asarray.",
                )
        if any(isinstance(array, jax.core.Tracer) for array in call.arrays):
            return _traced(call.kernel, *call.arrays)
        # Kept with the kernel, so that JAX traces once for each set of shapes.
        function = vars(call.kernel).get("_jax_function")
        if function is None:
            function = vars(call.kernel)["_jax_function"] = jax.jit(partial(_traced, call.kernel))
        return function(*call.arrays)


def _traced(kernel: Kernel, *arrays: Any) -> Any:
    """Return the results of the callback in a traced function."""
    import jax
    from jax.experimental.buffer_callback import buffer_callback

    types = [(short_dtype(array.dtype), tuple(array.shape)) for array in arrays]
    signature = kernel.signature_for(types)
    updated = sorted({number for source, number in signature.sources if source == "input"})
    written = [*(signature.inputs[number] for number in updated), *signature.results]

    def launch(context: Any, outputs: Any, *inputs: Any) -> None:
        # XLA gives an aliased input the output's memory, and has copied it there where it had to.
        places = dict(zip(updated, outputs, strict=False))
        taken = [places.get(number, buffer) for number, buffer in enumerate(inputs)]
        _launch(kernel, context, taken, outputs[len(updated) :])

    callback = buffer_callback(
        launch,
        [jax.ShapeDtypeStruct(one.shape, numpy_dtype(one.dtype)) for one in written],
        input_output_aliases={number: leaf for leaf, number in enumerate(updated)} or None,
        command_buffer_compatible=True,
    )
    made = _without_vmap(kernel.name, callback)(*arrays)
    places = {
        **{("input", number): leaf for leaf, number in enumerate(updated)},
        **{("result", n): len(updated) + n for n in range(len(signature.results))},
    }
    leaves = [made[places[source]] for source in signature.sources]
    return unflatten(signature.output_tree, leaves)


def _without_vmap(name: str, callback: Any) -> Any:
    """Return the callback with our own refusal of `vmap`."""
    import jax

    function = jax.custom_batching.custom_vmap(callback)

    @function.def_vmap
    def refuse(*_: Any) -> Any:
        raise ArgumentError(
            f"{name} cannot be used under jax.vmap: its shapes are fixed.",
            hint="Compile a variant for the batched shape, or use jax.lax.map.",
        )

    return function


def _launch(kernel: Kernel, context: Any, arrays: Any, results: Any) -> None:
    """Run in the callback: launch into XLA's stream, with results in XLA's buffers."""
    if any(int(buffer.__dlpack_device__()[0]) == CPU for buffer in (*arrays, *results)):
        _launch_on_host(kernel, arrays, results)
        return
    views = [_view(buffer) for buffer in (*arrays, *results)]
    ordinal = views[0].device or 0
    types = [(view.dtype, view.shape) for view in views[: len(arrays)]]
    kernel.route(ordinal, types).enqueue(
        int(context.stream), ordinal, [view.pointer for view in views]
    )


def _launch_on_host(kernel: Kernel, arrays: Any, results: Any) -> None:
    """Run for JAX on the CPU: its buffers are copied as numpy's arrays are."""
    import numpy

    from pallasc.runtime.devices import current_device
    from pallasc.runtime.host import run_on_host

    inputs = [numpy.asarray(buffer) for buffer in arrays]
    types = [(short_dtype(array.dtype), tuple(array.shape)) for array in inputs]
    route = kernel.route(current_device(), types)
    run_on_host(route, inputs, [numpy.asarray(buffer) for buffer in results])


def _view(buffer: Any) -> ArrayView:
    _, ordinal = buffer.__dlpack_device__()
    return read_capsule(buffer.__dlpack__(), int(ordinal))


def make_adapter() -> JaxAdapter:
    """Return the adapter; JAX is imported already where one of its arrays is at hand."""
    return JaxAdapter()
