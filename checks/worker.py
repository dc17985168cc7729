"""The process that runs levels: one variant after the other, for one level and spec folder.

Started by the warden as `main(REQUESTS, ANSWERS)`; the messages are defined in
`checks.messages`. JAX is imported if a level calls the user's code, and runs on the CPU.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pallasc.checks.findings import LevelResult
from pallasc.checks.levels import LEVELS, Level, run_level
from pallasc.checks.memory_limit import check_arrays_fit, out_of_memory
from pallasc.checks.messages import Check, Checked
from pallasc.checks.subject import Options, Subject
from pallasc.compiler.workers.messages import serve
from pallasc.errors import CheckError, ToolError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.entries import parse_entry
from pallasc.specs.spec import Mesh, Variant


def main(requests: int, replies: int) -> int:
    """Serve requests until there are no more."""
    session = Session()
    threads = threading.active_count()

    def check(request: Check) -> Checked:
        try:
            return session.check(request)
        except MemoryError as error:
            raise out_of_memory(request.id, error) from error

    # A deadlocked kernel leaves its threads running.
    return serve(
        requests,
        replies,
        {Check: check},
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
        level, timeout_s = LEVELS[request.level], request.timeout_s
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        artifact = Artifact(request.record, request.blobs.__getitem__)
        subject = Subject(
            request.id, artifact, request.variant, request.xla_ptx, request.why_no_ptx
        )
        options = Options(
            seed=request.seed,
            schedules=request.schedules,
            inputs=request.inputs,
            timeout_s=timeout_s,
            deadline_s=deadline_s,
            memory_bytes=request.memory_bytes,
        )
        check_arrays_fit(subject, options)
        variant = request.variant if level.calls_user else None
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


def _timed(level: Level, subject: Subject, options: Options) -> LevelResult:
    began_s = time.monotonic()
    result = run_level(level, subject, options)
    ended_s = time.monotonic()
    if options.deadline_s is not None and ended_s > options.deadline_s and not result.fails:
        raise CheckError(
            f"it took longer than {options.timeout_s:g} s (--timeout)",
            hint="Raise --timeout, or name small sizes under check in the spec.",
        )
    return replace(result, seconds=ended_s - began_s)


def _with_sources(result: LevelResult, variant: Variant) -> Checked:
    """Return a result with the sources that the user's code read, as the store keeps them."""
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
    except Exception as error:  # noqa: BLE001 - what the user's code did must not fail it here
        return Checked(result=result, uncached=why_unknown_reads(error))
    return Checked(result=result, sources=sources)
