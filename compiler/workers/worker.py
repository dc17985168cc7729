"""The worker process: imports JAX once, then serves requests, for a single architecture.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`, with two inherited pipe
descriptors, the parent's process id, and the channel for replies. Standard output and error belong
to the user's code; the parent keeps them in files, and the worker reads the second (`listening`).
The worker ends when the pipe of requests closes, or the warden dies, which has set PDEATHSIG.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from pallasc.cache.signing import Trust
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs import closure, imports, reads
from pallasc.compiler.inputs.isolation import enter, expose_variables
from pallasc.compiler.inputs.process_snapshot import ProcessSnapshot, SharedState, read_flags
from pallasc.compiler.lowering.compile import Job, Tools, compile_job, lower_job
from pallasc.compiler.lowering.resources import Reports
from pallasc.compiler.toolchain.toolkit import hide_nvjitlink, offer_library
from pallasc.compiler.workers.channel import Channel, decode
from pallasc.compiler.workers.compilation import (
    Session,
    missed_of,
    note_task,
    why_uncached,
    why_unknown_reads,
)
from pallasc.compiler.workers.listening import Listener, tracing_anew
from pallasc.compiler.workers.messages import (
    Collect,
    Collected,
    Compile,
    Failed,
    FindLines,
    FindPtx,
    Introduction,
    Listen,
    Reply,
    Request,
    Warm,
    read_request,
)
from pallasc.errors import CompileError, PallascError
from pallasc.specs.arrays import resolve_array
from pallasc.specs.garbage import collector_past
from pallasc.specs.gpus import Target
from pallasc.specs.loading.modules import module_name


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    hide_nvjitlink()
    imports.record_imports()
    imports.read_sources_afresh()
    with os.fdopen(int(arguments[0]), "rb") as source:
        _serve(source, channel)
    return 0


def _serve(source: BinaryIO, channel: Channel) -> None:
    session: Session | None = None
    for line in source:
        request = read_request(decode(line))
        if isinstance(request, Warm):
            _import_compiler()
            continue
        if isinstance(request, Introduction):
            session = _session(request)
            if request.rehearsal is not None:
                _rehearse(request.rehearsal, session.tools)
        if isinstance(request, Introduction | Listen):
            channel.send({"ready": True})
            continue
        try:
            reply = _reply(request, session)
        except PallascError as error:
            reply = Failed.because_of(error)
        tainted = False
        if session is not None:
            session.before.restore_functions()
            try:
                tainted = bool(session.shared.reset()) or session.before.is_tainted()
            except Exception:  # noqa: BLE001 - the user's code may have changed anything
                tainted = True
            session.listener.forget_unloaded()
        channel.send(replace(reply, task=request.task, tainted=tainted).to_json())


def _import_compiler() -> None:
    """Import what every compilation needs."""
    with collector_past():
        import cramjam
        import jax
        import jax.experimental.pallas.mosaic_gpu
        import llvmlite.binding
        from google.protobuf import text_format
    del cramjam, jax, llvmlite, text_format


def _session(request: Introduction) -> Session:
    tools = Tools(
        record=request.record,
        ptxas=request.ptxas,
        identity=request.identity,
        variables=request.variables,
        toolkit=request.toolkit,
        reports=_reports(request.ptxas),
    )
    offer_library(request.toolkit, Path(tempfile.gettempdir()))
    _import_compiler()
    store = Store(request.store, trust=Trust())
    # Stored digests of files are signed, too, and only the parent can check them.
    digests = FileDigests(None if request.signing else store.root)
    tracing_anew(0)  # JAX's state differs from the first call on
    before, shared = ProcessSnapshot.now(), SharedState()
    return Session(
        tools, store, digests, before, shared, request.signing, versions=request.versions
    )


def _reports(ptxas: Path) -> Reports:
    """Put the script that saves the assembler's reports first on PATH, for XLA and Mosaic."""
    reports = Reports(ptxas, Path(tempfile.mkdtemp(prefix="ptxas-")))
    # Not in `os.environ`, which the user's code sees: `putenv` reaches C++ alone.
    os.putenv("PATH", os.pathsep.join([str(reports.folder), os.environ["PATH"]]))
    return reports


def _reply(request: Request, session: Session | None) -> Reply:
    note_task()
    if isinstance(request, Collect):
        return _collect(request.path, request.env)
    if session is not None and isinstance(request, FindLines):
        return session.find_lines(request)
    if session is not None and isinstance(request, FindPtx):
        return session.find_ptx(request)
    if session is None or not isinstance(request, Compile):
        raise CompileError("a worker was asked to compile before it had its context")
    return session.compile(request)


def _collect(path: str, env: Mapping[str, str | None]) -> Reply:
    from pallasc.specs.loading.decorator import collect_python

    file = Path(path).resolve()
    folder, name = str(file.parent), module_name(path)
    if any(variable.endswith("_FLAGS") for variable in os.environ):
        read_flags()
    expose_variables(env)
    if file.is_file():
        enter(folder)
    with Listener().hearing(folder, outputs=(1, 2)) as hearing:
        try:
            specs = tuple(collect_python(file, shown=path))
        except PallascError as error:
            return Failed.because_of(error, hearing.diagnostics(), missed_of([name], folder, ()))
        diagnostics = hearing.diagnostics()
    for table in dict.fromkeys(spec.table for spec in specs if spec.table):
        # pallasc itself has read it for the file.
        reads.of_module(name).look(reads.FILE, str(Path(folder, table)))
    read = None
    try:
        read = closure.sources(closure.closure([name]), folder, by_path={name: file.name})
        uncached = why_uncached(read)
    except Exception as error:  # noqa: BLE001 - what the user's code did must not fail it here
        uncached = why_unknown_reads(error)
    return Collected(specs=specs, uncached=uncached, sources=read, diagnostics=diagnostics)


_SIZE = 128


def _rehearse(target: Target, tools: Tools) -> None:
    """Compile a small kernel for a target, so that JAX, Mosaic, and XLA have started before a task.

    What goes wrong is left to the first task. No artifact shows a rehearsal: what a process
    compiles does not depend on what it compiled before.
    """
    array = resolve_array(f"f32[{_SIZE}]")
    job = Job(function=_double, args={"x": array}, static={}, target=target)
    with suppress(Exception):
        compile_job(job, lower_job(job), tools)


def _double(x: Any) -> Any:
    import jax
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def body(x_gmem: Any, out_gmem: Any) -> None:
        out_gmem[...] = x_gmem[...] + x_gmem[...]

    out = jax.ShapeDtypeStruct((_SIZE,), x.dtype)
    warpgroup = plgpu.LoweringSemantics.Warpgroup
    compiled = plgpu.CompilerParams(lowering_semantics=warpgroup)
    return plgpu.kernel(body, out_type=out, compiler_params=compiled)(x)
