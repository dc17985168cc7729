"""A variant on its way through a worker: from the request to the artifact and its manifest.

The user's code is imported and traced here. If it keeps pallasc from finding out what was read,
there is no manifest, and the variant is lowered again next time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pallasc.cache.about import About
from pallasc.cache.manifests import set_name
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs import closure
from pallasc.compiler.inputs.lookup import stored_artifact
from pallasc.compiler.inputs.manifest import fields_text, make_manifest
from pallasc.compiler.inputs.process_snapshot import ProcessSnapshot, SharedState
from pallasc.compiler.inputs.reads import missed_so_far, name_of
from pallasc.compiler.inputs.request import (
    data_digests,
    named_entries,
    place_of,
)
from pallasc.compiler.inputs.sources import Sources
from pallasc.compiler.lowering.compile import Job, Tools, action_fields, compile_job, lower_job
from pallasc.compiler.lowering.entry import array_arguments, import_function, static_arguments
from pallasc.compiler.lowering.kernel_output import pack, printed_text
from pallasc.compiler.lowering.lower import Lowered
from pallasc.compiler.workers.diagnostics import (
    Diagnostic,
    merged,
    store_for_action,
    stored_for_action,
)
from pallasc.compiler.workers.listening import Hearing, Listener, tracing_anew
from pallasc.compiler.workers.messages import (
    Compile,
    Compiled,
    Failed,
    FindLines,
    FindPtx,
    LinesFound,
    PtxFound,
)
from pallasc.errors import PallascError, SpecError, summary_of
from pallasc.specs.canonical import labelled_key
from pallasc.specs.entries import Entry
from pallasc.specs.loading.modules import module_name
from pallasc.specs.spec import Variant

_GRAIN_NS = 20_000_000
"""The resolution of file times."""
_first_task_ns: list[int] = []
"""When this process got its first task, less that resolution; no source is read before."""


def note_task() -> None:
    """Note that a task begins: from the first on, the user's files are read."""
    if not _first_task_ns:
        _first_task_ns.append(time.time_ns() - _GRAIN_NS)


@dataclass(slots=True)
class Session:
    """What holds for all compilations of this process.

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
            earlier = missed_so_far()
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
        """Return what the store has under an action key, None for nothing that the build believes.

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
        """Publish the manifest, or have the build do it, or tell why there is none."""
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
    read = closure.sources(
        closure.closure(_modules(entries)),
        variant.base_dir,
        folders=place_of(variant).folders,
        by_path={module_name(e.source): e.source for e in entries if e.is_file},
    )
    # Two files of one name in two folders share a module name.
    read.files.update(
        (f"file:{e.source}", Path(variant.base_dir) / e.source) for e in entries if e.is_file
    )
    return read


def _reached(variant: Variant) -> set[str]:
    """Return the names of the modules that those which a variant names reach."""
    return closure.closure(_entry_modules(variant))


def _entry_modules(variant: Variant) -> list[str]:
    """Return the names of the modules that a variant names, that of its entry first."""
    return _modules(named_entries(variant))


def _modules(entries: Sequence[Entry]) -> list[str]:
    return [module_name(e.source) if e.is_file else e.source for e in entries]


def missed_of(entries: Sequence[str], base_dir: str, earlier: Iterable[str]) -> dict[str, str]:
    """Return `closure.missed_by`; {} where what the user's code did makes it fail."""
    try:
        return closure.missed_by(entries, base_dir, earlier)
    except Exception:  # noqa: BLE001 - the error of the compilation itself is what counts
        return {}


def why_uncached(read: Sources) -> str:
    """Return why there can be no manifest of what was read, "" if there can."""
    if read.unknown:
        return f"cannot compute a digest of {', '.join(sorted(read.unknown))}: no file"
    if read.unseen:
        return f"{min(read.unseen)}, whose digest cannot be computed"
    changed = read.changed_since(_first_task_ns[0])
    return f"{name_of(changed[0])} changed during compilation" if changed else ""


def why_unknown_reads(error: Exception) -> str:
    """Return why there is no manifest: finding out what was read raised an error."""
    return f"cannot determine which files it read: {summary_of(error)}"
