"""An artifact that tests of the store put and look for."""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from variants import action_key

from pallasc.cache.pack_writer import write_pack
from pallasc.cache.packs import Entry
from pallasc.cache.store import PutResult, Store, StoredArtifact

KEY = "ab" * 32
OTHER = "cd" * 32
ARTIFACT = {"target": "sm_90a", "registers": 168}
BLOBS = {"cubin": b"\x7fELF" + b"c" * 5000, "ptx": b".version 8.8"}


def put(store: Store, key: str = KEY) -> PutResult:
    return store.put_artifact(key, ARTIFACT, BLOBS)


def put_blob(store: Store, data: bytes) -> str:
    """Publish a blob that no record names; return its digest."""
    digest = hashlib.sha256(data).hexdigest()
    store._publish_blobs({digest: data})
    return digest


def blob_path(store: Store, data: bytes) -> Path:
    return store.path("cas", hashlib.sha256(data).hexdigest())


def files_in(store: Store, folder: str) -> list[str]:
    return sorted(path.name for path in (store.folder / folder).rglob("*") if path.is_file())


def pack_of(*groups: Sequence[Entry]) -> bytes:
    out = io.BytesIO()
    write_pack(groups, out)
    return out.getvalue()


def held(store: Store) -> set[int]:
    """Return the numbers of the variants whose artifacts a reader finds whole."""
    seen = Store(store.root)
    found = {n for n in range(20) if seen.get_artifact(action_key(n), verify=True) is not None}
    assert seen.warnings == []
    return found


def artifact_of(store: Store, key: str = KEY) -> StoredArtifact:
    """Return an artifact, verified, which must be there."""
    found = store.get_artifact(key, verify=True)
    assert found is not None
    return found


def content_of(store: Store, key: str = KEY) -> tuple[Any, dict[str, bytes | None]]:
    """Return what an artifact holds, which must be there."""
    found = artifact_of(store, key)
    return found.artifact, {name: found.blob(name) for name in found.names}
