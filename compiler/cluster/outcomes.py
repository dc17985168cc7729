"""The reply of a dask worker for one variant: as it travels, and verified by the build.

Nothing that a worker claims is believed if it can be checked: each blob is hashed, the record is
read like any stranger's, and the sources that the compilation read must be those here. Nobody can
check that a cubin is what its source compiles to without compiling it, so a cluster has to be
trusted for that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from pallasc.cache.manifests import Manifest, check_manifest, manifest_from_json, set_name
from pallasc.cache.store import Store
from pallasc.compiler.cluster.sources import SentSources, certain_sources
from pallasc.compiler.inputs.changes import SourceChange
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.manifest import fields_text, joined
from pallasc.compiler.inputs.request import Request
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.workers.channel import decode, encode
from pallasc.compiler.workers.diagnostics import store_for_action
from pallasc.compiler.workers.messages import Compile, Compiled, Reply, Task
from pallasc.compiler.workers.messages import Request as WorkerRequest
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact

REFUSED = "refused"
"""The kind of error of a worker that compiles nothing for a build."""
LONGEST_BYTES = 256 << 20
_MOST_VALUES = 1_000_000
"""Parsed, a value of three characters takes some 60 bytes."""


def reply_bytes(reply: Reply, root: str = "") -> bytes:
    """Return a reply as it travels, without the folder `root` in its paths."""
    return encode(reply.to_json()).replace(json.dumps(root)[1:-1].encode(), b"")


def read_reply(request: WorkerRequest, data: object) -> Reply:
    """Return the reply to a request that `reply_bytes` was given.

    Raises:
        ValueError: it is malformed.
    """
    if type(data) is not bytes or len(data) > LONGEST_BYTES:
        raise ValueError("not bytes, or too many")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError("too many values")
    try:
        return request.read_reply(decode(data))
    except RecursionError as error:
        raise ValueError("values too deep in each other") from error


def publish(
    requests: Sequence[Request],
    lookup: Lookup,
    store: Store,
    sent: SentSources,
    task: Task,
    reply: Compiled,
) -> Compiled:
    """Publish an artifact that a worker compiled.

    Args:
        requests: the requests of a build's tasks, by their labels.
        lookup: compares sources with those here.
        store: the store here.
        sent: the sources that were sent.
        task: the task.
        reply: the worker's reply.

    Raises:
        ValueError: it is rejected.
    """
    keys, asked = requests[task.label], task.make_request()
    if not isinstance(asked, Compile):
        raise TypeError(f"a task that asks for no artifact: {asked.op}")
    try:
        _check_artifact(reply, asked)
        if reply.manifest is not None:
            manifest = _checked_manifest(reply, asked, keys.key)
            change = lookup.first_change(manifest, keys.place)
            if change is None:
                reply = replace(reply, manifest_key=set_name(keys.key, manifest.read))
            elif _has_changed_here(change, keys.place, sent):
                uncached = f"{change.sentences()[0]} during compilation"
                reply = replace(reply, manifest=None, manifest_key="", uncached=uncached)
            else:
                raise ValueError(f"its sources are not those here: {change.sentences()[0]}")
    except CorruptError as error:
        raise ValueError(f"its answer is damaged: {error.message}") from error
    return _published(reply, asked, store)


def _check_artifact(reply: Compiled, asked: Compile) -> None:
    if reply.record is None:
        raise ValueError("its answer has no artifact")
    artifact = Artifact(reply.record, lambda name: reply.blobs.get(name, b""))
    artifact.blobs()
    _ = artifact.kernels, artifact.plan  # which read the rest of the record
    target = {name: value for name, value in artifact.target.items() if name != "name"}
    if target != asked.variant.target.figures():
        raise ValueError("its artifact is for another target")
    if {*reply.blobs} != {*artifact.record["blobs"]}:
        raise ValueError("its artifact comes with other files than it names")


def _checked_manifest(reply: Compiled, asked: Compile, key: str) -> Manifest:
    body = reply.manifest or {}
    check_manifest(key, body)
    manifest = manifest_from_json(body)
    claimed = (manifest.action, manifest.variant, manifest.request)
    if claimed != (reply.action, asked.variant.id, fields_text(asked.fields)):
        raise ValueError("its manifest is for another variant")
    sealed = joined(manifest, manifest)
    if sealed is None or sealed.read != manifest.read:
        raise ValueError("its manifest has another digest than its sources")
    if missing := certain_sources(asked.variant) - manifest.files.keys():
        raise ValueError(f"its manifest leaves out {min(missing)}")
    return manifest


def _has_changed_here(change: SourceChange, place: Place, sent: SentSources) -> bool:
    """Return True if a source here is not the one that was sent."""
    path = place.locate(change.label) if change.kind == "files" else None
    if path is None or str(path) not in sent.files:
        return change.kind == "files" and path is None
    return not path.is_file() or path.read_bytes() != sent.files[str(path)]


def _published(reply: Compiled, asked: Compile, store: Store) -> Compiled:
    """Publish an artifact as a worker here does."""
    store.not_stored = ""
    if reply.status == "compiled":
        store_for_action(store, reply.action, reply.diagnostics)
    doubt = asked.trusted_records is not None
    put = store.put_artifact(reply.action, reply.record or {}, reply.blobs, replace=doubt)
    digest = put.stored_digest or put.digest
    return replace(
        reply,
        digest=digest,
        status="hit" if put.existed else "compiled",
        conflict=put.reason if put.conflict else None,
        stored=put.stored,
        not_stored=store.not_stored,
        manifest=reply.manifest and {**reply.manifest, "record": digest},
    )
