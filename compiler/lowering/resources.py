"""The resources of each kernel, and checks of the cubins: their assembler and hardware limits.

Registers, stack, shared memory and barriers are in the cubin. Spills are not, but they need a stack
frame. With a frame, the assembler's warnings report them. Mosaic starts the first `ptxas` on PATH
with `--warn-on-spills` and keeps only the cubin. So a small script of that name comes first on
PATH; it runs the assembler with the same arguments and saves its standard error output under the
digest of the cubin. `-v` would report more, but ptxas writes its options into the cubin. Where the
script cannot run (no shell, a file system mounted noexec), or XLA made the kernel, the PTX is
assembled again with `-v` and XLA's options (`-O3`, line information).

XLA and Mosaic GPU look for an assembler themselves, and what was compiled in this process before
may have decided already. So only the cubin itself is trusted, which names its tools.

Limits: CUDA C++ programming guide, "Technical specifications per compute capability"; a cluster of
more than 8 blocks is not portable, and 16 is the most that any GPU has.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pallasc.compiler.executable.translate import Translation
from pallasc.compiler.toolchain.toolchain import tool_version
from pallasc.compiler.toolchain.toolkit import loaded_nvjitlink
from pallasc.errors import CompileError, ToolError
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.cubin import other_maker, parse_cubin, tools_of
from pallasc.specs.artifacts.plan import Launch, LaunchPlan
from pallasc.specs.canonical import digest
from pallasc.specs.gpus import Target

_SCRIPT = """\
#!/bin/sh
# Runs the assembler and keeps what it says of the cubin in $3.
if [ "$2" != -o ] || [ ! -w {folder} ]; then exec {ptxas} "$@"; fi
said={folder}/$PPID-$$
{ptxas} "$@" 2>"$said"
code=$?
if [ -s "$said" ]; then cat "$said" >&2; fi
sha256sum "$3" >"$said.cubin" 2>/dev/null
exit $code
"""
_DIGEST_LENGTH = 64
_path_lock = threading.Lock()


class Reports:
    """The reports of a process that starts the assembler through `folder`.

    Args:
        ptxas: the assembler.
        folder: for the script, and for the reports in a folder below; the caller removes it.

    Attributes:
        process: the id of the process that starts the assembler.
    """

    def __init__(self, ptxas: Path, folder: Path) -> None:
        self.folder = folder
        self._reports = folder / "said"
        self._reports.mkdir()
        script = folder / "ptxas"
        places = {"folder": shlex.quote(str(self._reports)), "ptxas": shlex.quote(str(ptxas))}
        script.write_text(_SCRIPT.format(**places), encoding="utf-8")
        script.chmod(0o755)
        self.process = os.getpid()
        self._by_digest: dict[str, str] = {}

    def of(self, cubin: bytes) -> str | None:
        """Return what the assembler wrote about a cubin of this process, None if unknown."""
        self._read()
        return self._by_digest.get(hashlib.sha256(cubin).hexdigest())

    def _read(self) -> None:
        """Take in the reports that are complete."""
        with contextlib.suppress(OSError):
            for place in self._reports.glob(f"{self.process}-*.cubin"):
                digest = place.read_text(encoding="utf-8")[:_DIGEST_LENGTH]
                report = place.with_suffix("")
                if len(digest) == _DIGEST_LENGTH:
                    self._by_digest[digest] = report.read_text(encoding="utf-8", errors="replace")
                    place.unlink()
                    report.unlink()


@contextlib.contextmanager
def first_on_path(*folders: Path) -> Iterator[None]:
    """Put folders first on PATH for a while, also for C++ in this process."""
    front = os.pathsep.join([*map(str, folders), ""])
    with _path_lock:
        os.environ["PATH"] = front + os.environ.get("PATH", "")
    try:
        yield
    finally:
        with _path_lock:
            before, _, after = os.environ.get("PATH", "").partition(front)
            os.environ["PATH"] = before + after


class OtherAssemblerError(ToolError):
    """Another assembler than that of the toolchain's record made a kernel."""


def check_makers(translation: Translation, ptxas: Path, record: Mapping[str, object]) -> None:
    """Check that the assembler made every cubin.

    Args:
        translation: has the cubins.
        ptxas: the assembler.
        record: what the artifact will say of its toolchain.

    Raises:
        OtherAssemblerError: another tool made a cubin.
    """
    version = str(record.get("ptxas") or tool_version(ptxas))
    launches = [step for step in translation.steps if isinstance(step, Launch)]
    for key, kernel in {step.cubin: step.kernel for step in launches}.items():
        maker = other_maker(tools_of(translation.blobs[key]), version)
        if maker:
            raise OtherAssemblerError(
                f"{kernel} was assembled by {maker}{_where(maker)}, not by ptxas {version}, "
                f"{ptxas}.",
                hint="An earlier compilation in this process selected it; kernel modules must not "
                "compile on import.",
            )


def _where(maker: str) -> str:
    """Return the file of an assembler in brackets, "" where it is unknown."""
    name, _, version = maker.partition(" ")
    if name == "ptxas":
        folders = os.environ.get("PATH", "").split(os.pathsep)
        places = [Path(folder, name) for folder in folders if folder]
        place = next((str(place) for place in places if _version(place) == version), "")
    else:
        place = loaded_nvjitlink(13) or loaded_nvjitlink(12)
    return f" ({place})" if place else ""


def _version(tool: Path) -> str:
    try:
        return tool_version(tool)
    except ToolError:
        return ""


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


_GRID = (2**31 - 1, 65535, 65535)
_BLOCK = (1024, 1024, 64)
_THREADS = 1024
_CLUSTER = 16
_REGISTERS = 65536


def check_launches(plan: LaunchPlan, kernels: Iterable[KernelResources], target: Target) -> None:
    """Check every launch of a plan.

    Raises:
        CompileError: a launch asks for more than `target` has.
    """
    resources = {(kernel.cubin, kernel.name): kernel for kernel in kernels}
    for step in plan.steps:
        if isinstance(step, Launch):
            problem = (
                _shape_problem(step)
                or _cluster_problem(step, target)
                or _resource_problem(step, resources[step.cubin, step.kernel], target)
            )
            if problem:
                raise CompileError(f"{step.kernel} cannot be launched: {problem}", kind="launch")


def _shape_problem(launch: Launch) -> str | None:
    threads = math.prod(launch.block)
    if threads > _THREADS:
        return f"a block has {threads} threads, and CUDA takes at most {_THREADS}"
    for what, sizes, most in (("grid", launch.grid, _GRID), ("block", launch.block, _BLOCK)):
        if any(not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
            return f"its {what} in 32 bits is {sizes}, and CUDA takes from 1 to {most}"
    return None


def _cluster_problem(launch: Launch, target: Target) -> str | None:
    if launch.cluster is None:
        return None
    blocks = math.prod(launch.cluster)
    if "clusters" not in target.features and blocks > 1:
        return f"it has clusters, and {target.arch} has none"
    if blocks > _CLUSTER:
        return f"a cluster has {blocks} blocks, and GPUs take at most {_CLUSTER}"
    if any(size % part for size, part in zip(launch.grid, launch.cluster, strict=True)):
        return f"its grid {launch.grid} does not divide into clusters of {launch.cluster}"
    return None


def _resource_problem(launch: Launch, kernel: KernelResources, target: Target) -> str | None:
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes
    if smem > target.smem_optin_bytes:
        has = target.smem_optin_bytes
        return f"a block takes {smem} bytes of shared memory, and {target.name} has {has}"
    registers = math.prod(launch.block) * kernel.registers
    if registers > _REGISTERS:
        return f"a block takes {registers} registers, and a multiprocessor has {_REGISTERS}"
    return None
