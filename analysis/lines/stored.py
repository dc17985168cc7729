"""Source lines in a store: a manifest under a separate key for each artifact.

The manifest's `action` is the action key of the artifact, so that both are removed together. It is
verified, signed and counted like every manifest. `lines` is the compressed record
(`specs/artifacts/source_lines.py`). Each action key has one manifest, for the most recently used
source; its digests show if the source has changed since.
"""

from __future__ import annotations

import base64
import zlib

from pallasc.analysis.lines.files import changed
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.source_lines import (
    MAX_BYTES,
    SCHEMA,
    SourceLines,
    from_json,
    to_json,
)
from pallasc.specs.canonical import labelled_key


def key_of(action_key: str) -> str:
    """Return the key under which the source lines of an artifact are stored."""
    return labelled_key({"source lines": str(SCHEMA), "action": action_key})


def put_source_lines(store: Store, action_key: str, lines: SourceLines) -> None:
    """Store the source lines of an artifact, replacing lines of an earlier source."""
    packed = base64.b64encode(zlib.compress(to_json(lines), 9)).decode()
    store.put_manifest(key_of(action_key), Manifest(action=action_key, lines=packed))


def read_source_lines(
    store: Store, action_key: str, *, base_dir: str | None = None
) -> SourceLines | None:
    """Return the source lines of an artifact, None if the store has none that match.

    Args:
        store: the store.
        action_key: the artifact's action key.
        base_dir: the spec's folder; if given, lines of a source that has changed since are not
            returned. If None, lines are returned as they were when found.
    """
    manifest = store.get_manifest(key_of(action_key))
    if manifest is None or not manifest.lines or manifest.action != action_key:
        return None
    try:
        lines = from_json(_unpacked(manifest.lines))
    except CorruptError:  # such as a record of a later version; compile again
        return None
    if base_dir is not None and changed(lines.files, base_dir):
        return None
    return lines


def _unpacked(packed: str) -> bytes:
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(base64.b64decode(packed, validate=True), MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise CorruptError(f"the source lines of an artifact are damaged: {error}") from error
    if not inflate.eof:
        raise CorruptError("the source lines of an artifact are cut off, or too many")
    return data
