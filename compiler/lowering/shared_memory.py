"""Shared memory of a Mosaic kernel: what takes how many bytes, and where it is declared.

Mosaic lays out dynamic shared memory by the traced kernel alone, before it lowers it
(`_estimate_resources` in `jax/_src/pallas/mosaic_gpu/lowering.py`): arrays of nested `run_scoped`s
follow each other, each aligned to 1024 bytes; those of branches that follow each other share
memory; then come barriers of 8 bytes and the address of tensor memory. This walks the same
equations.

The equation that allocates (`run_scoped`) is often one of JAX's own: `plgpu.kernel` makes it of
`scratch_types`. So the call of each declaration, such as `plgpu.SMEM(…)`, is recorded, and found by
the type that the traced kernel has for it. A declaration made while a module was imported has no
place; the equation's line is shown instead.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pallasc.compiler.lowering.diagnose import user_stack
from pallasc.compiler.lowering.jax_versions import patched
from pallasc.errors import Location


@dataclass(frozen=True, slots=True)
class Part:
    """An allocation in the shared memory of a block; see `specs/artifacts/source_lines.py`."""

    what: str
    name: str
    type: str
    bytes: int
    offset: int | None = None
    stack: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """The parts of the dynamic shared memory of a kernel, which may share its name with another."""

    kernel: str
    parts: tuple[Part, ...]

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(part.bytes for part in self.parts)


_DECLARATIONS = ("GPUMemoryRef", "RefUnion", "Barrier", "ClusterBarrier")
_TO_CALLER = 2
"""Frames from a method that replaces another one to what calls it: its own and `patched`'s."""
_uses = itertools.count()
Stack = tuple[Location, ...]


class Declarations:
    """The user's frames that declared memory, the innermost first."""

    def __init__(self) -> None:
        # With the object itself, whose number would else be another one's later.
        self._stacks: dict[int, tuple[object, Stack]] = {}

    def add(self, declared: object, stack: Stack) -> None:
        """Remember where something was declared."""
        self._stacks[id(declared)] = declared, stack

    def stack(self, declared: object) -> Stack:
        """Return where a declaration, or a type made of it, was declared; () if not known."""
        return self._stacks.get(id(declared), (None, ()))[1]


@contextlib.contextmanager
def recorded_declarations() -> Iterator[Declarations]:
    """Record what is declared meanwhile. Functions that JAX has traced before are traced again."""
    from jax._src import config

    core: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    found = Declarations()
    with contextlib.ExitStack() as stack:
        # Part of the key of what was traced. It shortens names of files; this one matches none.
        setting = getattr(config, "hlo_source_file_canonicalization_regex", None)
        if setting is not None:
            stack.enter_context(setting(f"(?!){next(_uses)}"))
        for kind in filter(None, (getattr(core, name, None) for name in _DECLARATIONS)):
            methods = {
                "__init__": _remembering(kind.__init__, found),
                "get_ref_aval": _handing_on(kind.get_ref_aval, found),
            }
            own = {method: each for method, each in methods.items() if method in vars(kind)}
            stack.enter_context(patched(kind, own))
        yield found


def _remembering(init: Callable[..., None], found: Declarations) -> Callable[..., None]:
    def remembered(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        walked = traceback.walk_stack(sys._getframe(_TO_CALLER))
        found.add(self, user_stack([(f.f_code.co_filename, line, 0) for f, line in walked]))

    return remembered


def _handing_on(get_type: Callable[[Any], Any], found: Declarations) -> Callable[[Any], Any]:
    def handed_on(self: Any) -> Any:
        made = get_type(self)
        # Transforms, as of a swizzle, lie around the type that is allocated.
        found.add(getattr(made, "ref", made), found.stack(self))
        return made

    return handed_on


_ALIGNMENT = 1024
_BARRIER_BYTES, _ADDRESS_BYTES = 8, 4
_LONGEST_NAME = 40
_MOST_SHOWN = 8
_TOO_MUCH = re.compile(r"exceeds available shared memory|bytes of shared memory, and")
_NOT_IN_NAMES = re.compile(r"[^\w.-]")
_KERNEL = "_mosaic_gpu_kernel"
"""Behind the function's name in that of its kernel."""


class _Needs(NamedTuple):
    """What equations need at the same time: arrays in order, barriers by kind, tensor memory."""

    arrays: tuple[Part, ...] = ()
    barriers: Mapping[str, tuple[Part, ...]] = {}
    addresses: tuple[Part, ...] = ()

    def either(self, other: _Needs) -> _Needs:
        """Return what both need that follow each other."""
        kinds = {**self.barriers, **other.barriers}
        return _Needs(
            max(self.arrays, other.arrays, key=_aligned),
            {k: max(self.barriers.get(k, ()), other.barriers.get(k, ()), key=len) for k in kinds},
            max(self.addresses, other.addresses, key=len),
        )

    def both(self, inner: _Needs) -> _Needs:
        """Return what both need, one inside of the other."""
        kinds = {**self.barriers, **inner.barriers}
        return _Needs(
            self.arrays + inner.arrays,
            {k: self.barriers.get(k, ()) + inner.barriers.get(k, ()) for k in kinds},
            self.addresses + inner.addresses,
        )


@contextlib.contextmanager
def recorded_memory() -> Iterator[list[KernelMemory]]:
    """Record the shared memory of the kernels that Mosaic lowers meanwhile.

    Yields:
        The list that they are added to; a kernel that cannot be understood is left out.
    """
    mosaic: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    estimate = mosaic._estimate_resources
    recorded: list[KernelMemory] = []
    inside = [False]

    def estimated(context: Any, jaxpr: Any) -> Any:
        if inside[0]:
            return estimate(context, jaxpr)
        inside[0] = True
        try:
            resources = estimate(context, jaxpr)
        finally:
            inside[0] = False
        # What is only shown must not fail a compilation.
        with contextlib.suppress(Exception):
            needs = _Walk(mosaic, context, declarations).needs(jaxpr)
            recorded.append(_laid_out(jaxpr, needs, resources.smem_scratch_bytes))
        return resources

    with (
        recorded_declarations() as declarations,
        patched(mosaic, {"_estimate_resources": estimated}),
    ):
        yield recorded


def _laid_out(jaxpr: Any, needs: _Needs, scratch_bytes: int) -> KernelMemory:
    """Return the parts with their offsets."""
    parts, offset = [], 0
    for array in needs.arrays:
        parts.append(replace(array, offset=offset))
        offset = _up(offset + array.bytes)
    padding = sum(_up(array.bytes) - array.bytes for array in needs.arrays)
    other = scratch_bytes - offset
    offset = scratch_bytes
    for part in (*(p for parts in needs.barriers.values() for p in parts), *needs.addresses[:1]):
        parts.append(replace(part, offset=offset))
        offset += part.bytes
    parts += [Part("alignment", "", "", padding)] if padding else []
    parts += [Part("other", "", "", other)] if other > 0 else []
    function = str(getattr(jaxpr.debug_info, "func_name", ""))
    return KernelMemory(_NOT_IN_NAMES.sub("_", function) + _KERNEL, tuple(parts))


class _Walk:
    """Walks the equations of a kernel.

    Args:
        mosaic: JAX's module that lowers kernels.
        context: what it estimates resources with.
        declarations: where its memory is declared.
    """

    def __init__(self, mosaic: Any, context: Any, declarations: Declarations) -> None:
        self._mosaic, self._context, self._declarations = mosaic, context, declarations
        reduces = getattr(mosaic, "_reduce_resource_estimator", None)
        rules = mosaic._resource_estimators
        self._reductions = {kind for kind, rule in rules.items() if rule is reduces}

    def needs(self, jaxpr: Any) -> _Needs:
        """Return what a jaxpr needs at most."""
        found = _Needs()
        for equation in jaxpr.eqns:
            found = found.either(self._needs_of(equation))
        return found

    def _needs_of(self, equation: Any) -> _Needs:
        stack = _stack(equation)
        if equation.primitive in self._reductions:
            scratch = self._context.reduction_scratch_bytes
            return _Needs((Part("reduction", "", "", scratch, None, stack),))
        inner = _Needs()
        for jaxpr in _jaxprs(equation.params.values()):
            inner = inner.either(self.needs(jaxpr))
        if equation.primitive.name != "run_scoped":
            return inner
        body = equation.params["jaxpr"]
        own = _Needs()
        for name, variable in zip(_names(body), body.invars, strict=True):
            own = own.both(self._allocation(name, variable.aval, stack))
        return own.both(inner)

    def _allocation(self, name: str, aval: Any, stack: tuple[Location, ...]) -> _Needs:
        core = self._mosaic.gpu_core
        stack = self._declarations.stack(aval) or stack
        if isinstance(aval.dtype, core.BarrierType | core.ClusterBarrierType):
            count = math.prod(aval.shape)
            size = count * _BARRIER_BYTES
            part = Part("barrier", name, f"[{count}]", size, None, stack)
            return _Needs(barriers={f"{aval.dtype!r}{aval.shape}": (part,)})
        if aval.memory_space == core.TMEM:
            part = Part("tensor memory address", name, "", _ADDRESS_BYTES, None, stack)
            return _Needs(addresses=(part,))
        if aval.memory_space == core.SMEM:
            size = aval.size * self._mosaic.dtypes.itemsize_bits(aval.dtype) // 8
            return _Needs((Part("scratch", name, _type(aval), size, None, stack),))
        return _Needs()


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _aligned(arrays: tuple[Part, ...]) -> int:
    return sum(_up(array.bytes) for array in arrays)


def _jaxprs(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _jaxprs(value)
        elif hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr"):
            yield value.jaxpr


def _names(jaxpr: Any) -> list[str]:
    """Return the names of a jaxpr's parameters, "" where they have none."""
    told = getattr(jaxpr.debug_info, "arg_names", None) or ()
    names = [str(name or "")[:_LONGEST_NAME] for name in told]
    return names if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)


def _type(aval: Any) -> str:
    from jax import core

    array: Any = core.ShapedArray(aval.shape, aval.dtype)
    return str(array.str_short(short_dtypes=True)).replace(",", ", ")


def _stack(equation: Any) -> tuple[Location, ...]:
    """Return the user's frames that made an equation, the innermost first."""
    traceback = getattr(equation.source_info, "traceback", None)
    frames = getattr(traceback, "frames", ())
    return user_stack([(each.file_name, each.line_num, 0) for each in frames])


def who_takes_memory(lower: Callable[[], object], message: str) -> str:
    """Return who takes how many bytes of shared memory, as lines behind a message.

    Args:
        lower: lowers a function that has a kernel which takes too much.
        message: what JAX, or the check of launches, says of it; "" is returned for other messages.
    """
    if not _TOO_MUCH.search(message):
        return ""
    # Whatever fails here must not take the place of the message.
    with contextlib.suppress(Exception):
        with recorded_memory() as recorded, contextlib.suppress(Exception):
            lower()
        # The last one that was looked at is the one that failed.
        return "".join(f"\n  {line}" for line in _listed(recorded[-1])) if recorded else ""
    return ""


def _listed(memory: KernelMemory) -> Iterator[str]:
    shown = sorted(memory.parts, key=lambda part: -part.bytes)
    width = max(len(f"{part.bytes:,}") for part in shown) if shown else 0
    for part in shown[:_MOST_SHOWN]:
        place = f" ({Path(part.stack[0].file).name}:{part.stack[0].line})" if part.stack else ""
        yield f"{part.bytes:>{width},} bytes  {_words(part)}{place}"
    if rest := shown[_MOST_SHOWN:]:
        yield f"{sum(part.bytes for part in rest):>{width},} bytes  {len(rest)} smaller ones"


def _words(part: Part) -> str:
    what = "" if part.what == "scratch" else part.what
    return " ".join(filter(None, (what, part.name, part.type)))
