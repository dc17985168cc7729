"""A store, or some of its variants, as one file: a pack (`cache/packs.py`).

An imported file is untrusted. It is read frame by frame, so memory use stays within a few hundred
megabytes, and nothing is stored unless every file in it is intact. Imported files are stored in one
pack, published in one step. Importing signs nothing: manifests keep the signatures that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from msgspec import Struct

from pallasc.cache import files, format
from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.pack_writer import PackWriter, write_pack
from pallasc.cache.packs import MAX_FILE_BYTES, Entry, Pack, open_pack, packed_name
from pallasc.cache.store import Store
from pallasc.errors import CorruptError, NotCachedError, SpecError, ToolError
from pallasc.specs.user_files import check_regular, replacing

MAX_NAMES = 2**18
MAX_RECORD_BYTES = 8 * 2**20
"""Maximum size of a record: JSON takes up to 20 times its size in memory."""


def entries_of_manifest(store: Store, name: str) -> list[Entry] | None:
    """Return the manifest under a name, its record, if any, and the record's blobs.

    The manifest does not have to be signed: the reader of the copy checks signatures.

    Returns:
        The files, each verified; None if one is missing.

    Raises:
        CorruptError: the key is not valid.
    """
    manifest = store.find_manifest(name)
    data = None if manifest is None else store.get_file(MANIFESTS, name)
    if manifest is None or data is None:
        return None
    entries = entries_of_action(store, manifest.action) if manifest.action else []
    return None if entries is None else [Entry(MANIFESTS, name, data), *entries]


def entries_of_action(store: Store, action_key: str) -> list[Entry] | None:
    """Return the record under an action key and its blobs, each verified; None if one is missing.

    Raises:
        CorruptError: the key is not valid.
    """
    data, stored = store.get_file(ARTIFACTS, action_key), store.get_artifact(action_key)
    if data is None or stored is None:
        return None
    entries = [Entry(ARTIFACTS, action_key, data)]
    for name in stored.names:
        blob = stored.blob(name)
        if blob is None:
            return None
        entries.append(Entry(BLOBS, stored.record.blobs[name].digest, blob))
    return entries


def publish_pack(
    store: Store, data: bytes | Callable[[BinaryIO], str], manifests: Iterable[Entry] = ()
) -> str:
    """Publish a pack whose files were all verified; return its digest.

    Args:
        store: the store.
        data: the pack, or a function that writes it and returns its digest.
        manifests: its manifests that may replace others in the store.

    Raises:
        OSError: the store cannot be written.
    """
    digest = ""
    newer = [
        entry
        for entry in manifests
        if store.get_file(MANIFESTS, entry.name) not in (None, entry.data)
    ]

    def write(out: BinaryIO) -> None:
        nonlocal digest
        digest = data(out) if callable(data) else format.sha256(data)
        if not callable(data):
            out.write(data)

    try:
        with files.temporary(store.folders, write) as place:
            store.folders.rename(place, f"{format.PACKS}/{digest}")
        for entry in newer:
            store.publish_manifest(entry.name, entry.data)
    finally:
        store.relist_packs()
    return digest


class Exported(NamedTuple):
    """Numbers of artifacts and manifests that were exported, and the size of the file."""

    artifacts: int
    manifests: int
    bytes: int


def export_file(store: Store, file: Path, manifests: Iterable[str] | None = None) -> Exported:
    """Write manifests, their artifacts, and the artifacts' blobs into one file.

    Damaged entries are left out; the store reports a warning.

    Args:
        store: the store.
        file: output file; an existing one is replaced atomically.
        manifests: their names; by default the whole store.

    Raises:
        NotCachedError: there is no store.
        SpecError: the file cannot be written.
        CorruptError: the store is too large for one file.
    """
    if not store.folder.is_dir():
        raise NotCachedError(
            f"{store.root}: there is no store, as there is no folder {format.FOLDER} in it.",
            hint="Name the folder that --store or PALLASC_CACHE_DIR named when it was filled.",
        )
    if not file.absolute().parent.is_dir():
        raise SpecError(
            f"{file} cannot be written: there is no folder {file.parent}.",
            hint="Make the folder, or give another path.",
        )
    with replacing(file) as out:
        summary = write_pack(_groups(store, manifests), out)
        areas = [area for area, _ in summary.names]
        if len(areas) > MAX_NAMES:
            raise CorruptError(
                f"{file} would hold {len(areas):,} files of the store; the limit is {MAX_NAMES:,}.",
                hint="Name the specs whose variants are exported.",
            )
    return Exported(areas.count(ARTIFACTS), areas.count(MANIFESTS), summary.size)


def _groups(store: Store, names: Iterable[str] | None) -> Iterator[list[Entry]]:
    """Yield each manifest with its artifact, then artifacts without a manifest."""
    every = names is None
    for _, name in sorted(_by_kernel(store, store.names(MANIFESTS) if every else names or ())):
        yield from _fitting(entries_of_manifest(store, name) or [])
    for key in store.names(ARTIFACTS) if every else ():
        yield from _fitting(entries_of_action(store, key) or [])


def _by_kernel(store: Store, names: Iterable[str]) -> Iterator[tuple[tuple[str, str], str]]:
    for name in names:
        manifest = store.find_manifest(name)
        if manifest is not None:
            yield (manifest.name, manifest.variant), name


def _fitting(group: list[Entry]) -> Iterator[list[Entry]]:
    if all(
        len(entry.data) <= (MAX_FILE_BYTES if entry.area == BLOBS else MAX_RECORD_BYTES)
        for entry in group
    ):
        yield group


class Imported(Struct):
    """Result of importing a file.

    Attributes:
        file: its path.
        artifacts, manifests: number of each that was imported.
        existed: artifacts that were already in the store.
        kept: manifests of the store that were not replaced, since they lead to an artifact.
        unsigned: manifests that were skipped because signatures are required and no trusted key
            signed them.
        conflicts: action keys under which store and file have different artifacts: the compilation
            is not deterministic. The store keeps its own artifact.
    """

    file: str
    artifacts: int = 0
    manifests: int = 0
    existed: int = 0
    kept: int = 0
    unsigned: int = 0
    conflicts: list[str] = []


def import_file(store: Store, file: Path) -> Imported:
    """Verify a file of `export_file`, then add its new entries to the store.

    Raises:
        SpecError: the file does not exist, or cannot be read.
        CorruptError: the file was not exported by pallasc, or is damaged; nothing was stored.
        ToolError: the store cannot be written.
    """
    try:
        check_regular(str(file))
        pack = open_pack(file)
        artifacts, manifests = _verified(pack)
    except FileNotFoundError:
        raise SpecError(f"{file}: there is no such file.") from None
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror or error}.") from error
    except CorruptError as error:
        raise CorruptError(
            f"{file} cannot be imported: {error.message.rstrip('.')}. Nothing was stored.",
            hint="Export it again with: pallasc cache export FILE",
        ) from None
    imported = Imported(str(file))
    try:
        _publish(store, pack, artifacts, manifests, imported)
    except OSError as error:
        raise unwritable(store, error) from error
    return imported


def unwritable(store: Store, error: OSError) -> ToolError:
    """Return the error for a store that cannot be written."""
    return ToolError(
        f"the store {store.root} cannot be written: {store.not_written(error)}.",
        hint="Name another store with --store or PALLASC_CACHE_DIR.",
    )


class _Artifact(NamedTuple):
    """Digest of a record, and the packed names of the record and its blobs."""

    digest: str
    names: tuple[bytes, ...]


def _verified(pack: Pack) -> tuple[dict[str, _Artifact], list[str]]:
    """Verify every file of a pack; return its artifacts by key, and the names of its manifests.

    Raises:
        CorruptError: something in it is damaged or missing.
    """
    if len(pack) > MAX_NAMES:
        raise CorruptError(f"it holds {len(pack):,} files; the limit is {MAX_NAMES:,}")
    artifacts: dict[str, _Artifact] = {}
    manifests: list[str] = []
    for area, name, data in pack.check():
        if area != BLOBS and len(data) > MAX_RECORD_BYTES:
            raise CorruptError(f"{area} {name} has {len(data):,} bytes")
        body, digest = format.check_file(area, name, data)
        if area == ARTIFACTS:
            blobs = {packed_name(BLOBS, blob.digest) for blob in body.blobs.values()}
            artifacts[name] = _Artifact(digest, (packed_name(area, name), *sorted(blobs)))
        elif area == MANIFESTS:
            manifests.append(name)
    for key, artifact in artifacts.items():
        if lost := next((name for name in artifact.names if not pack.has(name)), None):
            raise CorruptError(f"artifact {key} lacks its blob {lost[1:].hex()}")
    return artifacts, manifests


def _publish(
    store: Store,
    pack: Pack,
    artifacts: Mapping[str, _Artifact],
    names: Iterable[str],
    imported: Imported,
) -> None:
    """Copy the entries that are missing in the store into one pack of the store, and count them.

    Raises:
        OSError: the store cannot be written.
    """
    required = store.trust.required
    wanted = {} if required else dict(artifacts)
    manifests: list[tuple[Entry, str]] = []
    for name in names:
        entry = Entry(MANIFESTS, name, pack.read(MANIFESTS, name) or b"")
        manifest: Manifest = format.check_file(*entry)[0]
        if required and not store.trust.vouches(KINDS[MANIFESTS], name, manifest.to_json()):
            imported.unsigned += 1
            continue
        action = manifest.action
        artifact = artifacts.get(action)
        if artifact is None and action:
            continue
        if artifact is not None:
            if required and manifest.record != artifact.digest:
                continue
            wanted[action] = artifact
        if _is_missing(store, entry, imported):
            manifests.append((entry, action))
    taken = _choose_artifacts(store, wanted, imported)
    chosen = [entry for entry, action in manifests if action not in imported.conflicts]
    imported.manifests = len(chosen)
    taken.update(packed_name(MANIFESTS, entry.name) for entry in chosen)

    def copy(out: BinaryIO) -> str:
        writer = PackWriter(out)
        writer.copy(pack, taken.__contains__)
        return writer.close().digest

    if taken:
        publish_pack(store, copy, chosen)


def _is_missing(store: Store, entry: Entry, imported: Imported) -> bool:
    """Return True if the store has no manifest of this name that leads to an artifact."""
    own = store.find_manifest(entry.name)
    if own is None or store.get_file(MANIFESTS, entry.name) == entry.data:
        return own is None
    if own.action and store.get_artifact(own.action, verify=True) is None:
        return True
    imported.kept += 1
    return False


def _choose_artifacts(
    store: Store, artifacts: Mapping[str, _Artifact], imported: Imported
) -> set[bytes]:
    """Return the packed names of missing files; count new and equal artifacts, and conflicts."""
    taken: set[bytes] = set()
    for key, artifact in artifacts.items():
        own = store.get_artifact(key, verify=True)
        if own is None:
            imported.artifacts += 1
            taken.update(artifact.names)
        elif own.digest == artifact.digest:
            imported.existed += 1
        else:
            imported.conflicts.append(key)
    return taken
