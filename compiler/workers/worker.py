"""The worker process: imports JAX once, then compiles what it is told, for one architecture.

Started by the warden as `main([REQUESTS, ANSWERS, PARENT], channel)`, with two inherited pipe
descriptors, the parent's process id, and what answers go through. Standard output and error belong
to whatever runs here; the parent keeps them in files, of which the worker reads the second again
(`listening`). The worker ends when the pipe of requests closes, or its parent dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pallasc.cache.about import seconds_of
from pallasc.cache.signing import Trust
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs import closure, imports, reads
from pallasc.compiler.inputs.lookup import stored_artifact
from pallasc.compiler.inputs.manifest import (
    about,
    data_digests,
    fields_text,
    folder_key,
    import_folders,
    make_manifest,
    named_entries,
)
from pallasc.compiler.inputs.process_state import Surroundings, read_flags
from pallasc.compiler.inputs.reads import name_of
from pallasc.compiler.inputs.seclusion import admit, enter
from pallasc.compiler.inputs.sources import Sources, sources_to_json
from pallasc.compiler.lowering import device_library
from pallasc.compiler.lowering.compile import Job, Tools, action_fields, compile_job, lower_job
from pallasc.compiler.lowering.entry import array_arguments, import_function, static_value
from pallasc.compiler.lowering.kernel_output import pack, printed_text
from pallasc.compiler.lowering.ptxas_reports import Reports
from pallasc.compiler.toolchain import nvjitlink
from pallasc.compiler.workers.channel import Channel
from pallasc.compiler.workers.diagnostics import (
    Diagnostic,
    merged,
    store_for_action,
    stored_for_action,
)
from pallasc.compiler.workers.listening import Hearing, Listener, tracing_anew
from pallasc.compiler.workers.messages import blobs_to_json, decode, error_to_json
from pallasc.errors import CompileError, PallascError, SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import labelled_key
from pallasc.specs.garbage import collector_past
from pallasc.specs.loading.modules import module_name
from pallasc.specs.spec import Variant
from pallasc.specs.wire import spec_to_json, variant_from_json

_PR_SET_PDEATHSIG = 1
_STARTED_NS = time.time_ns() - 20_000_000
"""When this process began, less the grain of file times; no source is read before."""


@dataclass(slots=True)
class _Session:
    """What the parent said once: the tools, the store, the digests that it knows.

    `before` is what this process was like before it ran any of the user's code, `listener` what it
    has heard since, `traced` counts what it has traced, and `versions` are those of the toolchain,
    for people. `signing`: the parent publishes the manifests, because it signs them; no key ever
    comes here.
    """

    tools: Tools
    store: Store
    digests: FileDigests
    before: Surroundings
    signing: bool
    listener: Listener = field(default_factory=Listener)
    traced: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)


def main(arguments: list[str], channel: Channel) -> int:
    """Serve requests until there are no more."""
    requests, _, parent = (int(text) for text in arguments)
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    nvjitlink.hide()
    imports.record_imports()
    imports.read_sources_afresh()
    with os.fdopen(requests, "rb") as source:
        _serve(source, channel)
    return 0


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _serve(source: BinaryIO, channel: Channel) -> None:
    session: _Session | None = None
    for line in source:
        message = decode(line)
        if message["op"] == "warm":
            _import_compiler()
            continue
        if message["op"] == "listen":
            channel.send({"ready": True})
            continue
        if message["op"] == "context":
            session = _session(message)
            channel.send({"ready": True})
            continue
        try:
            answer = _answer(message, session)
        except PallascError as error:
            answer = {"ok": False, "error": error_to_json(error)}
        if session is not None:
            session.before.put_back()
        answer["spoilt"] = session is not None and session.before.is_spoilt()
        answer["task"] = message.get("task")
        channel.send(answer)


def _import_compiler() -> None:
    """Import what every compilation needs, while the parent is still busy."""
    with collector_past():
        import jax
        import jax.experimental.pallas.mosaic_gpu
        import llvmlite.binding
    del jax, llvmlite


def _session(message: Mapping[str, Any]) -> _Session:
    tools = Tools(
        record=message["record"],
        ptxas=Path(message["ptxas"]),
        identity=message["identity"],
        variables=message["variables"],
        toolkit=Path(message["toolkit"]),
        reports=_reports(Path(message["ptxas"])),
    )
    device_library.offer(Path(message["toolkit"]), Path(tempfile.gettempdir()))
    _import_compiler()
    store, signing = Store(message["store"], trust=Trust()), message["signing"]
    # What the store remembers of files is signed too, and only the parent can tell.
    digests = FileDigests(None if signing else store.root)
    session = _Session(tools, store, digests, Surroundings.now(), signing)
    session.versions = message["versions"]
    return session


def _reports(ptxas: Path) -> Reports:
    """Put what keeps the assembler's reports first on PATH, where XLA and Mosaic look for it."""
    reports = Reports(ptxas, Path(tempfile.mkdtemp(prefix="ptxas-")))
    # Not in `os.environ`: what the user's code looks up there is compared with the build's own.
    os.putenv("PATH", os.pathsep.join([str(reports.folder), os.environ["PATH"]]))
    return reports


def _answer(message: Mapping[str, Any], session: _Session | None) -> dict[str, Any]:
    if message["op"] == "collect":
        return _collect(message["path"], message.get("env", {}))
    if session is None:
        raise CompileError("a worker was asked to compile before it had its context")
    return _compile(variant_from_json(message["variant"]), message, session)


def _collect(path: str, env: Mapping[str, str | None]) -> dict[str, Any]:
    from pallasc.specs.loading.decorator import collect_python

    file = Path(path).resolve()
    folder, name = str(file.parent), module_name(path)
    if any(variable.endswith("_FLAGS") for variable in os.environ):
        read_flags()
    admit(env)
    if file.is_file():
        enter(folder)
    with Listener().hearing(folder, outputs=(1, 2)) as hearing:
        try:
            specs = collect_python(file, shown=path)
        except PallascError as error:
            said = [one.to_json() for one in hearing.everything()]
            return {"ok": False, "error": error_to_json(error), "diagnostics": said}
        said = [one.to_json() for one in hearing.everything()]
    answer: dict[str, Any] = {"ok": True, "specs": [spec_to_json(spec) for spec in specs]}
    answer["diagnostics"] = said
    for table in dict.fromkeys(spec.table for spec in specs if spec.table):
        # pallasc read it, on the file's behalf.
        reads.of_module(name).look(reads.FILE, str(Path(folder, table)))
    try:
        read = closure.sources(closure.closure([name]), folder, by_path={name: file.name})
        return {**answer, "sources": sources_to_json(read), "uncached": _why_uncached(read)}
    except Exception as error:  # noqa: BLE001 - what the user's code did must not fail it here
        return {**answer, "uncached": _untold(error)}


def _why_uncached(read: Sources) -> str:
    """Return why no manifest may say what was read, "" if one may."""
    if read.unknown:
        return f"{', '.join(sorted(read.unknown))} has no file to take a digest of"
    if read.unseen:
        return f"{min(read.unseen)}, of which no digest can be taken"
    changed = read.changed_since(_STARTED_NS)
    return f"{name_of(changed[0])} was changed meanwhile" if changed else ""


def _untold(error: Exception) -> str:
    said = traceback.format_exception_only(error)[-1].strip()
    return f"what it read cannot be told: {said}"


def _compile(variant: Variant, message: Mapping[str, Any], session: _Session) -> dict[str, Any]:
    session.store.not_stored = ""
    if message.get("env") and not session.traced:
        session.before.admit(message["env"])
    session.traced += 1
    with (
        session.listener.hearing(variant.base_dir) as hearing,
        tracing_anew(session.traced),
    ):
        return _heard_compile(variant, message, session, hearing)


def _heard_compile(
    variant: Variant, message: Mapping[str, Any], session: _Session, hearing: Hearing
) -> dict[str, Any]:
    started = time.monotonic()
    hearing.next_stage(importing=_entry_modules(variant)[0])
    within = partial(session.before.working_in, variant.base_dir)
    with within():
        job = replace(_job(variant), within=within)
    hearing.next_stage()
    taken_back = session.before.take_back()
    with printed_text() as printed:
        lowered = lower_job(job)
    taken_back += session.before.take_back()
    fields = action_fields(job, lowered, session.tools) | session.before.changed_settings()
    key = labelled_key(fields)
    answer: dict[str, Any] = {"ok": True, "action": key, "status": "hit"}
    answer["printed"] = pack(printed.getvalue())
    found: tuple[Diagnostic, ...] = ()
    with session.store.single_flight(key):
        if _held(key, message, session) is None:
            hearing.next_stage("compile")
            record, blobs = compile_job(job, lowered, session.tools)
            found = hearing.found(_reached(variant))
            store_for_action(session.store, key, found)
            doubt = message["believed"] is not None
            put = session.store.put_artifact(key, record, blobs, replace=doubt)
            answer["digest"] = put.kept or put.digest
            answer["status"] = "compiled"
            if put.conflict:
                answer["conflict"] = put.reason
            answer |= {"stored": put.stored, "record": record, "blobs": blobs_to_json(blobs)}
        elif (held := session.store.get_artifact(key, verify=True)) is not None:
            # For the build's own process, which may not be able to read it.
            answer["digest"] = held.digest
            parts = {name: data for name in held.names if (data := held.blob(name)) is not None}
            answer |= {"record": held.artifact, "blobs": blobs_to_json(parts)}
            then = [o for o in stored_for_action(session.store, key) if o.stage == "compile"]
            found = merged([*hearing.found(_reached(variant)), *then])
    answer["seconds"] = time.monotonic() - started
    answer["diagnostics"] = [one.to_json() for one in found]
    try:
        read = _sources(variant)
        answer["missed"] = read.missed
        cost_s = _cost_s(variant, message, session, answer)
        answer["uncached"] = _remember(
            variant, read, message, session, fields, answer, seconds=cost_s,
            **{name: answer[name] for name in ("printed", "diagnostics") if answer[name]},
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - what the user's code did must not fail it here
        answer["uncached"] = _untold(error)
    answer["not_stored"] = session.store.not_stored
    answer["warnings"] = [*session.store.warnings, *_without_effect(variant, taken_back)]
    return answer


def _held(key: str, message: Mapping[str, Any], session: _Session) -> Artifact | None:
    """Return what the store has under an action key, if the parent believes it."""
    believed = message["believed"]
    if believed is None:
        return stored_artifact(session.store, key)
    return stored_artifact(session.store, key, record=believed.get(key, ""))


def _cost_s(
    variant: Variant, message: Mapping[str, Any], session: _Session, answer: Mapping[str, Any]
) -> float:
    """Return what compiling took: now, or once, where it was only lowered again."""
    seconds: float = answer["seconds"]
    if answer["status"] == "compiled":
        return seconds
    for name in (folder_key(message["request"], variant.base_dir), message["request"]):
        told = (session.store.get_manifest(name) or {}).get("about")
        if isinstance(told, Mapping):
            return max(seconds, seconds_of(told.get("seconds")))
    return seconds


def _remember(
    variant: Variant,
    read: Sources,
    message: Mapping[str, Any],
    session: _Session,
    fields: Mapping[str, str],
    answer: dict[str, Any],
    *,
    seconds: float,
    **told: Any,
) -> str:
    """Publish the manifest of a compilation, or answer it; return why there is none, or "".

    `told` is what else it holds.
    """
    if message["data"] != data_digests(variant, session.digests):
        return "a data file of its spec was changed meanwhile"
    uncached = _why_uncached(read)
    if uncached:
        return uncached
    manifest = make_manifest(
        labelled_key(fields),
        read,
        session.digests,
        name=variant.name,
        variant=variant.id,
        about={**about(variant).to_json(), "seconds": seconds},
        versions=session.versions,
        request=fields_text(message["fields"]),
        fields=fields_text(fields),
        **told,
        **({"record": answer["digest"]} if "digest" in answer else {}),
    )
    if session.signing:
        answer["manifest"] = manifest
        return ""
    for name in (folder_key(message["request"], variant.base_dir), message["request"]):
        session.store.put_manifest(name, manifest)
    return ""


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
            static={k: static_value(v, variant.base_dir) for k, v in variant.static.items()},
            target=variant.target,
            mesh=variant.mesh,
        )
    except SpecError as error:
        error.location = error.location or variant.location
        raise


def _sources(variant: Variant) -> Sources:
    """Return the sources that the modules which a variant names reach."""
    entries = named_entries(variant)
    read = closure.sources(
        _reached(variant),
        variant.base_dir,
        folders=import_folders(variant),
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
    entries = named_entries(variant)
    return [module_name(e.source) if e.is_file else e.source for e in entries]
