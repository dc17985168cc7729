"""Kernel resources: their limits, and which allocations use the shared memory.

Registers, stack, shared memory, and barriers are recorded in the cubin. Spills are not, but they
need a stack frame. So the PTX of a kernel with a frame is assembled again with `-v` and XLA's
options (`-O3`, line information), and the assembler prints the spills.

XLA and Mosaic GPU search for an assembler themselves, and an earlier compilation in this process
may have decided which one they use. So only the cubin itself, which names its tools, is trusted.

Limits: CUDA C++ programming guide, "Technical specifications per compute capability"; a cluster of
more than 8 blocks is not portable, and 16 is the maximum of any GPU.

Mosaic lays out dynamic shared memory from the traced kernel alone, before it lowers it
(`_estimate_resources` in `jax/_src/pallas/mosaic_gpu/lowering.py`): arrays of nested `run_scoped`s
follow each other, each aligned to 1024 bytes; arrays of successive branches share memory; then come
barriers of 8 bytes and the address of tensor memory. `recorded_memory` walks the same equations.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pallasc.compiler.lowering import Part, Stack
from pallasc.compiler.lowering.constructs import jaxprs_of
from pallasc.compiler.lowering.diagnose import frames_of, user_stack
from pallasc.compiler.lowering.jax_versions import patched
from pallasc.compiler.lowering.translate import Translation
from pallasc.compiler.toolchain.toolchain import tool_version
from pallasc.errors import CompileError, ToolError
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.cubin import other_maker
from pallasc.specs.artifacts.plan import Launch, LaunchPlan
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import Target

_path_lock = threading.Lock()


@contextlib.contextmanager
def first_on_path(folder: Path) -> Iterator[None]:
    """Temporarily put a folder first on PATH, also for C++ in this process."""
    front = f"{folder}{os.pathsep}"
    with _path_lock:
        os.environ["PATH"] = front + os.environ.get("PATH", "")
    try:
        yield
    finally:
        with _path_lock:
            before, _, after = os.environ.get("PATH", "").partition(front)
            os.environ["PATH"] = before + after


class OtherAssemblerError(ToolError):
    """A kernel was made by an assembler other than the one in the toolchain's record."""


def check_makers(translation: Translation, ptxas: Path, record: Mapping[str, object]) -> None:
    """Check that the assembler made every cubin.

    Args:
        translation: contains the cubins.
        ptxas: the assembler.
        record: the toolchain that the artifact will name.

    Raises:
        OtherAssemblerError: another tool made a cubin.
    """
    version = str(record.get("ptxas") or tool_version(ptxas))
    launches = [step for step in translation.steps if isinstance(step, Launch)]
    for key, kernel in {step.cubin: step.kernel for step in launches}.items():
        if maker := other_maker(translation.cubin(key).tools, version):
            raise OtherAssemblerError(
                f"{kernel} was assembled by {maker}, not by ptxas {version}, {ptxas}.",
                hint="An earlier compilation in this process selected it; kernel modules must not "
                "compile on import.",
            )


@dataclass(frozen=True, slots=True)
class Spills:
    """Stack and spills of a function as `ptxas -v` prints them, in bytes per thread."""

    stack_bytes: int
    store_bytes: int
    load_bytes: int


_SPILLS = re.compile(
    r"Function properties for (?P<name>\S+)\s+"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)


def parse_report(text: str) -> dict[str, Spills]:
    """Return the spills by function from the output of `ptxas -v`."""
    return {
        match["name"]: Spills(int(match["stack"]), int(match["stores"]), int(match["loads"]))
        for match in _SPILLS.finditer(text.replace("ptxas info    : ", ""))
    }


def kernel_resources(translation: Translation, ptxas: Path, arch: str) -> list[KernelResources]:
    """Return the resources of every launched kernel, in the order of first launch.

    PTX is added to the translation's blobs.
    """
    kernels: dict[tuple[str, str], KernelResources] = {}
    for step in translation.steps:
        if isinstance(step, Launch):
            key = (step.cubin, step.kernel)
            kernel = kernels.get(key) or _resources(step, translation, ptxas, arch)
            most = max(kernel.dynamic_smem_bytes, step.dynamic_smem_bytes)
            kernels[key] = replace(kernel, dynamic_smem_bytes=most)
    return list(kernels.values())


def _resources(step: Launch, translation: Translation, ptxas: Path, arch: str) -> KernelResources:
    cubin = translation.cubin(step.cubin)
    kernel = cubin.kernels[step.kernel]
    ptx = cubin.ptx.encode()
    if ptx:
        translation.blobs[digest(ptx)] = ptx
    spills: Spills | None = Spills(0, 0, 0)
    if kernel.stack_bytes:
        spills = _assemble(ptx, ptxas, arch).get(step.kernel) if ptx else None
        if spills and spills.stack_bytes != kernel.stack_bytes:
            spills = None  # the code differs, so its spills are not this kernel's
    return KernelResources(
        name=step.kernel,
        cubin=step.cubin,
        ptx=digest(ptx) if ptx else None,
        origin=step.origin,
        registers=kernel.registers,
        stack_bytes=kernel.stack_bytes,
        spill_store_bytes=spills.store_bytes if spills else None,
        spill_load_bytes=spills.load_bytes if spills else None,
        static_smem_bytes=kernel.static_smem_bytes,
        dynamic_smem_bytes=step.dynamic_smem_bytes,
        barriers=kernel.barriers,
    )


def _assemble(ptx: bytes, ptxas: Path, arch: str) -> dict[str, Spills]:
    """Assemble `ptx` for its report; return an empty dict if that fails."""
    with tempfile.TemporaryDirectory(prefix="pallasc-ptxas-") as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_bytes(ptx)
        options = ["-v", "-O3", "-lineinfo", f"-arch={arch}", "-o", "/dev/null"]
        command: list[str | Path] = [ptxas, *options, source]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_report(answer.stdout + answer.stderr)


_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_THREADS = 1024
_CLUSTER = 16
_REGISTERS = 65536


def check_launches(plan: LaunchPlan, kernels: Iterable[KernelResources], target: Target) -> None:
    """Check every launch of a plan.

    Raises:
        CompileError: a launch needs more than `target` has.
    """
    resources = {(kernel.cubin, kernel.name): kernel for kernel in kernels}
    for step in plan.steps:
        if isinstance(step, Launch):
            problems = _problems(step, resources[step.cubin, step.kernel], target)
            if (problem := next(problems, None)) is not None:
                raise CompileError(f"{step.kernel} cannot be launched: {problem}", kind="launch")


def _problems(launch: Launch, kernel: KernelResources, target: Target) -> Iterator[str]:
    """Yield the reasons why a target cannot launch a kernel."""
    threads, cluster = math.prod(launch.block), launch.cluster or (1, 1, 1)
    blocks = math.prod(cluster)
    if threads > _THREADS:
        yield f"a block has {threads} threads, and CUDA takes at most {_THREADS}"
    for what, sizes, most in (("grid", launch.grid, _GRID), ("block", launch.block, _BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
            yield f"its {what} in 32 bits is {sizes}, and CUDA takes from 1 to {most}"
    if "clusters" not in target.features and blocks > 1:
        yield f"it has clusters, and {target.arch} has none"
    if blocks > _CLUSTER:
        yield f"a cluster has {blocks} blocks, and GPUs take at most {_CLUSTER}"
    if any(size % part for size, part in zip(launch.grid, cluster, strict=True)):
        yield f"its grid {launch.grid} does not divide into clusters of {cluster}"
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes
    if smem > target.smem_optin_bytes:
        has = target.smem_optin_bytes
        yield f"a block takes {smem} bytes of shared memory, and {target.name} has {has}"
    registers = threads * kernel.registers
    if registers > _REGISTERS:
        yield f"a block takes {registers} registers, and a multiprocessor has {_REGISTERS}"


class KernelMemory(NamedTuple):
    """The parts of a kernel's dynamic shared memory; another kernel may have the same name."""

    kernel: str
    parts: tuple[Part, ...]

    @property
    def total_bytes(self) -> int:
        """Total size of all parts."""
        return sum(part.bytes for part in self.parts)


Needs = Mapping[str, tuple[Part, ...]]
"""Memory needed by simultaneous equations: arrays, addresses of tensor memory, barriers by type."""

_ALIGNMENT = 1024
_BARRIER_BYTES, _ADDRESS_BYTES = 8, 4
_MOST_SHOWN = 8
_TOO_MUCH = re.compile(r"exceeds available shared memory|bytes of shared memory, and")
_KERNEL = "_mosaic_gpu_kernel"
"""Follows the function's name in the name of its kernel."""
_ARRAYS, _ADDRESSES = "arrays", "addresses"


def _larger(needs: Iterable[Needs]) -> Needs:
    """Return the needs of successive equations: the largest of each kind."""
    found: dict[str, tuple[Part, ...]] = {}
    for need in needs:
        for kind, parts in need.items():
            found[kind] = max(found.get(kind, ()), parts, key=_aligned_bytes)
    return found


def _together(needs: Iterable[Needs]) -> Needs:
    """Return the needs of nested equations, the outermost first."""
    found: dict[str, tuple[Part, ...]] = {}
    for need in needs:
        for kind, parts in need.items():
            found[kind] = found.get(kind, ()) + parts
    return found


def _aligned_bytes(parts: Iterable[Part]) -> int:
    return sum(_up(part.bytes) for part in parts)


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@contextlib.contextmanager
def recorded_memory() -> Iterator[list[KernelMemory]]:
    """Record the shared memory of the kernels that Mosaic lowers in the context.

    Yields:
        The list that they are added to; a kernel that cannot be analyzed is left out.
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
        # This is only for display, so it must not fail a compilation.
        with contextlib.suppress(Exception):
            needs = _needs(jaxpr, mosaic, context.reduction_scratch_bytes)
            recorded.append(_laid_out(jaxpr, needs, resources.smem_scratch_bytes))
        return resources

    with patched(mosaic, {"_estimate_resources": estimated}):
        yield recorded


def _laid_out(jaxpr: Any, needs: Needs, scratch_bytes: int) -> KernelMemory:
    """Return the parts with their offsets."""
    arrays, addresses = needs.get(_ARRAYS, ()), needs.get(_ADDRESSES, ())
    # Mosaic assigns barriers of one type from the last to the first (`reserve_barrier`).
    barriers = [own[::-1] for kind, own in needs.items() if kind not in (_ARRAYS, _ADDRESSES)]
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
    return KernelMemory(re.sub(r"[^\w.-]", "_", function) + _KERNEL, tuple(parts))


def _needs(jaxpr: Any, mosaic: Any, reduction_bytes: int) -> Needs:
    """Return the needs of the equations of a jaxpr.

    Args:
        jaxpr: the jaxpr.
        mosaic: JAX's module that lowers kernels.
        reduction_bytes: scratch memory of each reduction.
    """
    return _larger(_needs_of(equation, mosaic, reduction_bytes) for equation in jaxpr.eqns)


def _needs_of(equation: Any, mosaic: Any, reduction_bytes: int) -> Needs:
    stack = user_stack(frames_of(equation))
    rule = mosaic._resource_estimators.get(equation.primitive)
    if rule is not None and rule is getattr(mosaic, "_reduce_resource_estimator", None):
        return {_ARRAYS: (Part("reduction", "", "", reduction_bytes, None, stack),)}
    inner = _larger(_needs(each, mosaic, reduction_bytes) for each in jaxprs_of(equation))
    if equation.primitive.name != "run_scoped":
        return inner
    body = equation.params["jaxpr"]
    names = getattr(body.debug_info, "arg_names", None) or itertools.repeat("")
    allocations = (
        _allocation(str(name or ""), variable.aval, mosaic, stack)
        for name, variable in zip(names, body.invars, strict=False)
    )
    return _together([*allocations, inner])


def _allocation(name: str, aval: Any, mosaic: Any, stack: Stack) -> Needs:
    core = mosaic.gpu_core
    if isinstance(aval.dtype, core.BarrierType | core.ClusterBarrierType):
        count = math.prod(aval.shape)
        part = Part("barrier", name, f"[{count}]", count * _BARRIER_BYTES, None, stack)
        return {f"{aval.dtype!r}{aval.shape}": (part,)}
    if aval.memory_space == core.TMEM:
        part = Part("tensor memory address", name, "", _ADDRESS_BYTES, None, stack)
        return {_ADDRESSES: (part,)}
    if aval.memory_space == core.SMEM:
        size = aval.size * mosaic.dtypes.itemsize_bits(aval.dtype) // 8
        return {_ARRAYS: (Part("scratch", name, _type(aval), size, None, stack),)}
    return {}


def _type(aval: Any) -> str:
    from jax import core

    array: Any = core.ShapedArray(aval.shape, aval.dtype)
    return str(array.str_short(short_dtypes=True)).replace(",", ", ")


def who_takes_memory(lower: Callable[[], object], message: str) -> str:
    """List the allocations in shared memory with their sizes, as lines to append to a message.

    Args:
        lower: lowers a function with a kernel that needs too much.
        message: from JAX, or from the check of launches; for other messages "" is returned.
    """
    if not _TOO_MUCH.search(message):
        return ""
    # An error here must not replace the message.
    with recorded_memory() as recorded, contextlib.suppress(Exception):
        lower()
    # The kernel analyzed last is the one that failed.
    parts = sorted(recorded[-1].parts, key=lambda part: -part.bytes) if recorded else []
    return "".join(
        f"\n  {part.bytes:>{len(f'{parts[0].bytes:,}')},} bytes  {_words(part)}"
        for part in parts[:_MOST_SHOWN]
    )


def _words(part: Part) -> str:
    what = "" if part.what == "scratch" else part.what
    place = f"({Path(part.stack[0].file).name}:{part.stack[0].line})" if part.stack else ""
    return " ".join(filter(None, (what, part.name, part.type, place)))
