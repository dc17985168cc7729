"""Kernels under `jax.vmap` and differentiation: apply the declared rules, or raise an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pallasc.errors import ArgumentError
from pallasc.runtime.adapters.jax_types import laid_out, types_of
from pallasc.runtime.adapters.numpy_arrays import short_dtype
from pallasc.runtime.calls.match import RoutedVariants
from pallasc.runtime.matching.candidates import Candidate, has_params
from pallasc.specs.arrays import array_text
from pallasc.specs.artifacts.signature import unflatten
from pallasc.specs.spelling import an

Flat = Callable[..., Sequence[Any]]
"""A function from arrays to the leaves of its result."""

CallFlat = Callable[[RoutedVariants, Sequence[Any]], Sequence[Any]]
"""Call a kernel as a `Flat` function."""


def guarded(kernel: RoutedVariants, flat: Flat, call: CallFlat) -> Flat:
    """Return a function with a kernel's rules for `vmap` and for derivatives.

    Args:
        kernel: the kernel that the function calls.
        flat: the function.
        call: calls another kernel.
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
    kernel: RoutedVariants,
    axis_size: int,
    in_batched: Sequence[bool],
    arrays: Sequence[Any],
    call: CallFlat,
) -> Sequence[Any]:
    """Call the variant for a batch.

    An array without a batch dimension is passed unchanged if a variant takes it, and is otherwise
    broadcast.

    Raises:
        ArgumentError: there is no variant for it, or its results do not have the right shapes.
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
    taken = next(
        (own for own in (arrays, repeated) if tuple(types_of(batched, own)) in batched.types), None
    )
    if taken is None:
        shapes = ", ".join(str(list(array.shape)) for array in repeated)
        raise ArgumentError(
            f"{name} has no variant for a batch of {axis_size} under jax.vmap: arrays of the "
            f"shapes {shapes}.",
            hint="Compile a variant for them, or use jax.lax.map.",
        )
    results = call(batched, taken)
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
            hint="Declare a kernel with defvmap that does to each part of a batch what this does.",
        )
    return results


# ---- the kernel to use instead


def batched_form_of(kernel: RoutedVariants) -> RoutedVariants | None:
    """Return the kernel that does the same for a batch, None if there is none.

    A rule declared in the program takes precedence over the specs of the variants.

    Raises:
        ArgumentError: the specs name different kernels, or one that was not opened together with
            it.
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
    batched: RoutedVariants | None = rules.find(names[0])
    if batched is None:
        raise ArgumentError(
            f"{kernel.name} cannot be used under jax.vmap: its spec names the kernel "
            f"{names[0]} for that, which was not opened with it.",
            hint=f"Put {names[0]} into the bundle, or declare a kernel with defvmap.",
        )
    return like(batched, kernel)


def like(kernel: RoutedVariants, other: RoutedVariants) -> RoutedVariants:
    """Return a kernel's variants that match a call of another kernel.

    The result is by digest if the other kernel is. Among variants for the same arrays and target,
    those that have the matrix parameters shared by all of the other's variants are kept, if there
    are any: a caller who chose a parameter for the call cannot choose it for the substitute kernel.
    """
    first, *rest = other.variants
    shared = [
        {name: value}
        for name, value in first.params.items()
        if all(has_params(own, {name: value}) for own in rest)
    ]
    groups: dict[object, list[Candidate]] = {}
    for own in kernel.variants:
        groups.setdefault((own.arrays, own.target), []).append(own)
    taken = {id(own) for group in groups.values() for own in _narrowed(group, shared)}
    is_by_digest = kernel.is_by_digest or other.is_by_digest
    if len(taken) == len(kernel.variants) and is_by_digest == kernel.is_by_digest:
        return kernel
    variants = [own for own in kernel.variants if id(own) in taken]
    given = {
        name: value
        for name, value in other.selector.given.items()
        if all(has_params(own, {name: value}) for own in variants)
    }
    return kernel.of(variants, given=given, is_by_digest=is_by_digest)


def _narrowed(
    candidates: Sequence[Candidate], wishes: Iterable[Mapping[str, object]]
) -> Sequence[Candidate]:
    """Narrow the candidates by each wish in turn that at least one of them meets."""
    for params in wishes:
        candidates = [own for own in candidates if has_params(own, params)] or candidates
    return candidates


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


def _with_derivative(kernel: RoutedVariants, function: Flat, backward: Any, call: CallFlat) -> Flat:
    import jax

    differentiated: Any = jax.custom_vjp(lambda *arrays: function(*arrays))

    def forward(*arrays: Any) -> Any:
        results = function(*arrays)
        return results, (arrays, results)

    def pull_back(residuals: Any, cotangents: Any) -> Any:
        if isinstance(backward, RoutedVariants):
            return _by_kernel(kernel, backward, residuals, cotangents, call)
        return _by_function(kernel, backward, residuals, cotangents)

    differentiated.defvjp(forward, pull_back)
    flat: Flat = differentiated
    return flat


def _by_function(kernel: RoutedVariants, backward: Any, residuals: Any, cotangents: Any) -> Any:
    """Return the gradients from a user's function, which is written as for `jax.custom_vjp`."""
    arrays, results = residuals
    tree = kernel.signature_for(types_of(kernel, arrays)).output_tree
    own = arrays, unflatten(tree, results)
    gradients = backward(own, unflatten(tree, cotangents))
    if not isinstance(gradients, tuple | list) or len(gradients) != len(arrays):
        is_tuple = isinstance(gradients, tuple | list)
        found = str(len(gradients)) if is_tuple else an(type(gradients).__name__)
        raise ArgumentError(
            f"the backward function of {kernel.name} must give {len(arrays)} gradients, one for "
            f"each array, and gives {found}.",
            hint="Return a tuple with a gradient for each array, None where there is none.",
        )
    return _checked(kernel, arrays, gradients)


def _by_kernel(
    kernel: RoutedVariants,
    backward: RoutedVariants,
    residuals: Any,
    cotangents: Any,
    call: CallFlat,
) -> Any:
    """Return the gradients from a kernel for inputs, results (if it takes them), and cotangents."""
    arrays, results = residuals
    given = [array for array in cotangents if _has_derivative(array.dtype)]
    choices = {len(taken): taken for taken in ((*arrays, *given), (*arrays, *results, *given))}
    number = len(backward.signature.inputs)
    if number not in choices:
        raise ArgumentError(
            f"the backward kernel of {kernel.name} must take {' or '.join(map(str, choices))} "
            "arrays: its inputs, its results or not, and their cotangents. "
            f"{backward.name} takes {number}.",
            hint="Pass defvjp a function that calls it as it has to be.",
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
    return _checked(kernel, arrays, [found.get(n) for n in range(len(arrays))])


def _checked(
    kernel: RoutedVariants, arrays: Sequence[Any], gradients: Sequence[Any]
) -> tuple[Any, ...]:
    """Check that gradients have the types of their arrays; JAX's own message would be less clear.

    Raises:
        ArgumentError: a gradient has another type.
    """
    bindings = kernel.signature_for(types_of(kernel, arrays)).inputs
    for binding, array, gradient in zip(bindings, arrays, gradients, strict=True):
        if gradient is None:
            continue
        own, other = ((x.dtype, tuple(x.shape)) for x in (array, gradient))
        if own != other:
            raise ArgumentError(
                f"{kernel.name}: the gradient of {binding.path} is "
                f"{array_text(short_dtype(other[0]), other[1])}, and {binding.path} is "
                f"{array_text(short_dtype(own[0]), own[1])}.",
                hint="Convert it in a function that is passed to defvjp.",
            )
    return tuple(gradients)


def _has_derivative(dtype: Any) -> bool:
    """Return True if arrays of a dtype have derivatives: floats and complex numbers."""
    import jax.numpy as jnp

    return bool(jnp.issubdtype(dtype, jnp.inexact))
