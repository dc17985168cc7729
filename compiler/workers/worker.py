"""The worker process: imports JAX once, then serves requests, for a single architecture.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`, with two inherited pipe
descriptors, the parent's process id, and the channel for replies. Standard output and error belong
to the user's code; the parent keeps them in files, and the worker reads the second (`Listener`).
The worker ends when the pipe of requests closes, or the warden dies, which has set PDEATHSIG.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, TextIO

from pallasc.cache.manifests import About, set_name
from pallasc.cache.signing import Trust
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs import recorders
from pallasc.compiler.inputs.lookup import stored_artifact
from pallasc.compiler.inputs.manifest import (
    Sources,
    closure,
    fields_text,
    find_sources,
    make_manifest,
    missed_by,
)
from pallasc.compiler.inputs.process_snapshot import ProcessSnapshot, SharedState, read_flags
from pallasc.compiler.inputs.request import (
    data_digests,
    named_entries,
    place_of,
)
from pallasc.compiler.inputs.sources import FILE, name_of
from pallasc.compiler.lowering.compile import Job, Tools, action_fields, compile_job, lower_job
from pallasc.compiler.lowering.entry import array_arguments, import_function, static_arguments
from pallasc.compiler.lowering.kernel_output import pack, printed_text
from pallasc.compiler.lowering.lower import Lowered
from pallasc.compiler.lowering.resources import Reports
from pallasc.compiler.toolchain.modules import module_of
from pallasc.compiler.toolchain.toolkit import hide_nvjitlink, offer_library
from pallasc.compiler.workers.channel import Channel, decode
from pallasc.compiler.workers.diagnostics import (
    STDERR,
    STDOUT,
    Diagnostic,
    Stage,
    lines_of,
    merged,
    stable,
    store_for_action,
    stored_for_action,
)
from pallasc.compiler.workers.messages import (
    Collect,
    Collected,
    Compile,
    Compiled,
    Failed,
    FindLines,
    FindPtx,
    Introduction,
    LinesFound,
    Listen,
    PtxFound,
    Reply,
    Request,
    Warm,
    read_request,
)
from pallasc.errors import CompileError, PallascError, SpecError, summary_of
from pallasc.specs.arrays import resolve_array
from pallasc.specs.canonical import labelled_key
from pallasc.specs.entries import Entry
from pallasc.specs.garbage import collector_past
from pallasc.specs.gpus import Target
from pallasc.specs.loading.modules import module_name
from pallasc.specs.spec import Variant


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    hide_nvjitlink()
    recorders.record_imports()
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
    before, shared = ProcessSnapshot(), SharedState()
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
    read_flags(os.environ)
    recorders.expose_variables(env)
    if file.is_file():
        recorders.enter(folder)
    with Listener().hearing(folder, outputs=(1, 2)) as hearing:
        try:
            specs = tuple(collect_python(file, shown=path))
        except PallascError as error:
            return Failed.because_of(error, hearing.diagnostics(), missed_of([name], folder, ()))
        diagnostics = hearing.diagnostics()
    for table in dict.fromkeys(spec.table for spec in specs if spec.table):
        # pallasc itself has read it for the file.
        recorders.record_of(name).look(FILE, str(Path(folder, table)))
    read = None
    try:
        read = find_sources([name], folder, entry_files=[file.name])
        uncached = why_uncached(read)
    except Exception as error:  # noqa: BLE001 - what the user's code did must not fail it here
        uncached = why_unknown_reads(error)
    return Collected(specs=specs, uncached=uncached, sources=read, diagnostics=diagnostics)


_SIZE = 128


def _rehearse(target: Target, tools: Tools) -> None:
    """Compile a small kernel for a target, so that JAX, Mosaic, and XLA have started before a task.

    Errors are left to the first task. No artifact shows a rehearsal: earlier compilations of a
    process have no effect on later ones.
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


_OURS = "pallasc.compiler."
_KINDS = {1: STDOUT, 2: STDERR}
"""The kind of text by file descriptor."""
_MOST_READ_BYTES = 1 << 20
"""Of a longer output, only the end is read."""


@dataclass(slots=True)
class Listener:
    """Diagnostics that a process has recorded.

    Attributes:
        imported: the diagnostics of modules while they were imported, by name.
    """

    imported: dict[str, list[Diagnostic]] = field(default_factory=dict)

    def forget_unloaded(self) -> None:
        """Forget the diagnostics of modules that will be executed again."""
        self.imported = {n: each for n, each in self.imported.items() if n in sys.modules}

    @contextlib.contextmanager
    def hearing(self, base_dir: str, *, outputs: tuple[int, ...] = (2,)) -> Iterator[Hearing]:
        """Listen until the end of the block.

        Args:
            base_dir: the folder of the variant's spec, which texts are freed of.
            outputs: the file descriptors to listen to, of 1 and 2.
        """
        with warnings.catch_warnings():
            pass  # forgets which warnings were shown already, so that they come again
        hearing = Hearing(self, base_dir, outputs)
        plain_warn, plain_handle = warnings.showwarning, logging.Logger.callHandlers
        warnings.showwarning = hearing.showing(plain_warn)
        logging.Logger.callHandlers = hearing.logging(plain_handle)  # type: ignore[method-assign]
        try:
            yield hearing
        finally:
            logging.Logger.callHandlers = plain_handle  # type: ignore[method-assign]
            warnings.showwarning = plain_warn


class Hearing:
    """Records diagnostics while a variant is made.

    Args:
        listener: gets the diagnostics of modules while they are imported.
        base_dir: the folder of the variant's spec.
        outputs: the file descriptors to listen to.

    Attributes:
        stage: the current stage.
        importing: the module that is being imported, "" if none is.
    """

    def __init__(self, listener: Listener, base_dir: str, outputs: tuple[int, ...]) -> None:
        self.stage: Stage = "lower"
        self.importing = ""
        self._listener = listener
        self._folders = {
            base_dir.rstrip("/"): "",
            (tempfile.tempdir or tempfile.gettempdir()).rstrip("/"): "$TMPDIR",
        }
        self._base_dir = base_dir
        self._own: list[Diagnostic] = []
        self._echoed: list[str] = []
        self._read_to = {descriptor: _size(descriptor) for descriptor in outputs}

    def showing(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return a replacement for `warnings.showwarning`."""

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            source = f"{_shown_file(filename, self._base_dir)}:{lineno}"
            self._add(category.__name__, source, str(message))
            self._echoed.append(warnings.formatwarning(message, category, filename, lineno, line))
            plain(message, category, filename, lineno, file, line)

        return show

    def logging(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return a replacement for `Logger.callHandlers`."""

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                with contextlib.suppress(Exception):  # arguments may not fit the message
                    text = record.getMessage()
                    self._add(record.levelname, record.name, text)
                    self._echoed.append(f"{text}\n")
            plain(logger, record)

        return call_handlers

    def next_stage(self, stage: Stage = "lower", *, importing: str = "") -> None:
        """Read the output so far, and begin a stage."""
        self._read()
        self.stage, self.importing = stage, importing

    def diagnostics(self, modules: Iterable[str] | None = None) -> tuple[Diagnostic, ...]:
        """Return the diagnostics, with the import of `modules`, or of all modules for None."""
        self._read()
        imported = self._listener.imported
        names = sorted({*(imported if modules is None else modules)})
        return merged([*(d for name in names for d in imported.get(name, ())), *self._own])

    def _add(self, kind: str, source: str, text: str) -> None:
        module = self.importing if kind in _KINDS.values() else _importing(sys._getframe(2))
        diagnostic = Diagnostic(self.stage, kind, source, stable(text, self._folders))
        if diagnostic.text:
            imported = self._listener.imported
            (imported.setdefault(module, []) if module else self._own).append(diagnostic)

    def _read(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # A handler of the user's may have put a prefix in front of it.
        echoed = {line for echo in self._echoed for line in echo.splitlines() if line.strip()}
        for descriptor, read_to in self._read_to.items():
            text = _since(descriptor, read_to)
            self._read_to[descriptor] = _size(descriptor)
            for echo in self._echoed:
                text = re.sub(f"^{re.escape(echo)}", "", text, count=1, flags=re.MULTILINE)
            for message in lines_of(text):
                if not any(message.endswith(line) for line in echoed):
                    self._add(_KINDS[descriptor], "", message)
        self._echoed.clear()


def _importing(frame: FrameType | None) -> str:
    """Return the user's innermost module that is being imported, "" if there is none."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = module_of(frame.f_globals)
            return "" if name.startswith(_OURS) or name == "__main__" else name
        frame = frame.f_back
    return ""


def _shown_file(filename: str, base_dir: str) -> str:
    """Return a file's path below the spec's folder or a folder of `sys.path`."""
    places = [base_dir, *sorted(filter(None, sys.path), key=len, reverse=True)]
    for place in places:
        if filename.startswith(f"{place.rstrip('/')}/"):
            return filename[len(place.rstrip("/")) + 1 :]
    return os.path.basename(filename)


def _size(descriptor: int) -> int:
    """Return the size of an output, 0 if it is not a file."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _since(descriptor: int, start: int) -> str:
    """Return the output after its first `start` bytes."""
    size = _size(descriptor)
    if size < start:
        start = 0  # the build has cut it (`worker_process.Log`)
    start = max(start, size - _MOST_READ_BYTES)
    try:
        return os.pread(descriptor, size - start, start).decode("utf-8", "replace")
    except OSError:
        return ""


def tracing_anew(number: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX traces everything again, a different one for each number.

    Otherwise JAX does not call a function again that it traced for an earlier variant, and its
    warnings are lost.
    """
    context: contextlib.AbstractContextManager[Any] = _user_context()(number)
    return context


@cache
def _user_context() -> Any:
    import jax

    return jax.make_user_context(0)


_GRAIN_NS = 20_000_000
"""The resolution of file times."""
_first_task_ns: list[int] = []
"""Time of this process's first task, less that resolution; no source is read before."""


def note_task() -> None:
    """Note that a task begins: from the first on, the user's files are read."""
    if not _first_task_ns:
        _first_task_ns.append(time.time_ns() - _GRAIN_NS)


@dataclass(slots=True)
class Session:
    """State shared by all compilations of this process.

    Attributes:
        tools: the toolchain.
        store: the store.
        digests: of files.
        before: the state of the process before it ran any of the user's code.
        shared: the state that variants share.
        signing: the parent publishes the manifests, because it signs them.
        listener: records diagnostics.
        traced: how many variants it has traced.
        versions: label -> version of each part of the toolchain, for people.
    """

    tools: Tools
    store: Store
    digests: FileDigests
    before: ProcessSnapshot
    shared: SharedState
    signing: bool
    listener: Listener = field(default_factory=Listener)
    traced: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)

    def compile(self, request: Compile) -> Compiled | Failed:
        """Make the artifact of a variant, or say why it cannot be compiled."""
        self.store.not_stored = ""
        if request.env and not self.traced:
            self.before.expose_variables(request.env)
        self.traced += 1
        with (
            self.listener.hearing(request.variant.base_dir) as hearing,
            tracing_anew(self.traced),
        ):
            earlier = recorders.missed_so_far()
            try:
                return _Compilation(request, self, hearing).run()
            except PallascError as error:
                variant = request.variant
                missed = missed_of(_entry_modules(variant), variant.base_dir, earlier)
                return replace(
                    Failed.because_of(error, missed=missed),
                    compiling=hearing.stage == "compile",
                    repeat=bool(hearing.importing) and self.shared.was_unloaded(error),
                )

    def find_lines(self, request: FindLines) -> LinesFound:
        """Find the user's source lines of the PTX of a variant's kernels.

        Raises:
            PallascError: it is compiled to other PTX now, or not at all.
        """
        from pallasc.compiler.lowering.line_tables import line_tables

        with self._again(request) as job:
            return LinesFound(tables=line_tables(job, self.tools, request.ptx, request.code))

    def find_ptx(self, request: FindPtx) -> PtxFound:
        """Find the PTX of the kernels that XLA made for a variant.

        Raises:
            PallascError: it is compiled to other cubins now, or not at all.
        """
        from pallasc.compiler.lowering.compile import xla_ptx

        with self._again(request) as job:
            return PtxFound(ptx=xla_ptx(job, self.tools, request.cubins))

    @contextmanager
    def _again(self, request: FindLines | FindPtx) -> Iterator[Job]:
        """Yield the job of a variant that was compiled before."""
        if request.env and not self.traced:
            self.before.expose_variables(request.env)
        self.traced += 1
        within = partial(self.before.working_in, request.variant.base_dir)
        with tracing_anew(self.traced):
            with within():
                job = replace(_job(request.variant), within=within)
            yield job


@dataclass(frozen=True, slots=True)
class _Compilation:
    """A request to compile, on its way through this process."""

    request: Compile
    session: Session
    hearing: Hearing

    def run(self) -> Compiled:
        """Lower the variant, find or make its artifact, and publish a manifest."""
        variant, store, before = self.request.variant, self.session.store, self.session.before
        started = time.monotonic()
        self.hearing.next_stage(importing=_entry_modules(variant)[0])
        within = partial(before.working_in, variant.base_dir)
        with within():
            job = replace(_job(variant), within=within)
        self.hearing.next_stage()
        restored = before.restore_variables()
        with printed_text() as printed:
            lowered = lower_job(job)
        restored += before.restore_variables()
        fields = action_fields(job, lowered, self.session.tools) | before.changed_settings()
        key = labelled_key(fields)
        with store.single_flight(key):
            made = self._stored(key) or self._compile(key, job, lowered)
        made = replace(made, seconds=time.monotonic() - started, printed=pack(printed.getvalue()))
        try:
            read = entry_sources(variant, named_entries(variant))
            made = replace(made, missed=read.missed)
            made = self._remember(made, read, fields)
        except Exception as error:  # noqa: BLE001 - what the user's code did must not fail it here
            made = replace(made, uncached=why_unknown_reads(error))
        warnings = {text: text for text in _without_effect(variant, restored)}
        return replace(made, not_stored=store.not_stored, warnings=store.topics | warnings)

    def _compile(self, key: str, job: Job, lowered: Lowered) -> Compiled:
        store = self.session.store
        self.hearing.next_stage("compile")
        record, blobs = compile_job(job, lowered, self.session.tools)
        diagnostics = self._diagnostics()
        store_for_action(store, key, diagnostics)
        doubt = self.request.trusted_records is not None
        put = store.put_artifact(key, record, blobs, replace=doubt)
        return Compiled(
            action=key, status="compiled", seconds=0.0, warnings={}, uncached="",
            digest=put.stored_digest or put.digest, conflict=put.reason if put.conflict else None,
            stored=put.stored, record=record, blobs=blobs, diagnostics=diagnostics,
        )  # fmt: skip

    def _stored(self, key: str) -> Compiled | None:
        """Return the store's artifact of an action key, None without one that the build trusts.

        The build's own process may not be able to read the store, so it gets a copy.
        """
        store, trusted_records = self.session.store, self.request.trusted_records
        record = None if trusted_records is None else trusted_records.get(key, "")
        if stored_artifact(store, key, record=record) is None:
            return None
        hit = Compiled(action=key, status="hit", seconds=0.0, warnings={}, uncached="")
        held = store.get_artifact(key, verify=True)
        if held is None:
            return hit
        earlier = [each for each in stored_for_action(store, key) if each.stage == "compile"]
        return replace(
            hit,
            digest=held.digest,
            record=held.artifact,
            blobs={name: data for name in held.names if (data := held.blob(name)) is not None},
            diagnostics=merged([*self._diagnostics(), *earlier]),
        )

    def _diagnostics(self) -> tuple[Diagnostic, ...]:
        return self.hearing.diagnostics(_reached(self.request.variant))

    def _cost_s(self, made: Compiled) -> float:
        """Return how long compiling took: now, or earlier if it was only lowered again."""
        if made.status == "compiled":
            return made.seconds
        store = self.session.store
        for name, manifest in store.sets(self.request.request):
            if manifest.action == made.action and store.believes(name, manifest):
                return max(made.seconds, manifest.cost_s)
        return made.seconds

    def _remember(self, made: Compiled, read: Sources, fields: Mapping[str, str]) -> Compiled:
        """Publish the manifest, or have the build do it, or note why there is none."""
        request, session, variant = self.request, self.session, self.request.variant
        if request.data != data_digests(variant, session.digests):
            return replace(made, uncached="a data file of its spec changed during compilation")
        if uncached := why_uncached(read):
            return replace(made, uncached=uncached)
        manifest = replace(
            make_manifest(made.action, read, session.digests),
            name=variant.name,
            variant=variant.id,
            about={**About.of(variant).to_json(), "seconds": self._cost_s(made)},
            versions=session.versions,
            request=fields_text(request.fields),
            fields=fields_text(fields),
            printed=made.printed,
            diagnostics=[each.to_json() for each in made.diagnostics],
            record=made.digest or "",
        )
        made = replace(made, manifest_key=set_name(self.request.request, manifest.read))
        if session.signing:
            return replace(made, manifest=manifest.to_json())
        session.store.put_set(self.request.request, manifest)
        return made


def _without_effect(variant: Variant, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    which = ", ".join(dict.fromkeys(names))
    return [f"{variant.name} sets {which}, which has no effect: set it where the build is started"]


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
    """Return the sources that the modules of entry points of a variant reach."""
    return find_sources(
        _modules(entries),
        variant.base_dir,
        folders=place_of(variant).folders,
        entry_files=[entry.source for entry in entries if entry.is_file],
    )


def _reached(variant: Variant) -> set[str]:
    """Return the names of the modules that those which a variant names reach."""
    return closure(_entry_modules(variant))


def _entry_modules(variant: Variant) -> list[str]:
    """Return the names of the modules that a variant names, its entry's first."""
    return _modules(named_entries(variant))


def _modules(entries: Sequence[Entry]) -> list[str]:
    return [module_name(e.source) if e.is_file else e.source for e in entries]


def missed_of(entries: Sequence[str], base_dir: str, earlier: Iterable[str]) -> dict[str, str]:
    """Return `missed_by`; {} if the user's code makes it fail."""
    try:
        return missed_by(entries, base_dir, earlier)
    except Exception:  # noqa: BLE001 - the error of the compilation itself is what counts
        return {}


def why_uncached(read: Sources) -> str:
    """Return the reason for having no manifest of what was read, "" without one."""
    if read.unknown:
        return f"cannot compute a digest of {', '.join(sorted(read.unknown))}: no file"
    if read.unseen:
        return f"{min(read.unseen)}, whose digest cannot be computed"
    changed = read.changed_since(_first_task_ns[0])
    return f"{name_of(changed[0])} changed during compilation" if changed else ""


def why_unknown_reads(error: Exception) -> str:
    """Return the reason for having no manifest after an error in finding out what was read."""
    return f"cannot determine which files it read: {summary_of(error)}"
