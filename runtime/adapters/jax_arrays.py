"""JAX arrays: inside `jit`, a kernel is an instruction in XLA's program.

With pallasc's C library, the instruction calls a C handler (`jax_handlers`), otherwise a Python
callback (`jax_callback`). In both cases XLA allocates the results. Memory for temporaries is an
extra result that nobody reads, so XLA allocates it too, and captured launches do not outlive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.adapters.jax_callback import callback
from pallasc.runtime.adapters.jax_rules import guarded
from pallasc.runtime.adapters.jax_types import result_type, types_of, varying, workspace_types
from pallasc.runtime.adapters.numpy_arrays import short_dtype
from pallasc.runtime.calls.match import Call, RoutedVariants
from pallasc.runtime.matching.arrays import Adapter, ArrayView
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import MISSING, unflatten
from pallasc.specs.spelling import an


class JaxAdapter(Adapter):
    """JAX arrays, traced or concrete; both lead to an XLA program."""

    name = "a JAX array"
    takes_calls = True

    def view(self, array: Any) -> ArrayView:
        """Return a view with the dtype and shape of an array, which is never writable."""
        dtype = short_dtype(array.dtype)
        return ArrayView(0, dtype, tuple(array.shape), True, None, is_writable=False)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Reject: XLA allocates what a kernel in its programs writes.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError("JAX allocates results itself.", hint="Pass all arrays as JAX arrays.")

    def run(self, call: Call) -> Any:
        """Add a call to the function being traced, or run it through `jit`.

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
            # Report what prevents the launch here, rather than have JAX wrap it in an XLA error.
            kernel, arrays = call.variants, call.arrays
            kernel.route(None, types_of(kernel, arrays))
        # Kept on the kernel so that JAX traces only once per set of shapes, until the rules change.
        variants = call.variants
        rules, function = vars(variants).get("_jax_function", (None, None))
        if rules != variants.rules.version:
            function = jax.jit(partial(_traced, variants))
            vars(variants)["_jax_function"] = variants.rules.version, function
        return function(*call.arrays)


def _is_on_host(array: Any) -> bool:
    """Return True if JAX keeps an array in host memory, and computes there."""
    return all(device.platform == "cpu" for device in array.devices())


def _traced(kernel: RoutedVariants, *arrays: Any) -> Any:
    """Return the results of a kernel in a traced function."""
    leaves = _leaves(kernel, arrays)
    return unflatten(kernel.signature_for(types_of(kernel, arrays)).output_tree, leaves)


def _leaves(kernel: RoutedVariants, arrays: Sequence[Any]) -> Sequence[Any]:
    """Return the leaves of a kernel's results in a traced function."""
    # Report invalid arguments before JAX looks at them.
    kernel.signature_for(types_of(kernel, arrays))
    function = guarded(kernel, partial(_call, kernel), _leaves)
    # Make all arrays vary over the same axes, so that gradients of those that did not are summed
    # over devices.
    return function(*varying(arrays, arrays))


def _call(kernel: RoutedVariants, *arrays: Any) -> list[Any]:
    """Add the call itself to the function being traced."""
    types = types_of(kernel, arrays)
    signature = kernel.signature_for(types)
    updated = list(signature.updated)
    written = [*(signature.inputs[number] for number in updated), *signature.results]
    results = [result_type(kernel.name, binding) for binding in written]
    buffers = [*results, *workspace_types(kernel, types)]
    aliases = {number: leaf for leaf, number in enumerate(updated)}
    function = jax_handlers.handler(kernel, types, buffers, aliases)
    if function is None:
        function = callback(kernel, types, buffers, aliases, len(results))
    made = function(*map(_in_memory, arrays, signature.inputs))
    places = {
        **{("input", number): leaf for leaf, number in enumerate(updated)},
        **{("result", n): len(updated) + n for n in range(len(signature.results))},
    }
    return varying([made[places[source]] for source in signature.sources], arrays)


def _in_memory(array: Any, binding: Binding) -> Any:
    """Return an array whose row-major memory has the layout that a kernel takes.

    XLA copies, unless the array already has that layout.
    """
    if binding.layout is None:
        return array
    return array.transpose(tuple(reversed(binding.layout)))


def make_adapter() -> JaxAdapter:
    """Return the adapter. JAX is already imported, since the caller has a JAX array."""
    return JaxAdapter()
