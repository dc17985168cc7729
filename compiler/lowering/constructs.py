"""Constructs that cannot be compiled or are compiled wrongly, and hints for JAX's own errors.

If a kernel uses certain instructions on the wrong architecture, LLVM ends the whole process with
"Cannot select: intrinsic …". These instructions are found in the traced function instead, with the
user's own line. Sources for the architectures of each instruction: PTX ISA, "Target ISA Notes" of
`wgmma`, `tcgen05`, `cp.async.bulk`, `setmaxnreg`, `griddepcontrol`, and "Cluster of Cooperative
Thread Arrays".

`docs/coverage.md` lists the constructs of `WRONG_CONSTRUCTS` as "compiled wrongly"; its tests take
the wording from this table.

If the message of an error from JAX or Mosaic does not suggest a fix and has only one possible
cause, the error gets a hint. JAX has no error codes, so errors are recognized by their wording;
`tests/wrong/` has a kernel for each error, which verifies the wording.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from traceback import walk_tb
from types import ModuleType
from typing import Any, NamedTuple

from pallasc.compiler.lowering.diagnose import failed_line, place_of
from pallasc.errors import CompileError, Location, UnsupportedError, message_of
from pallasc.specs.gpus import ARCHITECTURES, Feature, Target
from pallasc.specs.spelling import nearest

_COPIES = ("copy_gmem_to_smem", "copy_smem_to_gmem")
_NEEDS: tuple[tuple[str, str, Feature], ...] = (
    (r".*(tcgen05|tmem).*", "tensor memory ({})", "tcgen05"),
    (r"wgmma.*", "warpgroup matrix instructions ({})", "wgmma"),
    (r"set_max_registers", "{}", "setmaxnreg"),
    (r"griddepcontrol_(wait|launch_dependents)", "{}", "griddepcontrol"),
    (r"(try|query)_cluster_cancel", "{}", "cluster_cancel"),
)
"""Rows: expression for names of primitives, their name in messages, the feature that they need."""


@cache
def need_of(primitive: str, *, copies_use_tma: bool) -> tuple[str, Feature] | None:
    """Return a Pallas primitive's name in messages and the feature that it needs, None for none.

    Args:
        primitive: its name, without the suffix `_p`.
        copies_use_tma: whether asynchronous copies always use TMA (before JAX 0.12).
    """
    name = primitive.removesuffix("_p")
    for pattern, what, feature in _NEEDS:
        if re.fullmatch(pattern, name):
            return what.format(name), feature
    if copies_use_tma and name in (*_COPIES, "async_prefetch"):
        return f"asynchronous copies by TMA ({name})", "tma"
    return None


def check_constructs(jaxpr: Any, target: Target) -> None:
    """Check that no kernel is profiled, and that `target` has all features that kernels use.

    Raises:
        UnsupportedError: a kernel is profiled; the error has the user's line.
        CompileError: a feature is missing; the error has the user's line.
    """
    from jax.experimental.pallas import mosaic_gpu

    copies_use_tma = "tma" not in target.features and not hasattr(mosaic_gpu, "wait_gmem_to_smem")
    seen: list[Any] = []
    for equation in equations(jaxpr):
        seen.append(equation)
        if getattr(equation.params.get("compiler_params"), "profile_space", 0):
            raise UnsupportedError(
                "the kernel is profiled (profile_space), which pallasc does not support",
                location=_last_place(seen),
                hint="Remove profile_space and profile_dir: profile the kernel with JAX on a GPU.",
            )
        need = need_of(equation.primitive.name, copies_use_tma=copies_use_tma)
        if need is None and _has_cluster(equation):
            need = "a cluster of blocks", "clusters"
        if need and need[1] not in target.features:
            rows = (row for row in ARCHITECTURES.values() if row.model and need[1] in row.features)
            having = ", ".join(row.name for row in rows)
            raise CompileError(
                f"the kernel uses {need[0]}, which {target.arch} does not have, only {having}",
                location=_last_place(seen),
            )


def _last_place(equations: Sequence[Any]) -> Location | None:
    # `plgpu.kernel` makes two equations; the second one, inside the first, has no user frames.
    return next(filter(None, map(place_of, reversed(equations))), None)


def _has_cluster(equation: Any) -> bool:
    meshes = [equation.params.get("mesh"), *(equation.params.get("meshes") or ())]
    return any(getattr(mesh, "cluster", ()) for mesh in meshes)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, and of all jaxprs in the parameters of these equations."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_of(equation):
            yield from equations(inner)


def jaxprs_of(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs in the parameters of an equation."""
    for parameter in equation.params.values():
        for value in parameter if isinstance(parameter, list | tuple) else (parameter,):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield inner


_KERNELS = ("mpmd_map", "core_map", "pallas_call")
_STRIDED = re.compile(r"Slice\[\([^()]*, (?!1\))\d+\)")


class CompiledWrongly(UserWarning):
    """The installed JAX compiles a construct of a kernel wrongly."""


class WrongConstruct(NamedTuple):
    """A construct that some versions of JAX compile wrongly.

    Attributes:
        does: the wrong behavior of the compiled kernel.
        instead: code to write instead.
        first: the first affected JAX version; all later ones that pallasc supports are affected.
        is_in: returns True if an equation of a kernel has the construct; the second argument is
            True for `LoweringSemantics.Warpgroup`.
    """

    does: str
    instead: str
    first: tuple[int, int]
    is_in: Callable[[Any, bool], bool]


def _transfers_booleans(equation: Any, is_warpgroup: bool) -> bool:
    """Return True for a load or store of several booleans; single ones are compiled correctly."""
    name, reference = equation.primitive.name, equation.invars[:1]
    value = equation.outvars[:1] if name in ("get", "load") else equation.invars[1:2]
    return (
        name in ("get", "load", "swap", "store")
        and str(getattr(reference[0].aval, "memory_space", "")) == "gmem"
        and str(getattr(reference[0].aval, "dtype", "")) in ("bool", "int1")
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
    _transfers_booleans,
)
STRIDE = WrongConstruct(
    "`stride` is lost: rows that follow each other are copied",
    "Copy row by row, or all rows, and select them afterwards.",
    (0, 10),
    _copies_with_a_stride,
)
COLLECTIVE_PREFETCH = WrongConstruct(
    "`collective_axes` is lost: each block fetches all of it",
    "Prefetch a part in each block, or use LoweringSemantics.Lane.",
    (0, 10),
    _prefetches_together,
)
WRONG_CONSTRUCTS = (BOOLEANS, STRIDE, COLLECTIVE_PREFETCH)


def warn_of_wrong_constructs(jaxpr: Any) -> None:
    """Warn about each construct in the traced function's kernels that JAX compiles wrongly.

    Each construct is reported once, at its first line.
    """
    import jax

    rows = [row for row in WRONG_CONSTRUCTS if row.first <= jax.__version_info__[:2]]
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
        # Even if the kernel's code ignores all warnings.
        warnings.simplefilter("always", CompiledWrongly)
        text = f"in this version of JAX, {row.does}. {row.instead}"
        warnings.warn_explicit(text, CompiledWrongly, place.file, place.line)


# ---- hints for errors

_NO_RULE = "assert rule is not None"
_UNKNOWN_VALUE = "ValueSite("
"""Start of the keys by which Mosaic looks up layouts. For a value in a memory space that it does
not handle, it fails with a `KeyError`. The message is the key, which contains an address."""
_NO_CALL = "JAX 0.11 and newer do not compile pl.pallas_call with Mosaic GPU"


def hint(error: BaseException) -> str | None:
    """Return a hint for a JAX error that does not suggest a fix, None for other errors."""
    text = f"{type(error).__name__}: {message_of(error)}"
    if isinstance(error, AssertionError):
        text += f"\n{failed_line(error)}"
    functions = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
    text += f"\nin {' '.join(functions)}"
    for pattern, known in _hints().items():
        if (match := re.search(pattern, text)) is not None:
            return known.format(**match.groupdict())
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType | type):
        near = nearest(error.name or "", dir(error.obj))
        return f"Did you mean {near!r}?" if near else None
    return None


@cache
def _hints() -> dict[str, str]:
    """Return the hints by their regular expressions."""
    entries = re.findall(r"^(\S.*)\n((?:  .*\n)+)", _HINTS, re.MULTILINE)
    return {pattern: " ".join(hint.split()) for pattern, hint in entries}


def message(error: BaseException) -> str | None:
    """Return a message for an error whose own text is useless to users, None for other errors."""
    if isinstance(error, KeyError) and message_of(error).startswith(_UNKNOWN_VALUE):
        return "Mosaic GPU does not know the layout of a value of this operation"
    is_call = isinstance(error, AssertionError) and failed_line(error) == _NO_RULE
    return _NO_CALL if is_call else None


_HINTS = r"""
assert rule is not None|pallas_call\(\) got an unexpected keyword argument
  Use plgpu.kernel or pl.kernel, and plgpu.emit_pipeline for blocks.
got an unexpected keyword argument 'out_shape'
  This version of JAX calls it out_type.
got an unexpected keyword argument 'scratch_shapes'
  This version of JAX calls it scratch_types.
^AttributeError: .*\b(?P<layout>WGMMA|TCGEN05)_(ROW|COL)\b
  This version of JAX calls it plgpu.Layout.{layout}.reduce(axis).
unbound axis name: (?P<axis>\w+)
  The axes of a kernel are named in grid_names, cluster_names and thread_name; devices are
  declared in the spec: mesh: {{{axis}: 4}}.
(?s)^TracerBoolConversionError.*\nin .*\bfrom_slice\b
  The bounds of a Python slice must be numbers known while tracing: use pl.ds(start, size).
(?s)safe_map\(\) argument.*\nin .*\bcompute_gmem_slice\b
  An index map must return one index for each dimension of its block shape.
^KeyError: ValueSite\(
  Operands of wgmma must be in shared memory: plgpu.copy_gmem_to_smem(x_gmem, x_smem, barrier),
  then plgpu.barrier_wait(barrier).
exceeds available shared memory: smem_bytes=
  Use smaller blocks, fewer pipeline stages (max_concurrent_steps), or smaller scratch_types.
d % t == 0 .*tiled_dims =
  Choose tiles that divide the shape, or pad the array.
Failed to infer a possible set of layouts
  Possible causes: a reduction of one axis needs a tiled operand, as in plgpu.layout_cast(x,
  plgpu.Layout.WGMMA). Both operands need the same layout: leave out layout_casts that are not
  needed, or cast both alike. Arrays need a multiple of 128 elements, of 256 with 4 bits, or of
  512 with 2 bits; pass bool as int8.
(?m)\bmust override$|Differentiation rule for '\w+' not implemented
  JAX cannot differentiate a kernel: write its derivative with jax.custom_vjp.
Only f16 WGMMA supports transposes
  Operands of other widths than 16 bits must have K contiguous: A as [M, K], B as [N, K] with
  plgpu.transpose_ref(b_smem, (1, 0)). Or convert them to bf16.
When WGMMA [lr]hs is passed in as a ref, it must be transformed
  For f16 and bf16: plgpu.SMEM(shape, dtype, transforms=(plgpu.TilingTransform((8, 64)),
  plgpu.SwizzleTransform(128))). wgmma does not multiply 32-bit integers.
'mosaic_gpu\.wgmma' op operand #\d must be 2D memref of A type supported
  wgmma multiplies f16, bf16, f32 (as tf32), 8-bit integers and 8-bit floats: convert the
  operands.
Incompatible FragmentedArray layouts
  Both operands need the same layout: cast them alike with plgpu.layout_cast, or use
  plgpu.LoweringSemantics.Warpgroup, which chooses layouts.
Expected the same number of in_tmem_layouts \(\d+\) as TMEM ref operands
  Read tensor memory with plgpu.async_load_tmem(ref), then plgpu.wait_load_tmem(); write it with
  plgpu.async_store_tmem(ref, value), then plgpu.commit_tmem().
No support for axes yet
  A reduction of one axis needs a tiled layout: cast its operand first, as in
  plgpu.layout_cast(x, plgpu.Layout.WGMMA).
Required reduction scratch size \((?P<bytes>\d+) bytes\)
  Use plgpu.CompilerParams(reduction_scratch_bytes={bytes}) or more.
scratch must be provided when cross-warp reduction is required
  Use plgpu.CompilerParams(reduction_scratch_bytes=2048), or more.
does not access a whole number of complete 32 byte sectors
  Copy through shared memory, or accept slower accesses: optimized=False of plgpu.load and
  plgpu.store.
Failed to synthesize a transfer pattern that avoids bank conflicts
  Give the shared memory transforms=(plgpu.TilingTransform((8, n)), plgpu.SwizzleTransform(128)),
  where n elements are 128 bytes. Or accept slower accesses: optimized=False of plgpu.load and
  plgpu.store.
Only optimized transfers to SMEM supported
  Copy through shared memory, or accept slower accesses: plgpu.load(ref, (), layout=...,
  optimized=False).
Cannot convert from WGStridedFragLayout
  Name the layout where the value is read: plgpu.load(..., layout=...).
\bload\(\) takes 1 positional argument but
  This version of JAX takes no index: plgpu.load(ref.at[index], layout=...).
\bload\(\) missing 1 required positional argument: 'idx'
  This version of JAX takes an index: plgpu.load(ref, (), layout=...) for all of it.
memref<[\dx]+xi[124]> must have a number of elements
  This version of JAX reads no elements smaller than a byte this way: pass them as int8.
Vector length should be a multiple of byte size
  Each of the 128 threads reads whole bytes. Pass bool as int8; use a multiple of 256 elements of
  4 bits, or of 512 elements of 2 bits.
must have a number of elements that is a multiple of 128 \(got
  The 128 threads of a warpgroup share the elements evenly: pad them to a multiple of 128.
(?i)async_?\s?cop\w+ require\w* all GMEM strides except the last one
  TMA reads rows that begin at multiples of 16 bytes: pad the rows, or read without a copy, as in
  x_gmem[...].
number of bits copied along the last dimension to be divisible by 128
  TMA copies multiples of 16 bytes: widen the window, or read without a copy, as in x_gmem[...].
Unimplemented primitive in Pallas Mosaic GPU lowering: dot_general
  Multiply with plgpu.wgmma (Hopper) or plgpu.tcgen05_mma (Blackwell), from shared memory; or
  outside of the kernel.
"""
"""Hints for errors: a line with a regular expression, followed by the indented hint. The expression
matches the error's type and message, the failed line of an assertion, or the names of the functions
in its traceback. `{name}` in a hint is a group of the expression. The first match is used."""
