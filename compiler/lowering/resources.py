"""What each kernel takes: from its cubin, and where it spills from the assembler's report.

Registers, stack, shared memory and barriers stand in the cubin. Spills do not, but they live in the
stack frame: without one there are none. With one, what the assembler said when it made the cubin
has them; where that was not heard, the kernel's PTX is assembled once more with `-v` (its options
are those of XLA: `-O3`, line information).
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
"""What `--warn-on-spills` makes ptxas say."""


@dataclass(frozen=True, slots=True)
class Spills:
    """The line that `ptxas -v` prints of one function, in bytes of a thread."""

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
    """Return the spills of a function; `ptxas --warn-on-spills` speaks only of those that do."""
    found = next((match for match in _SPILLED.finditer(text) if match["name"] == name), None)
    stores, loads = (int(found["stores"]), int(found["loads"])) if found else (0, 0)
    return Spills(stack_bytes, stores, loads)


def kernel_resources(
    translation: Translation, ptxas: Path, arch: str, reports: Reports | None = None
) -> list[KernelResources]:
    """Return the resources of every kernel that is launched, in the order of first launch.

    PTX is added to the translation's blobs.
    """
    found: dict[tuple[str, str], KernelResources] = {}
    for step in translation.steps:
        if isinstance(step, Launch):
            key = (step.cubin, step.kernel)
            known = found.get(key) or _resources(step, translation, ptxas, arch, reports)
            most = max(known.dynamic_smem_bytes, step.dynamic_smem_bytes)
            found[key] = replace(known, dynamic_smem_bytes=most)
    return list(found.values())


def _resources(
    step: Launch, translation: Translation, ptxas: Path, arch: str, reports: Reports | None
) -> KernelResources:
    cubin = parse_cubin(translation.blobs[step.cubin])
    kernel = cubin.kernels[step.kernel]
    ptx = cubin.ptx.encode()
    spills: Spills | None = Spills(0, 0, 0)
    if kernel.stack_bytes:
        said = reports.of(translation.blobs[step.cubin]) if reports and ptx else None
        if said is not None:
            spills = parse_warnings(said, step.kernel, kernel.stack_bytes)
        else:
            spills = _assemble(ptx, ptxas, arch).get(step.kernel) if ptx else None
        if spills and spills.stack_bytes != kernel.stack_bytes:
            spills = None  # another code came out, so its spills are not this kernel's
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
    """Assemble `ptx` for the sake of the report; nothing where that fails."""
    with tempfile.TemporaryDirectory(prefix="pallasc-ptxas-") as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_bytes(ptx)
        options = ["-v", "-O3", "-lineinfo", f"-arch={arch}", "-o", "/dev/null"]
        command: list[str | Path] = [ptxas, *options, source]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return parse_report(answer.stdout + answer.stderr)
