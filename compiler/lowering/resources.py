"""Kernel resources and their limits.

Registers, stack, shared memory, and barriers are recorded in the cubin. Spills are not, but they
need a stack frame. So the PTX of a kernel with a frame is assembled again with `-v` and XLA's
options (`-O3`, line information), and the assembler prints the spills.

XLA and Mosaic GPU search for an assembler themselves, and an earlier compilation in this process
may have decided which one they use. So only the cubin itself, which names its tools, is trusted.

Limits: CUDA C++ programming guide, "Technical specifications per compute capability"; a cluster of
more than 8 blocks is not portable, and 16 is the maximum of any GPU.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from pallasc.compiler.lowering.translate import Translation
from pallasc.compiler.toolchain.toolchain import tool_version
from pallasc.errors import CompileError, ToolError
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.cubin import other_maker
from pallasc.specs.artifacts.plan import Launch, LaunchPlan
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import Target


def check_makers(translation: Translation, ptxas: Path, record: Mapping[str, object]) -> None:
    """Check that the assembler made every cubin.

    Args:
        translation: contains the cubins.
        ptxas: the assembler.
        record: the toolchain that the artifact will name.

    Raises:
        ToolError: another tool made a cubin.
    """
    version = str(record.get("ptxas") or tool_version(ptxas))
    launches = [step for step in translation.steps if isinstance(step, Launch)]
    for key, kernel in {step.cubin: step.kernel for step in launches}.items():
        if maker := other_maker(translation.cubin(key).tools, version):
            raise ToolError(
                f"{kernel} was assembled by {maker}, not by ptxas {version}, {ptxas}.",
                hint="An earlier compilation in this process selected it; kernel modules must not "
                "compile on import. Pass isolated=True to pallasc.compile.",
            )


_SPILLS = re.compile(
    r"Function properties for (\S+)\s+"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)


def parse_report(text: str) -> dict[str, tuple[int, ...]]:
    """Return stack, spill stores, and spill loads of each function from the output of `ptxas -v`.

    All are bytes per thread.
    """
    found = _SPILLS.finditer(text.replace("ptxas info    : ", ""))
    return {name: tuple(map(int, sizes)) for name, *sizes in (match.groups() for match in found)}


def kernel_resources(translation: Translation, ptxas: Path, arch: str) -> list[KernelResources]:
    """Return the resources of every launched kernel, in the order of first launch.

    The kernels' PTX is added to the translation's blobs.
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
    stores: int | None = 0
    loads: int | None = 0
    if kernel.stack_bytes:
        report = _assemble(ptx, ptxas, arch) if ptx else {}
        stack, stores, loads = report.get(step.kernel, (None, None, None))
        if stack != kernel.stack_bytes:  # the new code differs, so these are not its spills
            stores = loads = None
    return KernelResources(
        name=step.kernel,
        cubin=step.cubin,
        ptx=digest(ptx) if ptx else None,
        origin=step.origin,
        registers=kernel.registers,
        stack_bytes=kernel.stack_bytes,
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        static_smem_bytes=kernel.static_smem_bytes,
        dynamic_smem_bytes=step.dynamic_smem_bytes,
        barriers=kernel.barriers,
    )


def _assemble(ptx: bytes, ptxas: Path, arch: str) -> dict[str, tuple[int, ...]]:
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
    if blocks > _CLUSTER:
        yield f"a cluster has {blocks} blocks, and GPUs take at most {_CLUSTER}"
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes
    if smem > target.smem_optin_bytes:
        has = target.smem_optin_bytes
        yield f"a block takes {smem} bytes of shared memory, and {target.name} has {has}"
    registers = threads * kernel.registers
    if registers > _REGISTERS:
        yield f"a block takes {registers} registers, and a multiprocessor has {_REGISTERS}"
