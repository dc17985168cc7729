"""The worker process that runs levels and emulates plans, one variant after another.

The warden calls `main` with the descriptors of two pipes, for requests and replies. JAX is imported
only if a level calls the user's code; JAX then runs on the CPU.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from pallasc.checks.findings import Finding, LevelResult
from pallasc.checks.levels import Options, Subject
from pallasc.compiler.workers.messages import Reply, Request, serve
from pallasc.errors import CompileError, ToolError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Mesh, Variant
from pallasc.specs.user_files import parse_entry


class Checked(Reply, frozen=True, kw_only=True):
    """Reply to `Check`.

    Attributes:
        result: result of the level.
        sources: files read by the user's code, as fields of a manifest; empty without source.
        uncached: why the store must not keep the result, "" if it may.
    """

    result: LevelResult
    sources: Mapping[str, object] = {}
    uncached: str = ""


class Check(Request, frozen=True, kw_only=True):
    """Request to run a level on an artifact.

    Attributes:
        level: name of the level.
        id: the variant's display name.
        variant: the variant that was compiled to this artifact, None without source.
        record: the artifact's record.
        blobs: the blobs that the record names, by digest.
        xla_ptx, why_no_ptx: see `levels.Subject`.
        options: the check's options, without a deadline.
        env: environment variables that the variant declares, with None for unset variables.
    """

    reply: ClassVar[type[Reply]] = Checked
    level: str
    id: str
    variant: Variant | None
    record: Mapping[str, object]
    blobs: Mapping[str, bytes]
    options: Options
    xla_ptx: Mapping[str, str] = {}
    why_no_ptx: str = ""
    env: Mapping[str, str | None] = {}


class Emulated(Reply, frozen=True, kw_only=True):
    """Reply to `Emulate`.

    Attributes:
        outputs: the bytes of each output as in device memory, all devices concatenated; empty if a
            kernel failed.
        printed: the text printed by kernels.
        fault: the fault that ended a kernel, None if all kernels completed.
    """

    outputs: tuple[bytes, ...] = ()
    printed: str = ""
    fault: Finding | None = None


class Emulate(Request, frozen=True, kw_only=True):
    """Request to run a launch plan.

    Attributes:
        record: the artifact's record.
        blobs: the blobs that the record names, by digest.
        xla_ptx: see `levels.Subject`.
        inputs: the bytes of each input as in device memory; the arrays of all devices are joined.
    """

    reply: ClassVar[type[Reply]] = Emulated
    record: Mapping[str, object]
    blobs: Mapping[str, bytes]
    xla_ptx: Mapping[str, str]
    inputs: tuple[bytes, ...]


_HINT = (
    "Name small sizes under check in the spec, or raise --memory. With fewer --jobs, each process "
    "gets more memory."
)


def out_of_memory(name: str, error: MemoryError) -> CompileError:
    """Return the error for a variant that ran out of memory."""
    reason = str(error).partition("\n")[0].rstrip(".")
    lacking = CompileError(
        f"not enough memory to execute {name}{f': {reason}' if reason else ''}", hint=_HINT
    )
    lacking.__cause__ = error
    return lacking


def main(requests: int, replies: int) -> int:
    """Serve requests until there are no more."""
    session = Session()
    threads = threading.active_count()

    def check(request: Check) -> Checked:
        try:
            return session.check(request)
        except MemoryError as error:
            raise out_of_memory(request.id, error) from error

    # A deadlocked kernel leaves its threads running; then this process must not be reused.
    return serve(
        requests,
        replies,
        {Check: check, Emulate: _emulate},
        lambda: session.is_tainted() or threading.active_count() > threads,
    )


class Session:
    """State shared by all requests of this process."""

    def __init__(self) -> None:
        self._before: Any = None

    def check(self, request: Check) -> Checked:
        """Run a level.

        Raises:
            PallascError: for a mistake of the user.
        """
        level, timeout_s = request.level, request.options.timeout_s
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        artifact = Artifact(request.record, request.blobs.__getitem__)
        subject = Subject(
            request.id, artifact, request.variant, request.xla_ptx, request.why_no_ptx
        )
        options = replace(request.options, deadline_s=deadline_s)
        variant = request.variant
        if variant is None:
            return Checked(result=_timed(level, subject, options))
        self.prepare(variant.mesh, request.env)
        with self._before.working_in(variant.base_dir):
            result = _timed(level, subject, options)
        return _with_sources(result, variant)

    def is_tainted(self) -> bool:
        """Return True if the user's code changed process settings that cannot be restored."""
        if self._before is None:
            return False
        self._before.restore_functions()
        return bool(self._before.is_tainted())

    def prepare(self, mesh: Mesh, env: Mapping[str, str | None]) -> None:
        """Import JAX, and start recording the files and modules that the user's code reads.

        Args:
            mesh: the devices that the CPU emulates.
            env: variables that the spec declares.

        Raises:
            ToolError: JAX is not installed.
        """
        if self._before is not None:
            return
        try:
            import jax
            from jax.experimental.mosaic.gpu import core  # sets variables of this process
        except ModuleNotFoundError as error:
            raise ToolError(
                f"the level calls the kernel or its reference, and {error.name} is not installed.",
                hint='Install it with: pip install "pallasc[cuda13]"',
            ) from error

        from pallasc.compiler.inputs.process_snapshot import ProcessSnapshot
        from pallasc.compiler.inputs.recorders import record_imports
        from pallasc.compiler.workers.worker import note_task

        del core
        note_task()
        record_imports()
        devices = math.prod(size for _, size in mesh)
        jax.config.update("jax_num_cpu_devices", devices)
        self._before = ProcessSnapshot()
        if env:
            self._before.expose_variables(env)


def _timed(level: str, subject: Subject, options: Options) -> LevelResult:
    began_s = time.monotonic()
    result: LevelResult = import_module(f"pallasc.checks.{level}").run(subject, options)
    return replace(result, seconds=time.monotonic() - began_s)


def _with_sources(result: LevelResult, variant: Variant) -> Checked:
    """Return a result with the sources that the user's code read, as fields of a manifest."""
    from pallasc.cache.stat_digest import FileDigests
    from pallasc.compiler.inputs.lookup import named_entries
    from pallasc.compiler.inputs.manifest import make_manifest
    from pallasc.compiler.workers.worker import entry_sources, why_uncached, why_unknown_reads

    entries = named_entries(variant)
    if variant.reference is not None:
        entries.append(parse_entry(variant.reference))
    try:
        read = entry_sources(variant, entries)
        if uncached := why_uncached(read):
            return Checked(result=result, uncached=uncached)
        sources = make_manifest("", read, FileDigests()).to_json()
    except Exception as error:  # noqa: BLE001 - user code may have broken anything used here
        return Checked(result=result, uncached=why_unknown_reads(error))
    return Checked(result=result, sources=sources)


def _emulate(request: Emulate) -> Emulated:
    """Run a plan on all of its devices until it ends or a kernel fails.

    Raises:
        UnsupportedError: a kernel has an instruction that the emulator does not support.
    """
    import numpy as np

    from pallasc.checks.faults import fault_finding
    from pallasc.emulator.machine.machine import Machine
    from pallasc.emulator.machine.memory import Fault
    from pallasc.emulator.program import (
        PlanRun,
        from_bytes,
        joined,
        of_devices,
        split,
        to_bytes,
    )

    artifact = Artifact(request.record, request.blobs.__getitem__)
    plan, machine = artifact.plan, Machine()
    count = max(plan.device_count, 1)
    arrays: list[list[Any]] = [[] for _ in range(count)]
    for data, binding in zip(request.inputs, plan.inputs, strict=True):
        array = from_bytes(np.frombuffer(data, np.uint8), of_devices(binding, count))
        for own, part in zip(arrays, split(array, count), strict=True):
            own.append(part)
    try:
        results = PlanRun(artifact, machine, request.xla_ptx).run(arrays)
    except Fault as fault:
        return Emulated(printed="".join(machine.printed), fault=fault_finding(fault, machine))
    outputs = tuple(
        to_bytes(joined([own[number] for own in results]), of_devices(binding, count)).tobytes()
        for number, binding in enumerate(plan.outputs)
    )
    return Emulated(outputs=outputs, printed="".join(machine.printed))
