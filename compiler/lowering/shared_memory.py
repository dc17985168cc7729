"""Shared memory of a Mosaic kernel: what takes how many bytes, and where it is declared.

Mosaic lays out dynamic shared memory by the traced kernel alone, before it lowers it
(`_estimate_resources` in `jax/_src/pallas/mosaic_gpu/lowering.py`): arrays of nested `run_scoped`s
follow each other, each aligned to 1024 bytes; arrays of branches that follow each other share
memory; then come barriers of 8 bytes and the address of tensor memory. This walks the same
equations.

The equation that allocates (`run_scoped`) is often one of JAX's own: `plgpu.kernel` makes it of
`scratch_types`. So the call of each declaration, such as `plgpu.SMEM(…)`, is recorded, and found by
the type that the traced kernel has for it. A declaration made while a module was imported has no
place; the equation's line is shown instead.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pallasc.compiler.lowering.constructs import jaxprs_of
from pallasc.compiler.lowering.diagnose import frames_of, user_stack
from pallasc.compiler.lowering.jax_versions import patched
from pallasc.errors import Location

Stack = tuple[Location, ...]
"""The user's frames, the innermost first."""


@dataclass(frozen=True, slots=True)
class Part:
    """An allocation in the shared memory of a block; see `specs/artifacts/source_lines.py`."""

    what: str
    name: str
    type: str
    bytes: int
    offset: int | None = None
    stack: Stack = ()


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
"""Frames from a method that replaces another one to its caller: its own and `patched`'s."""
_uses = itertools.count()
Stacks = dict[int, tuple[object, Stack]]
"""The stacks that declared memory by the `id` of a declaration, or of the type made of it; with the
object itself, so that no other object gets its `id`."""
Needs = Mapping[str, tuple[Part, ...]]
"""Memory for equations at the same time: arrays, addresses of tensor memory, barriers by type."""
_NOTHING: Needs = {}


@contextlib.contextmanager
def _recorded_declarations() -> Iterator[Stacks]:
    """Record what is declared meanwhile. Functions that JAX has traced before are traced again."""
    from jax._src import config

    core: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.core")
    stacks: Stacks = {}
    with contextlib.ExitStack() as exits:
        # Part of the key of what was traced. It shortens names of files; this one matches none.
        setting = getattr(config, "hlo_source_file_canonicalization_regex", None)
        if setting is not None:
            exits.enter_context(setting(f"(?!){next(_uses)}"))
        for kind in filter(None, (getattr(core, name, None) for name in _DECLARATIONS)):
            own = {}
            if (init := vars(kind).get("__init__")) is not None:
                own["__init__"] = functools.partial(_recorded_init, init, stacks)
            if (get_type := vars(kind).get("get_ref_aval")) is not None:
                own["get_ref_aval"] = functools.partial(_recorded_type, get_type, stacks)
            exits.enter_context(patched(kind, own))
        yield stacks


def _recorded_init(
    init: Callable[..., None], stacks: Stacks, self: Any, *args: Any, **kwargs: Any
) -> None:
    init(self, *args, **kwargs)
    walked = traceback.walk_stack(sys._getframe(_TO_CALLER))
    frames = [Location(frame.f_code.co_filename, line) for frame, line in walked]
    stacks[id(self)] = self, user_stack(frames)


def _recorded_type(get_type: Callable[[Any], Any], stacks: Stacks, self: Any) -> Any:
    made = get_type(self)
    allocated = getattr(made, "ref", made)  # transforms, as of a swizzle, are around it
    stacks[id(allocated)] = allocated, stacks.get(id(self), (self, ()))[1]
    return made


_ALIGNMENT = 1024
_BARRIER_BYTES, _ADDRESS_BYTES = 8, 4
_LONGEST_NAME = 40
_MOST_SHOWN = 8
_TOO_MUCH = re.compile(r"exceeds available shared memory|bytes of shared memory, and")
_NOT_IN_NAMES = re.compile(r"[^\w.-]")
_KERNEL = "_mosaic_gpu_kernel"
"""Follows the function's name in the name of its kernel."""
_ARRAYS, _ADDRESSES = "arrays", "addresses"


def _either(one: Needs, other: Needs) -> Needs:
    """Return the needs of two that follow each other: of each kind the larger."""
    kinds = {**one, **other}
    return {k: max(one.get(k, ()), other.get(k, ()), key=_aligned_bytes) for k in kinds}


def _both(outer: Needs, inner: Needs) -> Needs:
    """Return the needs of two of which one is inside the other."""
    return {k: outer.get(k, ()) + inner.get(k, ()) for k in {**outer, **inner}}


def _aligned_bytes(parts: Iterable[Part]) -> int:
    return sum(_up(part.bytes) for part in parts)


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@contextlib.contextmanager
def recorded_memory() -> Iterator[list[KernelMemory]]:
    """Record the shared memory of the kernels that Mosaic lowers meanwhile.

    Yields:
        The list that they are added to; a kernel that cannot be understood is left out.
    """
    mosaic: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    estimate = mosaic._estimate_resources
    recorded: list[KernelMemory] = []
    inside = False

    def estimated(context: Any, jaxpr: Any) -> Any:
        nonlocal inside
        if inside:
            return estimate(context, jaxpr)
        inside = True
        try:
            resources = estimate(context, jaxpr)
        finally:
            inside = False
        # What is only shown must not fail a compilation.
        with contextlib.suppress(Exception):
            needs = _Walk(mosaic, context, stacks).needs(jaxpr)
            recorded.append(_laid_out(jaxpr, needs, resources.smem_scratch_bytes))
        return resources

    with (
        _recorded_declarations() as stacks,
        patched(mosaic, {"_estimate_resources": estimated}),
    ):
        yield recorded


def _laid_out(jaxpr: Any, needs: Needs, scratch_bytes: int) -> KernelMemory:
    """Return the parts with their offsets."""
    arrays, addresses = needs.get(_ARRAYS, ()), needs.get(_ADDRESSES, ())
    barriers = [parts for kind, parts in needs.items() if kind not in (_ARRAYS, _ADDRESSES)]
    parts, offset = [], 0
    for array in arrays:
        parts.append(replace(array, offset=offset))
        offset += _up(array.bytes)
    other, padding = scratch_bytes - offset, offset - sum(array.bytes for array in arrays)
    offset = scratch_bytes
    for part in (*itertools.chain(*barriers), *addresses[:1]):
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
        stacks: where memory is declared.
    """

    def __init__(self, mosaic: Any, context: Any, stacks: Stacks) -> None:
        self._mosaic, self._context, self._stacks = mosaic, context, stacks
        reduces = getattr(mosaic, "_reduce_resource_estimator", None)
        rules = mosaic._resource_estimators
        self._reductions = {kind for kind, rule in rules.items() if rule is reduces}

    def needs(self, jaxpr: Any) -> Needs:
        """Return the most that the equations of a jaxpr need."""
        return functools.reduce(_either, map(self._needs_of, jaxpr.eqns), _NOTHING)

    def _needs_of(self, equation: Any) -> Needs:
        stack = user_stack(frames_of(equation))
        if equation.primitive in self._reductions:
            scratch = self._context.reduction_scratch_bytes
            return {_ARRAYS: (Part("reduction", "", "", scratch, None, stack),)}
        inner = functools.reduce(_either, map(self.needs, jaxprs_of(equation)), _NOTHING)
        if equation.primitive.name != "run_scoped":
            return inner
        body = equation.params["jaxpr"]
        pairs = zip(_names(body), body.invars, strict=True)
        own = (self._allocation(name, variable.aval, stack) for name, variable in pairs)
        return _both(functools.reduce(_both, own, _NOTHING), inner)

    def _allocation(self, name: str, aval: Any, stack: Stack) -> Needs:
        core = self._mosaic.gpu_core
        stack = self._stacks.get(id(aval), (aval, ()))[1] or stack
        if isinstance(aval.dtype, core.BarrierType | core.ClusterBarrierType):
            count = math.prod(aval.shape)
            size = count * _BARRIER_BYTES
            part = Part("barrier", name, f"[{count}]", size, None, stack)
            return {f"{aval.dtype!r}{aval.shape}": (part,)}
        if aval.memory_space == core.TMEM:
            part = Part("tensor memory address", name, "", _ADDRESS_BYTES, None, stack)
            return {_ADDRESSES: (part,)}
        if aval.memory_space == core.SMEM:
            size = aval.size * self._mosaic.dtypes.itemsize_bits(aval.dtype) // 8
            return {_ARRAYS: (Part("scratch", name, _type(aval), size, None, stack),)}
        return {}


def _names(jaxpr: Any) -> list[str]:
    """Return the names of a jaxpr's parameters, "" where they have none."""
    known = getattr(jaxpr.debug_info, "arg_names", None) or ()
    names = [str(name or "")[:_LONGEST_NAME] for name in known]
    return names if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)


def _type(aval: Any) -> str:
    from jax import core

    array: Any = core.ShapedArray(aval.shape, aval.dtype)
    return str(array.str_short(short_dtypes=True)).replace(",", ", ")


def who_takes_memory(lower: Callable[[], object], message: str) -> str:
    """Return who takes how many bytes of shared memory, as lines to append to a message.

    Args:
        lower: lowers a function that has a kernel which takes too much.
        message: from JAX, or from the check of launches; "" is returned for other messages.
    """
    if not _TOO_MUCH.search(message):
        return ""
    # Whatever fails here must not replace the message.
    with contextlib.suppress(Exception):
        with recorded_memory() as recorded, contextlib.suppress(Exception):
            lower()
        # The last one that was looked at is the one that failed.
        return "".join(f"\n  {line}" for line in _listed(recorded[-1])) if recorded else ""
    return ""


def _listed(memory: KernelMemory) -> Iterator[str]:
    shown = sorted(memory.parts, key=lambda part: -part.bytes)
    width = max((len(f"{part.bytes:,}") for part in shown), default=0)
    for part in shown[:_MOST_SHOWN]:
        what = "" if part.what == "scratch" else part.what
        words = " ".join(filter(None, (what, part.name, part.type)))
        place = f" ({Path(part.stack[0].file).name}:{part.stack[0].line})" if part.stack else ""
        yield f"{part.bytes:>{width},} bytes  {words}{place}"
    if rest := shown[_MOST_SHOWN:]:
        yield f"{sum(part.bytes for part in rest):>{width},} bytes  {len(rest)} smaller ones"
