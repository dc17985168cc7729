"""Constructs of traced kernels that cannot be compiled, or that JAX compiles wrongly.

LLVM ends the whole process with "Cannot select: intrinsic …" where a kernel uses some instructions
on the wrong architecture. They are seen in the traced function, with the user's own line. Which
architecture has what: PTX ISA, "Target ISA Notes" of `wgmma`, `tcgen05`, `cp.async.bulk`,
`setmaxnreg`, `griddepcontrol`, and "Cluster of Cooperative Thread Arrays".

`docs/coverage.md` marks the others as "wrong in JAX"; its tests take their words from this table.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from pallasc.compiler.lowering.diagnose import place_of
from pallasc.errors import CompileError, Location
from pallasc.specs.gpus import ARCHITECTURES, DEFAULT_MODELS, Feature, Target, capability


class Need(NamedTuple):
    """The feature that a primitive of Pallas needs, and the primitive's name in messages."""

    what: str
    feature: Feature

    def refusal(self, target: Target) -> str | None:
        """Return why `target` does not have it, None if it does."""
        if self.feature in target.features:
            return None
        rows = [ARCHITECTURES[capability(arch)] for arch in DEFAULT_MODELS]
        having = [row for row in rows if self.feature in row.features]
        if having == rows[rows.index(having[0]) :]:
            major, minor = having[0].capability
            return f"{self.what}, which GPUs before sm_{major}{minor} do not have ({target.arch})"
        verb = "has" if len(having) == 1 else "have"
        names = ", ".join(row.name for row in having)
        return f"{self.what}, which only {names} {verb}, not {target.arch}"


_COPIES = ("copy_gmem_to_smem", "copy_smem_to_gmem")
_NEEDS: tuple[tuple[str, str, Feature], ...] = (
    (r".*(tcgen05|tmem).*", "tensor memory ({})", "tcgen05"),
    (r"wgmma.*", "warpgroup matrix instructions ({})", "wgmma"),
    (r"set_max_registers", "{}", "setmaxnreg"),
    (r"griddepcontrol_(wait|launch_dependents)", "{}", "griddepcontrol"),
    (r"(try|query)_cluster_cancel", "{}", "cluster_cancel"),
)
"""By a regular expression for the name of a primitive, its name in messages, and the feature."""


def need_of(primitive: str, *, copies_use_tma: bool) -> Need | None:
    """Return the need of the Pallas primitive of this name, None if it needs no feature.

    Args:
        primitive: its name, without a suffix `_p`.
        copies_use_tma: whether asynchronous copies are always by TMA (before JAX 0.12).
    """
    name = primitive.removesuffix("_p")
    for pattern, what, feature in _NEEDS:
        if re.fullmatch(pattern, name):
            return Need(what.format(name), feature)
    if copies_use_tma and name in (*_COPIES, "async_prefetch"):
        return Need(f"asynchronous copies by TMA ({name})", "tma")
    return None


def check_instructions(jaxpr: Any, target: Target) -> None:
    """Check that `target` has what the traced function uses.

    Raises:
        CompileError: it does not; with the user's line.
    """
    from jax.experimental.pallas import mosaic_gpu

    copies_use_tma = "tma" not in target.features and not hasattr(mosaic_gpu, "wait_gmem_to_smem")
    for equation in equations(jaxpr):
        need = need_of(equation.primitive.name, copies_use_tma=copies_use_tma)
        if need is None and _has_cluster(equation):
            need = Need("a cluster of blocks", "clusters")
        if need and (refusal := need.refusal(target)):
            raise CompileError(f"the kernel uses {refusal}", location=place_of(equation))


def _has_cluster(equation: Any) -> bool:
    """Return True if an equation launches a kernel on a mesh with a cluster."""
    meshes = [equation.params.get("mesh"), *(equation.params.get("meshes") or ())]
    return any(getattr(mesh, "cluster", ()) for mesh in meshes)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr and of those inside their parameters."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_of(equation):
            yield from equations(inner)


def jaxprs_of(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    for parameter in equation.params.values():
        for value in parameter if isinstance(parameter, list | tuple) else (parameter,):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield inner


_KERNELS = ("mpmd_map", "core_map", "pallas_call")
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
            for inner in jaxprs_of(kernel):
                yield from ((equation, is_warpgroup) for equation in equations(inner))


def _warn(row: WrongConstruct, equation: Any) -> None:
    place = place_of(equation) or Location("<kernel>")
    with warnings.catch_warnings():
        warnings.simplefilter("always", CompiledWrongly)  # also where the kernel's code ignores all
        text = f"in this version of JAX, {row.does}. {row.instead}"
        warnings.warn_explicit(text, CompiledWrongly, place.file, place.line)
