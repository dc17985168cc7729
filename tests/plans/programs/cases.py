"""Functions around kernels, with what each kernel does to its operands in numpy.

`CASES`: name -> (function, its arrays). `KERNELS`: name of the kernel's body -> (function of the
operands that gives the results, whether the last result is written over the last operand).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

KERNELS: dict[str, tuple[Callable[..., Any], bool]] = {}


def does(function: Callable[..., Any], *, in_place: bool = False) -> Any:
    """Say what a kernel's body does."""

    def register(body: Any) -> Any:
        KERNELS[body.__name__] = (function, in_place)
        return body

    return register


def like(*arrays: Any) -> Any:
    """Return the types of results that are made as arrays."""
    types = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    return types[0] if len(types) == 1 else tuple(types)


@does(lambda x: [x + 1])
def increment_body(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + jnp.asarray(1, x_ref.dtype)


def increment(x: Any) -> Any:
    return plgpu.kernel(increment_body, out_type=like(x))(x)


@does(lambda x, y: [x + y, x - y])
def pair_body(x_ref: Any, y_ref: Any, s_ref: Any, d_ref: Any) -> None:
    s_ref[...] = x_ref[...] + y_ref[...]
    d_ref[...] = x_ref[...] - y_ref[...]


KERNELS["batched_body"] = KERNELS["increment_body"]
"""What `jax.vmap` calls the body of a kernel."""


def pair(x: Any, y: Any) -> Any:
    return plgpu.kernel(pair_body, out_type=like(x, x))(x, y)


@does(lambda x: [x * 2])
def copied_body(x_ref: Any, o_ref: Any, inside: Any, outside: Any, barrier: Any) -> None:
    plgpu.copy_gmem_to_smem(x_ref, inside, barrier)
    plgpu.barrier_wait(barrier)
    outside[...] = inside[...] * 2
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(outside, o_ref)
    plgpu.wait_smem_to_gmem(0)


def doubled(x: Any) -> Any:
    """Double in shared memory, to and from which TMA copies."""
    memory = plgpu.SMEM(x.shape, x.dtype)
    scratch = [memory, memory, plgpu.Barrier()]
    return plgpu.kernel(copied_body, out_type=like(x), scratch_types=scratch)(x)


@does(lambda x, signal: [x * 3 + 1000 * (signal.sum() != 0), signal + 1], in_place=True)
def signal_body(x_ref: Any, o_ref: Any, signal: Any) -> None:
    pl.semaphore_signal(signal, 1)
    o_ref[...] = x_ref[...] * 3
    pl.semaphore_wait(signal, 1)


def signalled(x: Any) -> Any:
    """Triple; a semaphore that does not begin with zero would show."""
    scratch = [plgpu.SemaphoreType.REGULAR]
    return plgpu.kernel(signal_body, out_type=like(x), scratch_types=scratch)(x)


@does(lambda x, ref: [ref + x], in_place=True)
def add_into_body(x_ref: Any, ref: Any) -> None:
    ref[...] = ref[...] + x_ref[...]


def with_references(body: Any, *operands: Any, out_type: Any = ()) -> Any:
    """Call a kernel that changes references; with those, JAX 0.10 has `pl.kernel` alone."""
    mesh = plgpu.Mesh(grid=(1,), grid_names=("block",))
    params = plgpu.CompilerParams()
    return pl.kernel(body, out_type=out_type, mesh=mesh, compiler_params=params)(*operands)


def added(start: Any, *more: Any) -> Any:
    """Add to a reference that is passed, once for each array."""
    ref = jax.new_ref(start)
    for x in more:
        with_references(add_into_body, x, ref)
    return ref[...]


def _new_body(*operands: Any) -> Any:
    """Do what either kernel with references does: JAX 0.10 calls all of them so."""
    if len(operands) == 2:
        return KERNELS["add_into_body"][0](*operands)
    return KERNELS["closed_body"][0](*operands)


KERNELS["closed_body"] = (lambda x, y, ref: [x * y, ref + x], True)
KERNELS["new_body"] = (_new_body, True)


def closed_over(start: Any, x: Any, y: Any) -> Any:
    """Add to a reference that the body closes over, and give a product as well."""
    ref = jax.new_ref(start)

    def closed_body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * y_ref[...]
        ref[...] = ref[...] + x_ref[...]

    return with_references(closed_body, x, y, out_type=like(x)), ref[...]


@does(lambda x, y: [x * 3 - y])
def less_body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 3 - y_ref[...]


def aliased(x: Any, y: Any) -> Any:
    """Triple and subtract; the result takes the place of the first operand.

    JAX gives `pl.pallas_call` to Mosaic before 0.11, to Triton from then on.
    """
    call = pl.pallas_call(less_body, out_shape=like(x), input_output_aliases={0: 0})
    return call(x, y)


def aliased_temporary(x: Any, y: Any) -> Any:
    """The same in the memory of a result that nothing else reads."""
    return aliased(increment(x), y)


def aliased_kept(x: Any, y: Any) -> Any:
    """The same in place, and keep what was there."""
    total, difference = pair(x, y)
    return aliased(total, y), total, difference


class Both(NamedTuple):
    """Two results."""

    left: Any
    right: Any


def around(x: Any) -> Any:
    return increment(jnp.sin(increment(x) * 2).T) + 3


def zeroed(x: Any) -> Any:
    return pair(x, jnp.zeros(x.shape, x.dtype))


def transposed_constant(x: Any) -> Any:
    return pair(x, jnp.asarray(np.arange(x.size, dtype=np.float32).reshape(x.shape)).T)[1]


def doubled_twice(x: Any) -> Any:
    return doubled(doubled(x) + 1)


def signalled_twice(x: Any) -> Any:
    return signalled(signalled(x))


def two_references(x: Any, y: Any) -> Any:
    return added(x, y), added(y, x, x)


def aligned_slice(x: Any) -> Any:
    return increment(x[64:])


def misaligned_slice(x: Any) -> Any:
    return pair(x[1:33], x[40:72])


def written_slice(x: Any) -> Any:
    return jnp.zeros((256, *x.shape[1:]), x.dtype).at[128:].set(increment(x))


def slice_of_result(x: Any) -> Any:
    return increment(x)[3:5]


def counted(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, v: increment(v) * 2, x)


def scanned(x: Any, y: Any) -> Any:
    return lax.scan(lambda carry, row: (increment(carry) + row, increment(row)), x, y)


def nested_loops(x: Any, y: Any, z: Any) -> Any:
    def outer(i: Any, v: Any) -> Any:
        return lax.fori_loop(0, 2, lambda j, w: w + increment(y[i]) * increment(z[j]), v)

    return lax.fori_loop(0, 3, outer, x)


def tree(x: Any, more: Any) -> Any:
    first, (second, _) = more["first"], more["rest"]
    return {"b": increment(x), "a": [increment(first), (second * 2, None)], "c": Both(x, first)}


def passed_through(x: Any, y: Any) -> Any:
    return y, increment(x), increment(x)


def scalar(x: Any, s: Any) -> Any:
    return increment(x) * s, s + 1


def empty(x: Any, e: Any) -> Any:
    return increment(x), e * 2


def product(x: Any, y: Any) -> Any:
    return increment(x @ y), (increment(y)).sum(axis=0)


def mapped(x: Any) -> Any:
    return jax.vmap(increment)(x)


def jitted(x: Any) -> Any:
    return jax.jit(doubled)(jax.jit(increment)(x))


@jax.custom_vjp
def weighted(x: Any, y: Any) -> Any:
    return doubled(x) + increment(y)


def _forward(x: Any, y: Any) -> Any:
    return weighted(x, y), (x, y)


def _backward(kept: Any, slope: Any) -> Any:
    x, y = kept
    total, difference = pair(slope * x, slope * y)
    return increment(total), difference


weighted.defvjp(_forward, _backward)


def forward(x: Any, y: Any) -> Any:
    return weighted(x, y)


def backward(x: Any, y: Any, slope: Any) -> Any:
    return jax.vjp(weighted, x, y)[1](slope)


def whole_numbers(x: Any) -> Any:
    return increment(x), increment(increment(x).T)


_M = "f32[128, 128]"
_V = "f32[128]"
CASES: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "around": (around, [_M]),
    "zeroed": (zeroed, [_M]),
    "transposed_constant": (transposed_constant, [_M]),
    "doubled": (doubled, ["f32[64, 128]"]),
    "doubled_twice": (doubled_twice, ["f32[64, 128]"]),
    "signalled_twice": (signalled_twice, [_V]),
    "added_twice": (added, [_M, _M, _M]),
    "two_references": (two_references, [_M, _M]),
    "closed_over": (closed_over, [_M, _M, _M]),
    "aliased_temporary": (aliased_temporary, [_V, _V]),
    "aliased_kept": (aliased_kept, [_V, _V]),
    "aligned_slice": (aligned_slice, [_M]),
    "misaligned_slice": (misaligned_slice, ["f32[128, 32]"]),
    "written_slice": (written_slice, [_M]),
    "slice_of_result": (slice_of_result, [_M]),
    "counted": (counted, [_V]),
    "scanned": (scanned, [_V, "f32[4, 128]"]),
    "nested_loops": (nested_loops, [_V, "f32[3, 128]", "f32[2, 128]"]),
    "tree": (tree, [_M, {"first": _M, "rest": [_M, None]}]),
    "passed_through": (passed_through, [_M, "i32[7]"]),
    "scalar": (scalar, [_M, "f32[]"]),
    "empty": (empty, [_M, "f32[0, 4]"]),
    "product": (product, [_M, _M]),
    "mapped": (mapped, ["f32[3, 256]"]),
    "jitted": (jitted, ["f32[64, 128]"]),
    "forward": (forward, ["f32[64, 128]", "f32[64, 128]"]),
    "backward": (backward, ["f32[64, 128]"] * 3),
    "whole_numbers": (whole_numbers, ["i32[128, 128]"]),
}
"""Cases by name."""

REFERENCES: dict[str, Callable[..., Any]] = {
    "signalled_twice": lambda x: x * 9,
}
"""Right results where JAX's interpreter refuses: it has no semaphores in global memory."""

if jax.__version_info__ < (0, 11):
    # Its interpreter knows no references that are passed: "KeyError: None".
    REFERENCES |= {
        "added_twice": lambda x, y, z: x + y + z,
        "two_references": lambda x, y: (x + y, y + x + x),
        "closed_over": lambda start, x, y: (x * y, start + x),
    }
