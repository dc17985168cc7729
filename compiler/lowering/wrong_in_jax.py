"""Constructs that JAX compiles into something else than the kernel asks for, found while lowering.

`docs/coverage.md` marks them as "wrong in JAX"; its tests take their words from this table.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pallasc.compiler.lowering.diagnose import user_place
from pallasc.compiler.lowering.instructions import equations

_KERNELS = ("mpmd_map", "core_map", "pallas_call")
_COPIES = ("copy_gmem_to_smem", "copy_smem_to_gmem")
_STRIDED = re.compile(r"Slice\[\([^()]*, (?!1\))\d+\)")


class CompiledWrongly(UserWarning):
    """The JAX in use compiles a construct of a kernel wrongly."""


class WrongConstruct(NamedTuple):
    """A construct that some versions of JAX compile wrongly.

    Attributes:
        does: what the compiled kernel does instead.
        instead: what to write.
        first, last: the versions of JAX that do so; later ones are unknown.
        is_in: returns True for an equation of a kernel that has it; the flag is true for
            `LoweringSemantics.Warpgroup`.
    """

    does: str
    instead: str
    first: tuple[int, int]
    last: tuple[int, int]
    is_in: Callable[[Any, bool], bool]

    def concerns(self, version: tuple[int, ...]) -> bool:
        """Return True if this version of JAX compiles it wrongly."""
        return self.first <= version[:2] <= self.last


def _transfers_booleans(equation: Any, is_warpgroup: bool) -> bool:
    """Return True for a load or store of several booleans; single ones are right."""
    name, reference = equation.primitive.name, equation.invars[:1]
    value = equation.outvars[:1] if name in ("get", "load") else equation.invars[1:2]
    return (
        name in ("get", "load", "swap", "store")
        and str(getattr(reference[0].aval, "memory_space", "")) == "gmem"
        and str(getattr(reference[0].aval, "dtype", "")) == "bool"
        and bool(getattr(value[0].aval, "shape", ()))
    )


def _copies_with_a_stride(equation: Any, is_warpgroup: bool) -> bool:
    trees = [str(p) for name, p in equation.params.items() if name.endswith("transforms_treedef")]
    is_copy = is_warpgroup and equation.primitive.name in _COPIES
    return is_copy and any(map(_STRIDED.search, trees))


def _prefetches_together(equation: Any, is_warpgroup: bool) -> bool:
    is_prefetch = is_warpgroup and equation.primitive.name == "async_prefetch"
    return is_prefetch and bool(equation.params.get("collective_axes"))


BOOLEANS = WrongConstruct(
    "boolean arrays are read and written as bits, where XLA keeps a byte for each element",
    "Pass them as int8: read x_ref[...] != 0, and write value.astype(jnp.int8).",
    (0, 11),
    (0, 12),
    _transfers_booleans,
)
STRIDE = WrongConstruct(
    "`stride` is lost: rows that follow each other are copied",
    "Copy row by row, or all rows, and select them afterwards.",
    (0, 10),
    (0, 12),
    _copies_with_a_stride,
)
COLLECTIVE_PREFETCH = WrongConstruct(
    "`collective_axes` is lost: each block fetches all of it",
    "Prefetch a part in each block, or use LoweringSemantics.Lane.",
    (0, 10),
    (0, 12),
    _prefetches_together,
)
WRONG_CONSTRUCTS = (BOOLEANS, STRIDE, COLLECTIVE_PREFETCH)


def warn_of_wrong_constructs(jaxpr: Any) -> None:
    """Warn about each construct of the kernels in a traced function that JAX compiles wrongly.

    Each is named once, at the first line that has it.
    """
    import jax

    rows = [row for row in WRONG_CONSTRUCTS if row.concerns(jax.__version_info__)]
    for equation, is_warpgroup in _kernel_equations(jaxpr):
        for row in [row for row in rows if row.is_in(equation, is_warpgroup)]:
            rows.remove(row)
            _warn(row, equation)


def _kernel_equations(jaxpr: Any) -> Iterator[tuple[Any, bool]]:
    from jax.experimental.pallas import mosaic_gpu

    default = mosaic_gpu.CompilerParams().lowering_semantics
    for kernel in equations(jaxpr):
        if kernel.primitive.name in _KERNELS:
            parameters = kernel.params.get("compiler_params")
            semantics = getattr(parameters, "lowering_semantics", default)
            is_warpgroup = semantics == mosaic_gpu.LoweringSemantics.Warpgroup
            for parameter in kernel.params.values():
                for inner in parameter if isinstance(parameter, list | tuple) else (parameter,):
                    yield from ((equation, is_warpgroup) for equation in equations(inner))


def _warn(row: WrongConstruct, equation: Any) -> None:
    stack = getattr(equation.source_info.traceback, "frames", ())
    place = user_place([(frame.file_name, frame.line_num) for frame in stack])
    file, line = (place.file, place.line) if place else ("<kernel>", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always", CompiledWrongly)  # also where the kernel's code ignores all
        text = f"this version of JAX compiles it wrongly: {row.does}. {row.instead}"
        warnings.warn_explicit(text, CompiledWrongly, file, line)
