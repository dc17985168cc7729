"""The resources of each kernel: from its cubin, and spills from the assembler's report.

Registers, stack, shared memory and barriers are in the cubin. Spills are not, but they live in the
stack frame: without a frame there are none. With a frame, the assembler's warnings tell them; where
there are no warnings, the kernel's PTX is assembled once more with `-v` and XLA's options (`-O3`,
line information).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from pallasc.compiler.executable.translate import Translation
from pallasc.compiler.lowering.ptxas_reports import Reports
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.cubin import parse_cubin
from pallasc.specs.artifacts.plan import Launch
from pallasc.specs.canonical import digest

_SPILLS = re.compile(
    r"Function properties for (?P<name>\S+)\s+"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)

_SPILLED = re.compile(
    r"Registers are spilled to local memory in function '(?P<name>[^']+)', "
    r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
)
"""A warning of `ptxas --warn-on-spills`."""


@dataclass(frozen=True, slots=True)
class Spills:
    """What `ptxas -v` prints about a function, in bytes per thread."""

    stack_bytes: int
    store_bytes: int
    load_bytes: int


def parse_report(text: str) -> dict[str, Spills]:
    """Return the spills by function from the output of `ptxas -v`."""
    return {
        match["name"]: Spills(int(match["stack"]), int(match["stores"]), int(match["loads"]))
        for match in _SPILLS.finditer(text.replace("ptxas info    : ", ""))
    }


def parse_warnings(text: str, name: str, stack_bytes: int) -> Spills:
    """Return the spills of a function; `ptxas --warn-on-spills` names only functions that spill."""
    spills = next((match for match in _SPILLED.finditer(text) if match["name"] == name), None)
    stores, loads = (int(spills["stores"]), int(spills["loads"])) if spills else (0, 0)
    return Spills(stack_bytes, stores, loads)


def kernel_resources(
    translation: Translation, ptxas: Path, arch: str, reports: Reports | None = None
) -> list[KernelResources]:
    """Return the resources of every kernel that is launched, in the order of first launch.

    PTX is added to the translation's blobs.
    """
    kernels: dict[tuple[str, str], KernelResources] = {}
    for step in translation.steps:
        if isinstance(step, Launch):
            key = (step.cubin, step.kernel)
            kernel = kernels.get(key) or _resources(step, translation, ptxas, arch, reports)
            most = max(kernel.dynamic_smem_bytes, step.dynamic_smem_bytes)
            kernels[key] = replace(kernel, dynamic_smem_bytes=most)
    return list(kernels.values())


def _resources(
    step: Launch, translation: Translation, ptxas: Path, arch: str, reports: Reports | None
) -> KernelResources:
    cubin = parse_cubin(translation.blobs[step.cubin])
    kernel = cubin.kernels[step.kernel]
    ptx = cubin.ptx.encode()
    spills: Spills | None = Spills(0, 0, 0)
    if kernel.stack_bytes:
        report = reports.of(translation.blobs[step.cubin]) if reports and ptx else None
        if report is not None:
            spills = parse_warnings(report, step.kernel, kernel.stack_bytes)
        else:
            spills = _assemble(ptx, ptxas, arch).get(step.kernel) if ptx else None
        if spills and spills.stack_bytes != kernel.stack_bytes:
            spills = None  # the code differs, so its spills are not this kernel's
    if ptx:
        translation.blobs[digest(ptx)] = ptx
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
    """Assemble `ptx` for its report; empty where that fails."""
    with tempfile.TemporaryDirectory(prefix="pallasc-ptxas-") as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_bytes(ptx)
        options = ["-v", "-O3", "-lineinfo", f"-arch={arch}", "-o", "/dev/null"]
        command: list[str | Path] = [ptxas, *options, source]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_report(answer.stdout + answer.stderr)
