"""An artifact that tests of the store put and look for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pallasc.cache.store import PutResult, Store

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
