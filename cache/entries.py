"""The files of one variant, as packs take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallasc.cache.format import ARTIFACTS, BLOBS, MANIFESTS

if TYPE_CHECKING:
    from pallasc.cache.packs.format import Entry
    from pallasc.cache.store import Store


def entries_of_variant(store: Store, name: str) -> list[Entry] | None:
    """Return the manifest under a name, the record it leads to, and the record's blobs.

    The manifest counts whether it is signed or not: whoever reads the copy judges that.

    Returns:
        The files, each verified; None if one is missing.

    Raises:
        CorruptError: the key is not one.
    """
    from pallasc.cache.packs.format import Entry

    manifest = store.find_manifest(name)
    data = None if manifest is None else store.get_file(MANIFESTS, name)
    if manifest is None or data is None or not manifest.action:
        return None
    entries = entries_of_action(store, manifest.action)
    return None if entries is None else [Entry(MANIFESTS, name, data), *entries]


def entries_of_action(store: Store, action_key: str) -> list[Entry] | None:
    """Return the record under an action key and its blobs, each verified; None if one is missing.

    Raises:
        CorruptError: the key is not one.
    """
    from pallasc.cache.packs.format import Entry

    data, stored = store.get_file(ARTIFACTS, action_key), store.get_artifact(action_key)
    if data is None or stored is None:
        return None
    entries = [Entry(ARTIFACTS, action_key, data)]
    for name in stored.names:
        blob = stored.blob(name)
        if blob is None:
            return None
        entries.append(Entry(BLOBS, stored.record["blobs"][name]["digest"], blob))
    return entries
