"""What a worker of a cluster compiled, verified and published in the store here.

The worker's word counts for nothing that can be checked: every blob is hashed, the record is read
as any stranger's, and what the compilation read must be what lies here. What cannot be checked, as
that the cubin is what the lowered module compiles to, is why a cluster has to be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pallasc.cache import format
from pallasc.cache.format import ARTIFACTS, KINDS, sha256
from pallasc.cache.manifests import Manifest, check_manifest, manifest_from_json, set_name
from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.manifest import fields_text
from pallasc.compiler.inputs.request import Request
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.workers.diagnostics import store_for_action
from pallasc.compiler.workers.messages import Compile, Compiled
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact


def received(
    reply: Compiled,
    *,
    asked: Compile,
    keys: Request,
    lookup: Lookup,
    store: Store,
    sent: Mapping[str, str],
) -> Compiled | str:
    """Publish an artifact that a worker compiled; return why the worker cannot be used, if so.

    Args:
        reply: the worker's reply.
        asked: what it was asked for.
        keys: the request of the variant.
        lookup: compares sources with those here.
        store: the store here.
        sent: digests of the files that were sent, by path.
    """
    record = reply.record
    if record is None:
        return "its answer has no artifact"
    if wrong := _wrong_artifact(reply, record, asked):
        return wrong
    if reply.manifest is not None:
        manifest, wrong = _manifest(reply, asked, keys)
        if manifest is None:
            return wrong
        change = lookup.first_change(manifest, keys.place)
        if change is not None and not _changed_here(change.kind, change.label, keys.place, sent):
            return f"what it read there is not what is here: {change.sentences()[0]}"
        if change is not None:
            uncached = f"{change.sentences()[0]} during compilation"
            reply = replace(reply, manifest=None, manifest_key="", uncached=uncached)
        else:
            reply = replace(reply, manifest_key=set_name(keys.key, manifest.read))
    return _published(reply, record, asked, store)


def _wrong_artifact(reply: Compiled, record: Mapping[str, object], asked: Compile) -> str:
    """Return what is wrong with an artifact, "" if nothing is."""
    try:
        artifact = Artifact(record, lambda name: reply.blobs.get(name, b""))
        artifact.blobs()
        _ = artifact.kernels, artifact.plan  # which read the rest of the record
    except PallascError as error:
        return f"its artifact is damaged: {error.message}"
    target = {name: value for name, value in artifact.target.items() if name != "name"}
    if target != asked.variant.target.figures():
        return "its artifact is for another target"
    if {*reply.blobs} != {*artifact.record["blobs"]}:
        return "its artifact comes with other files than it names"
    if any(sha256(data) != name for name, data in reply.blobs.items()):
        return "a file of its artifact has another digest"
    parts = {name: {"digest": name, "size": len(data)} for name, data in reply.blobs.items()}
    body = {"artifact": record, "blobs": parts}
    if format.encode(KINDS[ARTIFACTS], reply.action, body)[1] != reply.digest:
        return "its artifact has another digest than it says"
    return ""


def _manifest(reply: Compiled, asked: Compile, keys: Request) -> tuple[Manifest | None, str]:
    """Return the manifest of a reply, or what is wrong with it."""
    body = reply.manifest or {}
    try:
        check_manifest(keys.key, body)
        manifest = manifest_from_json(body)
    except PallascError as error:
        return None, f"its manifest is damaged: {error.message}"
    told = (manifest.action, manifest.record, manifest.variant, manifest.request)
    if told != (reply.action, reply.digest, asked.variant.id, fields_text(asked.fields)):
        return None, "its manifest is that of another variant"
    return manifest, ""


def _changed_here(kind: str, label: str, place: Place, sent: Mapping[str, str]) -> bool:
    """Tell whether a source was changed here since it was sent."""
    path = place.locate(label) if kind == "files" else None
    if path is None or str(path) not in sent:
        return kind == "files" and path is None
    try:
        return sha256(path.read_bytes()) != sent[str(path)]
    except OSError:
        return True


def _published(
    reply: Compiled, record: Mapping[str, object], asked: Compile, store: Store
) -> Compiled:
    """Publish an artifact as a worker here does."""
    store.not_stored = ""
    if reply.status == "compiled":
        store_for_action(store, reply.action, reply.diagnostics)
    doubt = asked.trusted_records is not None
    put = store.put_artifact(reply.action, record, reply.blobs, replace=doubt)
    digest = put.stored_digest or put.digest
    manifest = reply.manifest
    return replace(
        reply,
        digest=digest,
        status="hit" if put.existed else "compiled",
        conflict=put.reason if put.conflict else None,
        stored=put.stored,
        not_stored=store.not_stored,
        manifest=None if manifest is None else {**manifest, "record": digest},
    )
