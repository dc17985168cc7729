"""Publish a pack in a store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import BinaryIO

from pallasc.cache import files, format
from pallasc.cache.format import ARTIFACTS, BLOBS, MANIFESTS
from pallasc.cache.packs.format import Entry
from pallasc.cache.store import Store


def publish_pack(
    store: Store, data: bytes | Callable[[BinaryIO], str], newer: Iterable[Entry] = ()
) -> str:
    """Publish a pack in which every file was verified; return its digest.

    Args:
        store: the store.
        data: the pack, or a function that writes it and returns its digest.
        newer: manifests in whose place the store has other ones.

    Raises:
        OSError: it cannot be written.
    """
    digest = ""

    def write(out: BinaryIO) -> None:
        nonlocal digest
        digest = data(out) if callable(data) else format.sha256(data)
        if not callable(data):
            out.write(data)

    try:
        for area in (MANIFESTS, ARTIFACTS, BLOBS):  # looking into a folder is faster with one there
            with store.folders.opened(area, make=True):
                pass
        with files.temporary(store.folders, write) as place:
            to = f"{format.PACKS}/{digest}"
            # One of this name that is there already has lost files, or this would not be needed.
            with contextlib.suppress(FileNotFoundError):
                store.folders.unlink(f"{to}{format.GONE}")
            files.publish_last(store.folders, place, to)
        store.folders.sync(format.PACKS)
        for entry in newer:
            store.publish_manifest(entry.name, entry.data)
    finally:
        store.relist_packs()
    return digest
