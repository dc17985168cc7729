"""What the test programs publish: from a number follow key, artifact and blobs, so that any
other answer of the store is recognised as wrong."""

import functools
import hashlib
import io
import random
import tempfile
from pathlib import Path
from typing import Any

from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS, encode, sha256
from pallasc.cache.manifests import Manifest
from pallasc.cache.pack_writer import write_pack
from pallasc.cache.packs import Entry
from pallasc.cache.store import Store, StoredArtifact
from pallasc.cache.transfer import Imported, import_file


@functools.cache
def key(number: int) -> str:
    """Return the action key of a number."""
    return hashlib.sha256(f"key {number}".encode()).hexdigest()


def artifact(number: int) -> dict[str, Any]:
    """Return the artifact of a number."""
    return {"number": number, "steps": list(range(number % 50))}


@functools.cache
def blobs(number: int) -> dict[str, bytes]:
    """Return two blobs of a number; the second one is shared by every tenth number."""
    source = random.Random(number)
    shared = random.Random(number % 10 + 1_000_000)
    return {"cubin": source.randbytes(20_000 + number), "ptx": shared.randbytes(5_000)}


def manifest(number: int, edition: int = 0) -> Manifest:
    """Return the manifest of a number; `edition` tells later ones apart."""
    return Manifest(name=str(number), variant=str(edition), printed="x" * (edition % 300))


def publish(store: Store, number: int) -> None:
    """Publish the artifact and then the manifest of a number."""
    store.put_artifact(key(number), artifact(number), blobs(number))
    store.put_manifest(key(number), manifest(number))


def pack(*numbers: int) -> bytes:
    """Return a pack of all that is published of some numbers."""
    out = io.BytesIO()
    write_pack([_entries(number) for number in numbers], out)
    return out.getvalue()


def add(store: Store, *numbers: int) -> Imported:
    """Import a pack of all that is published of some numbers; raises as `import_file` does."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(pack(*numbers))
        file.flush()
        return import_file(store, Path(file.name))


def _entries(number: int) -> list[Entry]:
    name, parts = key(number), blobs(number)
    named = {label: {"digest": sha256(b), "size": len(b)} for label, b in parts.items()}
    body = {"artifact": artifact(number), "blobs": named}
    return [
        Entry(MANIFESTS, name, encode(KINDS[MANIFESTS], name, manifest(number).to_json())[0]),
        Entry(ARTIFACTS, name, encode(KINDS[ARTIFACTS], name, body)[0]),
        *(Entry(BLOBS, sha256(data), data) for data in parts.values()),
    ]


def is_right(found: StoredArtifact, number: int) -> bool:
    """Tell whether an artifact is the one of this number, in every byte."""
    wanted = blobs(number)
    return (
        found.artifact == artifact(number)
        and found.names == sorted(wanted)
        and all(found.blob(name) == data for name, data in wanted.items())
    )
