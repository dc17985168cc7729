"""JAX arrays: inside `jit`, a kernel is an instruction of XLA's program, which calls a C handler.

XLA allocates the results, and the memory for temporaries as one more result that is never read. So
this memory lives as long as launches captured by XLA. The handlers are in `jax_handlers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters import jax_handlers
from pallasc.runtime.adapters.numpy_arrays import short_dtype
from pallasc.runtime.calls.match import Call, Variants
from pallasc.runtime.device.streams import lay_out
from pallasc.runtime.matching.arrays import Adapter, ArrayView
from pallasc.runtime.matching.candidates import ArrayType, array_type, has_params
from pallasc.specs.arrays import parse_dtype
from pallasc.specs.artifacts.plan import Binding
from pallasc.specs.artifacts.signature import MISSING, unflatten
from pallasc.specs.spelling import an

# ---- types


def types_of(kernel: Variants, arrays: Sequence[Any]) -> list[ArrayType]:
    """Return the types of arrays in the layouts that a variant takes; XLA converts the arrays.

    Prefers variants whose arrays are row-major.
    """
    return laid_out(kernel, [(short_dtype(array.dtype), tuple(array.shape)) for array in arrays])


def laid_out(kernel: Variants, types: Sequence[ArrayType]) -> list[ArrayType]:
    """Return the types with the layouts of a variant that takes them."""
    plain = [array_type(*array[:2]) for array in types]
    by_variant = [variant.arrays for variant in kernel.variants]
    fitting = [arrays for arrays in by_variant if [array[:2] for array in arrays] == plain]
    return list(min(fitting, key=lambda own: sum(map(len, own)), default=plain))


def result_type(name: str, binding: Binding) -> Any:
    """Return JAX's shape and dtype of a result.

    Raises:
        ArgumentError: JAX has no such dtype, or has it disabled.
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


def workspace_types(kernel: Variants, types: Sequence[ArrayType]) -> list[Any]:
    """Return the type of the temporary memory, large enough for every variant for these arrays."""
    import jax

    size_bytes = max(
        (
            lay_out(variant.artifact.plan)[1]
            for variant in kernel.variants
            if list(variant.arrays) == list(types)
        ),
        default=0,
    )
    return [jax.ShapeDtypeStruct((size_bytes,), "uint8")] if size_bytes else []


def varying(results: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Mark results as varying over each `shard_map` axis that any of the arrays varies over.

    JAX trusts these marks: it sums the gradients of unmarked arrays over devices.
    """
    import jax

    axes = {axis for array in arrays for axis in _axes(array)}
    return [
        jax.lax.pcast(result, tuple(sorted(missing)), to="varying")
        if (missing := axes - _axes(result))
        else result
        for result in results
    ]


def _axes(array: Any) -> frozenset[Any]:
    """Return the mesh axes over which an array varies."""
    import jax

    axes: frozenset[Any] = jax.typeof(array).manual_axis_type.varying
    return axes


# ---- vmap and differentiation: the declared rules, or an error

Flat = Callable[..., Sequence[Any]]
"""A function from arrays to the leaves of its result."""

CallFlat = Callable[[Variants, Sequence[Any]], Sequence[Any]]
"""A function that calls a kernel with arrays and returns the leaves of its result."""


def guarded(kernel: Variants, flat: Flat, call: CallFlat) -> Flat:
    """Return a function with a kernel's rules for `vmap` and for derivatives.

    Args:
        kernel: the kernel that the function calls.
        flat: the function.
        call: the function that calls another kernel.
    """
    import jax

    function = jax.custom_batching.custom_vmap(flat)

    @function.def_vmap
    def batch(axis_size: int, in_batched: Sequence[bool], *arrays: Any) -> Any:
        results = _batched(kernel, axis_size, in_batched, arrays, call)
        return results, [True] * len(results)

    backward = kernel.rules.backward
    if backward is None:
        return _without_derivative(kernel.name, function)
    return _with_derivative(kernel, function, backward, call)


# ---- vmap


def _batched(
    kernel: Variants,
    axis_size: int,
    in_batched: Sequence[bool],
    arrays: Sequence[Any],
    call: CallFlat,
) -> Sequence[Any]:
    """Call the batched form of a kernel.

    An array without a batch dimension is passed unchanged if a variant takes it, and is otherwise
    broadcast.

    Raises:
        ArgumentError: there is no batched form, or its results have the wrong shapes.
    """
    import jax.numpy as jnp

    name, batched = kernel.name, batched_form_of(kernel)
    if batched is None:
        raise ArgumentError(
            f"{name} cannot be used under jax.vmap: its shapes are fixed.",
            hint="Compile a variant for the batched shape and declare it, by vmap in the spec or "
            "with defvmap, or use jax.lax.map.",
        )
    repeated = [
        array if has_batch else jnp.broadcast_to(array, (axis_size, *array.shape))
        for array, has_batch in zip(arrays, in_batched, strict=True)
    ]
    fits = tuple(types_of(batched, arrays)) in batched.types
    results = call(batched, arrays if fits else repeated)
    single = [
        (short_dtype(array.dtype), tuple(array.shape)[1 if own else 0 :])
        for array, own in zip(arrays, in_batched, strict=True)
    ]
    signature = kernel.signature_for(laid_out(kernel, single))
    expected = [(axis_size, *output.shape) for output in signature.outputs]
    found = [tuple(result.shape) for result in results]
    if found != expected:
        raise ArgumentError(
            f"{name}: the variant for a batch of {axis_size} gives results of the shapes "
            f"{', '.join(map(str, map(list, found)))}, and jax.vmap needs "
            f"{', '.join(map(str, map(list, expected)))}.",
            hint="Use defvmap to declare a kernel that does the same for each batch element.",
        )
    return results


# ---- the kernel that is called instead


def batched_form_of(kernel: Variants) -> Variants | None:
    """Return the kernel that does the same for a batch, None if there is none.

    A rule declared in the program takes precedence over the specs of the variants.

    Raises:
        ArgumentError: the specs name different kernels, or a kernel that was not opened together
            with this one.
    """
    rules = kernel.rules
    if rules.is_batched:
        return kernel if rules.batched is None else like(rules.batched, kernel)
    names = sorted({own.vmap for own in kernel.variants if own.vmap is not None})
    if len(names) > 1:
        raise ArgumentError(
            f"variants of {kernel.name} name several kernels for jax.vmap: {', '.join(names)}.",
            hint="Declare one of them with defvmap.",
        )
    if not names or names[0] == kernel.name:
        return kernel if names else None
    batched: Variants | None = rules.find(names[0])
    if batched is None:
        raise ArgumentError(
            f"{kernel.name} cannot be used under jax.vmap: the kernel {names[0]}, which its spec "
            "names, was not opened with it.",
            hint=f"Put {names[0]} into the bundle, or declare a kernel with defvmap.",
        )
    return like(batched, kernel)


def like(kernel: Variants, other: Variants) -> Variants:
    """Return `kernel` with the options of `other`, in whose place it is called.

    The result is `is_by_digest` if either kernel is. Matrix parameters that the caller chose for
    `other` are chosen for `kernel` too, if it has variants with them.
    """
    variants, given = kernel.variants, dict[str, object]()
    for name, value in other.selector.given.items():
        chosen = tuple(own for own in variants if has_params(own, {name: value}))
        if chosen:
            variants, given[name] = chosen, value
    is_by_digest = kernel.is_by_digest or other.is_by_digest
    if variants == kernel.variants and is_by_digest == kernel.is_by_digest:
        return kernel
    return kernel.of(variants, given=given, is_by_digest=is_by_digest)


# ---- derivatives


def _without_derivative(name: str, function: Flat) -> Flat:
    import jax

    differentiated: Any = jax.custom_jvp(lambda *arrays: function(*arrays))

    @differentiated.defjvp  # type: ignore[untyped-decorator]
    def refuse(*_: Any) -> Any:
        raise ArgumentError(
            f"{name} has no derivative.",
            hint="Give it one with defvjp, or with jax.custom_vjp around the call.",
        )

    flat: Flat = differentiated
    return flat


def _with_derivative(kernel: Variants, function: Flat, backward: Any, call: CallFlat) -> Flat:
    import jax

    differentiated: Any = jax.custom_vjp(lambda *arrays: function(*arrays))

    def forward(*arrays: Any) -> Any:
        results = function(*arrays)
        return results, (arrays, results)

    def pull_back(residuals: Any, cotangents: Any) -> Any:
        if isinstance(backward, Variants):
            return _by_kernel(kernel, backward, residuals, cotangents, call)
        return _by_function(kernel, backward, residuals, cotangents)

    differentiated.defvjp(forward, pull_back)
    flat: Flat = differentiated
    return flat


def _by_function(kernel: Variants, backward: Any, residuals: Any, cotangents: Any) -> Any:
    """Return the gradients from a user's function, which is written as for `jax.custom_vjp`."""
    arrays, results = residuals
    tree = kernel.signature_for(types_of(kernel, arrays)).output_tree
    return backward((arrays, unflatten(tree, results)), unflatten(tree, cotangents))


def _by_kernel(
    kernel: Variants,
    backward: Variants,
    residuals: Any,
    cotangents: Any,
    call: CallFlat,
) -> Any:
    """Return the gradients from a kernel that takes inputs, results or not, and cotangents."""
    arrays, results = residuals
    given = [array for array in cotangents if _has_derivative(array.dtype)]
    choices = {len(taken): taken for taken in ((*arrays, *given), (*arrays, *results, *given))}
    number = len(backward.signature.inputs)
    if number not in choices:
        raise ArgumentError(
            f"the backward kernel of {kernel.name} must take {' or '.join(map(str, choices))} "
            f"arrays: {kernel.name}'s inputs, optionally its results, and their cotangents. "
            f"{backward.name} takes {number}.",
            hint="Pass defvjp a function that calls it with the right arrays.",
        )
    gradients = list(call(like(backward, kernel), choices[number]))
    places = [n for n, array in enumerate(arrays) if _has_derivative(array.dtype)]
    if len(gradients) != len(places):
        raise ArgumentError(
            f"the backward kernel of {kernel.name} must give {len(places)} results, the gradients "
            f"of its arrays, and {backward.name} gives {len(gradients)}.",
            hint="Pass defvjp a function that returns a gradient, or None, for each array.",
        )
    found = dict(zip(places, gradients, strict=True))
    return tuple(found.get(n) for n in range(len(arrays)))


def _has_derivative(dtype: Any) -> bool:
    """Return True if arrays of a dtype have derivatives: floats and complex numbers."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(dtype, jnp.inexact))


# ---- the adapter


class JaxAdapter(Adapter):
    """JAX arrays, traced or concrete: an XLA program launches the kernel for both."""

    name = "a JAX array"
    takes_calls = True

    def view(self, array: Any) -> ArrayView:
        """Return a view with the dtype and shape of an array, which is never writable."""
        dtype = short_dtype(array.dtype)
        return ArrayView(0, dtype, tuple(array.shape), True, None, is_writable=False)

    def empty(self, shape: tuple[int, ...], dtype: str, device: int, stream: int | None) -> Any:
        """Reject: XLA allocates the outputs of kernels in its programs.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError("JAX allocates results itself.", hint="Pass all arrays as JAX arrays.")

    def run(self, call: Call) -> Any:
        """Add a call to the function that JAX traces, or run the call through `jit`.

        Raises:
            ArgumentError: an argument of the call is not possible with JAX arrays.
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
        # Kept on the kernel so that JAX traces only once per set of shapes, until the rules change.
        variants = call.variants
        rules, function = vars(variants).get("_jax_function", (None, None))
        if rules != variants.rules.version:
            function = jax.jit(partial(_traced, variants))
            vars(variants)["_jax_function"] = variants.rules.version, function
        try:
            return function(*call.arrays)
        except jax.errors.JaxRuntimeError as error:
            if "on a platform Host" not in str(error):
                raise
            raise ArgumentError(
                f"{name}: the arrays are on JAX's CPU, and kernels run on GPUs.",
                hint='Install "jax[cuda13]", or pass NumPy arrays.',
            ) from error


def _traced(kernel: Variants, *arrays: Any) -> Any:
    """Return the results of a kernel in a traced function."""
    leaves = _leaves(kernel, arrays)
    return unflatten(kernel.signature_for(types_of(kernel, arrays)).output_tree, leaves)


def _leaves(kernel: Variants, arrays: Sequence[Any]) -> Sequence[Any]:
    """Return the leaves of a kernel's results in a traced function."""
    # Report invalid arguments before JAX looks at them.
    kernel.signature_for(types_of(kernel, arrays))
    function = guarded(kernel, partial(_call, kernel), _leaves)
    # Make all arrays vary over the same axes, so that gradients of unvarying arrays are summed over
    # devices.
    return function(*varying(arrays, arrays))


def _call(kernel: Variants, *arrays: Any) -> list[Any]:
    """Add the call itself to the function being traced."""
    types = types_of(kernel, arrays)
    signature = kernel.signature_for(types)
    updated = list(signature.updated)
    written = [*(signature.inputs[number] for number in updated), *signature.results]
    results = [result_type(kernel.name, binding) for binding in written]
    buffers = [*results, *workspace_types(kernel, types)]
    aliases = {number: leaf for leaf, number in enumerate(updated)}
    function = jax_handlers.handler(kernel, types, buffers, aliases)
    made = function(*map(_in_memory, arrays, signature.inputs))
    places = {
        **{("input", number): leaf for leaf, number in enumerate(updated)},
        **{("result", n): len(updated) + n for n in range(len(signature.results))},
    }
    return varying([made[places[source]] for source in signature.sources], arrays)


def _in_memory(array: Any, binding: Binding) -> Any:
    """Return an array transposed so that its row-major memory is the kernel's layout.

    XLA copies, unless the array already has that layout.
    """
    if binding.layout is None:
        return array
    return array.transpose(tuple(reversed(binding.layout)))
