"""The worker process: imports JAX once, then serves requests, for a single architecture.

Its parent, the warden (`warden`), forks it, and it calls `main` with two inherited pipes. Standard
output and error are for user code; the build redirects them to files, and the worker reads standard
error (`diagnostics`). The worker ends when the request pipe closes, or when the warden dies, which
PDEATHSIG reports.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pallasc.cache.manifests import About, Diagnostic, Trust
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import PutResult, Store
from pallasc.compiler.inputs import recorders
from pallasc.compiler.inputs.lookup import data_digests, named_entries, place_of, stored_artifact
from pallasc.compiler.inputs.manifest import (
    Sources,
    closure,
    fields_text,
    find_sources,
    make_manifest,
    missed_of,
)
from pallasc.compiler.inputs.process_snapshot import (
    ProcessSnapshot,
    SharedState,
    collector_past,
    read_flags,
)
from pallasc.compiler.inputs.sources import FILE, name_of
from pallasc.compiler.lowering.compile import Tools, action_fields, compile_job, lower_job
from pallasc.compiler.lowering.entry import array_arguments, import_function, static_arguments
from pallasc.compiler.lowering.kernel_output import pack, printed_text
from pallasc.compiler.lowering.lower import Job
from pallasc.compiler.toolchain.toolchain import (
    find_toolchain,
    without_nvjitlink,
)
from pallasc.compiler.workers import messages
from pallasc.compiler.workers.diagnostics import Listener, store_for_action, with_stored
from pallasc.compiler.workers.messages import READY, Compile, Compiled, Failed, Reply
from pallasc.errors import PallascError, SpecError, ToolError, summary_of
from pallasc.specs.arrays import resolve_array
from pallasc.specs.canonical import labelled_key
from pallasc.specs.spec import Variant, spec_to_json
from pallasc.specs.user_files import Entry, module_name

_COLLECT_AFTER = 10_000
"""Allocations between garbage collections. Python's 700 cost 1.5 % of compiling."""


def main(requests: int, replies: int) -> int:
    """Serve requests until there are no more."""
    gc.set_threshold(_COLLECT_AFTER)
    with without_nvjitlink():
        return _serve(requests, replies)


def _serve(requests: int, replies: int) -> int:
    recorders.record_imports()
    sessions: list[Session] = []

    def warm(_: messages.Warm) -> None:
        _snapshot()

    def introduce(request: messages.Introduction) -> bytes:
        sessions.append(Session(request))
        return READY

    answers: messages.Answers = {
        messages.Warm: warm,
        messages.Introduction: introduce,
        messages.Rehearse: lambda request: sessions[0].rehearse(request),
        messages.Collect: _collect,
        Compile: lambda request: sessions[0].compile(request),
        messages.Recompile: lambda request: sessions[0].recompile(request),
    }
    return messages.serve(requests, replies, answers, lambda: any(s.is_tainted() for s in sessions))


def _import_compiler() -> None:
    """Import the modules that every compilation needs."""
    with collector_past():
        import cramjam
        import jax
        import jax.experimental.pallas.mosaic_gpu
        import llvmlite.binding
        from google.protobuf import text_format
    del cramjam, jax, llvmlite, text_format


@cache
def _snapshot() -> tuple[ProcessSnapshot, SharedState]:
    """Import the compiler, and note the state of this process before it runs any user code."""
    _import_compiler()
    _user_context()(0)  # the first call changes JAX's state
    return ProcessSnapshot(), SharedState()


_INSTALLED_WITH_JAX = ("jax", "jaxlib", "numpy", "ml_dtypes")


def _lacking_jax(error: PallascError) -> ToolError | None:
    """Return the error that says how to install JAX, if a spec imports JAX and it is missing."""
    cause = error.__cause__
    if isinstance(cause, ModuleNotFoundError) and cause.name in _INSTALLED_WITH_JAX:
        try:
            find_toolchain()
        except ToolError as lacking:
            lacking.location = error.location
            return lacking
    return None


def _collect(request: messages.Collect) -> Reply:
    from pallasc.specs.loading.decorator import collect_python

    note_task()
    file = Path(request.path).resolve()
    folder, name = str(file.parent), module_name(request.path)
    read_flags(os.environ)
    recorders.expose_variables(request.env)
    if file.is_file():
        recorders.enter(folder)
    listener = Listener()
    with listener.listening(folder, outputs=(1, 2)):
        try:
            specs = collect_python(file, shown=request.path)
        except PallascError as error:
            missed = missed_of([name], folder, ())
            error = _lacking_jax(error) or error
            return Failed.because_of(error, diagnostics=listener.diagnostics(), missed=missed)
        diagnostics = listener.diagnostics()
    tables = [spec.table for spec in specs if spec.table]
    machines = [file for spec in specs for file in spec.machines]
    for read_file in dict.fromkeys([*tables, *machines]):
        # pallasc read this file, not the user's code, but the specs depend on it, too.
        recorders.record_of(name).look(FILE, str(Path(folder, read_file)))
    read = None
    try:
        read = find_sources([name], folder, entry_files=[file.name])
        uncached = why_uncached(read)
    except Exception as error:  # noqa: BLE001 - whatever users' code did, only caching fails
        uncached = why_unknown_reads(error)
    return messages.Collected(
        specs=tuple(map(spec_to_json, specs)),
        uncached=uncached,
        sources=read,
        diagnostics=diagnostics,
    )


@cache
def _user_context() -> Any:
    import jax

    return jax.make_user_context(0)


_GRAIN_NS = 20_000_000
"""The resolution of file times in nanoseconds."""
_first_task_ns: list[int] = []
"""Time of this process's first task, minus that resolution; no source is read before it."""


def note_task() -> None:
    """Record that a task begins; no user file is read before the first one."""
    if not _first_task_ns:
        _first_task_ns.append(time.time_ns() - _GRAIN_NS)


class Session:
    """State shared by all compilations of this process.

    Args:
        introduction: the toolchain and the store.
    """

    def __init__(self, introduction: messages.Introduction) -> None:
        self._introduction = introduction
        self.tools = Tools(
            record=introduction.record,
            ptxas=introduction.ptxas,
            identity=introduction.identity,
            variables=introduction.variables,
            toolkit=introduction.toolkit,
        )
        self.before, self.shared = _snapshot()
        self.store = Store(introduction.store, trust=Trust())
        # If stored digests of files are signed, only the build can check the signature.
        self.digests = FileDigests(None if introduction.signing else self.store.root)
        self.shared.add_new()
        self.listener = Listener()
        self._traced = 0

    def rehearse(self, request: messages.Rehearse) -> None:
        """Compile a small kernel, so that JAX, Mosaic, and XLA have started before a task.

        Errors are left to the first task. A rehearsal does not affect artifacts: earlier
        compilations of a process have no effect on later ones.
        """
        add = importlib.import_module(f"{recorders.LIBRARY}.elementwise").add
        array = resolve_array("f32[4096]")
        job = Job(function=add, args={"x": array, "y": array}, static={}, target=request.target)
        with suppress(Exception):
            compile_job(job, lower_job(job), self.tools)

    def is_tainted(self) -> bool:
        """Restore the state that variants share; return True if that is not possible."""
        self.before.restore_functions()
        try:
            return bool(self.shared.reset()) or self.before.is_tainted()
        except Exception:  # noqa: BLE001 - the user's code may have changed anything
            return True
        finally:
            self.listener.forget_unloaded()

    def compile(self, request: Compile) -> Compiled | Failed:
        """Compile a variant or find its artifact; return the error if it cannot be compiled."""
        variant = request.variant
        with self._tracing(request.env), self.listener.listening(variant.base_dir):
            earlier = recorders.missed_so_far()
            try:
                return self._compiled(request)
            except PallascError as error:
                return Failed.because_of(
                    error,
                    missed=missed_of(_entry_modules(variant), variant.base_dir, earlier),
                    compiling=self.listener.stage == "compile",
                    repeat=bool(self.listener.importing) and self.shared.was_unloaded(error),
                )

    def recompile(self, request: messages.Recompile) -> messages.Recompiled:
        """Compile a variant again.

        Raises:
            PallascError: compilation now gives other code, or fails.
        """
        from pallasc.compiler.lowering.compile import xla_ptx
        from pallasc.compiler.lowering.line_tables import line_tables

        with self._tracing(request.env):
            job = self._job(request.variant)
            if request.cubins:
                return messages.Recompiled(ptx=xla_ptx(job, self.tools, request.cubins))
            tables = line_tables(job, self.tools, request.ptx, request.code)
            return messages.Recompiled(tables=tables)

    @contextmanager
    def _tracing(self, env: Mapping[str, str | None]) -> Iterator[None]:
        """Make JAX trace everything in the block again, with a variant's environment variables.

        Otherwise JAX would not call a function again that it has traced for an earlier variant, and
        the function's warnings would be lost.
        """
        note_task()
        if env and not self._traced:
            self.before.expose_variables(env)
        self._traced += 1
        with _user_context()(self._traced):
            yield

    def _job(self, variant: Variant) -> Job:
        within = partial(self.before.working_in, variant.base_dir)
        with within(), _importing(variant):
            return dataclasses.replace(_job(variant), within=within)

    def _compiled(self, request: Compile) -> Compiled:
        """Lower the variant, find or compile its artifact, and make a manifest."""
        variant, store, before = request.variant, self.store, self.before
        started = time.monotonic()
        self.listener.next_stage(importing=_entry_modules(variant)[0])
        job = self._job(variant)
        self.listener.next_stage()
        restored = before.restore_variables()
        with printed_text() as printed:
            fields, compiled = _lowered(variant, job, self.tools)
        restored += before.restore_variables()
        fields |= before.changed_settings()
        key = labelled_key(fields)
        with store.single_flight(key):
            made = self._stored(key, request) or self._compile(key, request, compiled)
        warnings = dict(store.topics)
        if names := ", ".join(dict.fromkeys(restored)):
            text = f"{variant.name} sets {names}, which has no effect: set it where the build is "
            warnings[f"{text}started"] = f"{text}started"
        made = replace(
            made,
            seconds=time.monotonic() - started,
            printed=pack(printed.getvalue()),
            warnings=warnings,
        )
        try:
            return self._with_manifest(made, request)
        except Exception as error:  # noqa: BLE001 - whatever users' code did, only caching fails
            return replace(made, uncached=why_unknown_reads(error))

    def _compile(self, key: str, request: Compile, compiled: _Compilation) -> Compiled:
        self.listener.next_stage("compile")
        record, blobs = compiled()
        diagnostics = self._diagnostics(request.variant)
        store_for_action(self.store, key, diagnostics)
        doubt = request.trusted_records is not None
        put = self.store.put_artifact(key, record, blobs, replace=doubt)
        return Compiled(
            action=key, status="compiled", seconds=0.0, warnings={}, uncached="", put=put,
            record=record, blobs=blobs, diagnostics=diagnostics,
        )  # fmt: skip

    def _stored(self, key: str, request: Compile) -> Compiled | None:
        """Return the stored artifact of an action key, None if there is none that the build trusts.

        The reply has a copy of the artifact, since the build may not be able to read the store.
        """
        trusted = request.trusted_records
        record = None if trusted is None else trusted.get(key, "")
        if stored_artifact(self.store, key, record=record) is None:
            return None
        hit = Compiled(action=key, status="hit", seconds=0.0, warnings={}, uncached="")
        held = self.store.get_artifact(key, verify=True)
        if held is None:
            return hit
        return replace(
            hit,
            put=PutResult(stored=True, digest=held.digest, existed=True),
            record=held.artifact,
            blobs={name: data for name in held.names if (data := held.blob(name)) is not None},
            diagnostics=with_stored(self.store, key, self._diagnostics(request.variant)),
        )

    def _diagnostics(self, variant: Variant) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of a variant and of the modules that it reaches."""
        return self.listener.diagnostics(closure(_entry_modules(variant)))

    def _with_manifest(self, made: Compiled, request: Compile) -> Compiled:
        """Add the manifest to a reply, or the reason why there is none."""
        variant = request.variant
        read = entry_sources(variant, named_entries(variant))
        made = replace(made, missed=read.missed)
        if request.data != data_digests(variant, self.digests):
            return replace(made, uncached="a data file of its spec changed during compilation")
        if uncached := why_uncached(read):
            return replace(made, uncached=uncached)
        manifest = replace(
            make_manifest(made.action, read, self.digests),
            name=variant.name,
            variant=variant.id,
            about={**About.of(variant).to_json(), "seconds": made.seconds},
            versions=self._introduction.versions,
            request=fields_text(request.fields),
            printed=made.printed,
            diagnostics=made.diagnostics,
            record=made.digest,
        )
        return replace(made, manifest=manifest.to_json())


_Compilation = Callable[[], tuple[dict[str, object], dict[str, bytes]]]
"""Compiles a lowered function; returns the artifact's record and blobs."""


def _lowered(variant: Variant, job: Job, tools: Tools) -> tuple[dict[str, str], _Compilation]:
    """Lower a kernel or a program; return the fields of its action key, and the compilation."""
    if variant.program is None:
        lowered = lower_job(job)
        return action_fields(job, lowered, tools), lambda: compile_job(job, lowered, tools)
    from pallasc.compiler.programs import compile as programs

    work = programs.ProgramJob(job, variant.program, variant.base_dir)
    program = programs.lower_program(work)
    fields = programs.program_fields(work, program, tools)
    return fields, lambda: programs.compile_program(work, program, tools)


def _importing(variant: Variant) -> AbstractContextManager[None]:
    """Return the context in which a variant's modules are imported."""
    if variant.program is None:
        return nullcontext()
    from pallasc.compiler.programs.compile import importing

    return importing(variant.program)


def _job(variant: Variant) -> Job:
    try:
        return Job(
            function=import_function(variant.entry, variant.base_dir),
            args=array_arguments(variant.args, variant.base_dir),
            static=static_arguments(variant.static, variant.base_dir),
            target=variant.target,
            mesh=variant.mesh,
        )
    except SpecError as error:
        if not error.field:
            error.location = error.location or variant.location
        raise


def entry_sources(variant: Variant, entries: Sequence[Entry]) -> Sources:
    """Return the sources that the modules of a variant's entry points reach."""
    return find_sources(
        _modules(entries),
        variant.base_dir,
        folders=place_of(variant).folders,
        entry_files=[entry.source for entry in entries if entry.is_file],
    )


def _entry_modules(variant: Variant) -> list[str]:
    """Return the modules of a variant's entries; that of `entry` comes first."""
    return _modules(named_entries(variant))


def _modules(entries: Sequence[Entry]) -> list[str]:
    return [module_name(e.source) if e.is_file else e.source for e in entries]


def why_uncached(read: Sources) -> str:
    """Return why a manifest cannot list these sources, "" if it can."""
    if read.unknown:
        return f"cannot compute a digest of {', '.join(sorted(read.unknown))}: no file"
    if read.unseen:
        return f"{min(read.unseen)}: pallasc cannot notice when that changes"
    changed = read.changed_since(_first_task_ns[0])
    return f"{name_of(changed[0])} changed during compilation" if changed else ""


def why_unknown_reads(error: Exception) -> str:
    """Return why there is no manifest if the sources could not be found."""
    return f"cannot determine which files it read: {summary_of(error)}"
