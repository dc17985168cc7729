"""The store: blobs, found by digest, and records, found by key, which list their blobs.

The store guarantees that a hit has exactly the published bytes, even if a process was killed, or
the disk or a folder was damaged in between. Everything else is a miss. A corrupt file is moved to
`quarantine/` with the reason next to it, so that the next build repairs the store. Disk errors are
not raised: reading gives a miss, and writing returns the reason why nothing was stored.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from pallasc.cache import files, format
from pallasc.cache.folders import Folders, is_shard
from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS, StoredRecord
from pallasc.cache.manifests import (
    MAX_SETS,
    DigestOrNone,
    Manifest,
    manifest_from_json,
    set_name,
    set_prefix,
)
from pallasc.errors import CorruptError, ToolError

if TYPE_CHECKING:
    from pallasc.cache.manifests import Trust
    from pallasc.cache.packs import StorePacks

_ATTEMPTS = 4
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
T = TypeVar("T")


def default_root() -> Path:
    """Return `$PALLASC_CACHE_DIR`, else `$XDG_CACHE_HOME/pallasc`, else `~/.cache/pallasc`.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG base directory specification requires.

    Raises:
        ToolError: no such variable is set and this user has no home folder.
    """
    try:
        if named := os.environ.get("PALLASC_CACHE_DIR"):
            return _absolute(named)
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "pallasc"
    except RuntimeError as error:
        raise ToolError(
            f"the store has no folder: {error}", hint="Set PALLASC_CACHE_DIR to a folder."
        ) from error


def _absolute(folder: str | Path) -> Path:
    """Expand a leading `~` in a folder's path.

    Raises:
        ToolError: that user has no home folder.
    """
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError as error:
        raise ToolError(
            f"the store {folder}: {error}", hint="Give the folder without '~'."
        ) from error


class PutResult(NamedTuple):
    """Result of adding an entry to the store.

    Attributes:
        stored: the store contains it now, through this call or an earlier one.
        digest: SHA-256 of the entry.
        existed: an equal entry was already there.
        stored_digest: digest of the store's entry under the same key, if it differs.
        reason: why it is not stored.
    """

    stored: bool
    digest: DigestOrNone
    existed: bool = False
    stored_digest: DigestOrNone = ""
    reason: str = ""

    @property
    def conflict(self) -> bool:
        """True if a different entry is stored under the key: compiling is not deterministic."""
        return bool(self.stored_digest)


class StoredArtifact(msgspec.Struct, eq=False):
    """A record and its blobs.

    Attributes:
        key: its action key.
        record: the whole record, with `artifact` and `blobs`.
        digest: SHA-256 of the record: equal for equal artifacts, under any key.
    """

    key: str
    record: StoredRecord
    digest: str
    _store: Store
    _held: Mapping[str, bytes]

    @property
    def artifact(self) -> dict[str, Any]:
        """The artifact as it was given to `put_artifact`.

        Raises:
            CorruptError: it is not a JSON object.
        """
        try:
            return msgspec.json.decode(self.record.artifact, type=dict[str, Any])
        except ValueError as error:
            raise CorruptError(f"artifact {self.key}: its record is damaged: {error}") from error

    @property
    def names(self) -> list[str]:
        """Return the names of the blobs, sorted."""
        return sorted(self.record.blobs)

    def blob(self, name: str) -> bytes | None:
        """Return a verified blob; None if it is gone or corrupt, which makes the artifact a miss.

        Raises:
            CorruptError: the record does not name such a blob.
        """
        if name in self._held:
            return self._held[name]
        blob = self.record.blobs.get(name)
        if blob is None:
            raise CorruptError(f"artifact {self.key} has no blob {name!r}, only {self.names}")
        data = self._store.get_blob(blob.digest)
        if data is None or len(data) != blob.size:
            self._store.get_artifact(self.key, verify=True)  # quarantines it
            return None
        return data


class Store:
    """A store in a folder. Creating the object changes nothing; the first write creates the folder.

    Args:
        root: the folder; `default_root()` by default.
        warn: called with each warning; all warnings are also kept in `warnings`.
        require_signed: trust only entries that a trusted key signed, even if the environment does
            not require it.
        trust: keys that sign and are trusted; by default from the environment, see
            `cache/manifests.py`.
        read_only: change nothing in the folder: damaged files are reported, and stay in place.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        warn: Callable[[str], None] | None = None,
        require_signed: bool = False,
        trust: Trust | None = None,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self.root = default_root() if root is None else _absolute(root)
        self.folder = self.root / format.FOLDER
        self.folders = Folders(self.folder)
        self.warnings: list[str] = []
        self.not_stored = ""
        """The reason of the last failed write."""
        self._warn_user = warn
        self._require_signed = require_signed
        self._trust = trust
        self._packs_path = str(self.folder / format.PACKS)
        self._packed: StorePacks | None = None
        self.topics: dict[str, str] = {}
        """Warnings already given, by topic."""

    def tell(self, warning: str) -> None:
        """Report a warning, and keep it in `warnings`."""
        self.warnings.append(warning)
        if self._warn_user is not None:
            self._warn_user(warning)

    @property
    def trust(self) -> Trust:
        """Keys that sign manifests, and keys that must have signed them.

        Raises:
            SpecError: a variable is invalid, or a key or secret cannot be used.
            ToolError: there is a key, and the cryptography package is missing.
        """
        if self._trust is None:
            from pallasc.cache.manifests import read_trust

            self._trust = read_trust(os.environ, required=self._require_signed)
            for note in self._trust.notes:
                self._warn_once(note, note)
        return self._trust

    def warn_by(self, warn: Callable[[str], None] | None) -> None:
        """Send later warnings to another function."""
        self._warn_user = warn

    def path(self, area: str, name: str) -> Path:
        """Return the path of a blob or record of this name, whether it exists or not."""
        return self.folder / format.relative_path(area, format.check_name(name))

    def get_blob(self, digest: str) -> bytes | None:
        """Return the bytes with this SHA-256, verified; None if they are missing or unreadable.

        Raises:
            CorruptError: `digest` is not 64 lower-case hexadecimal digits.
        """
        return self.get_file(BLOBS, format.check_name(digest, what="digest"))

    def get_artifact(self, action_key: str, *, verify: bool = False) -> StoredArtifact | None:
        """Return the artifact of an action key, or None.

        Args:
            action_key: 64 lower-case hexadecimal digits.
            verify: also read and check every blob, and keep the verified bytes for `blob()`.

        Raises:
            CorruptError: the key is not valid.
        """
        return self._unless_unreadable(self._find_artifact, format.check_name(action_key), verify)

    def get_manifest(self, request_key: str) -> Manifest | None:
        """Return the manifest with this name, its fields checked, or None.

        A manifest in its area is newer than one of the same name in a pack, and is returned.

        If signatures are required, a manifest without a trusted signature counts as missing.

        Raises:
            CorruptError: the key is not valid.
            SpecError, ToolError: as for `trust`.
        """
        manifest = self.find_manifest(request_key)
        return manifest if manifest is not None and self.believes(request_key, manifest) else None

    def believes(self, request_key: str, manifest: Manifest) -> bool:
        """Return True if a trusted key signed a manifest, or if no signature is required."""
        trust = self.trust
        if not trust.required or trust.vouches(KINDS[MANIFESTS], request_key, manifest.to_json()):
            return True
        first = format.relative_path(MANIFESTS, request_key)
        text = "has entries that no trusted key signed, which count as missing; the first is"
        self._warn_once("unsigned", f"{text} {first}")
        return False

    def find_manifest(self, request_key: str) -> Manifest | None:
        """Return the manifest that `get_manifest` returns, signed or not, or None.

        Raises:
            CorruptError: the key is not valid.
        """
        name = format.check_name(request_key)
        read = self._unless_unreadable(self._read, MANIFESTS, name)
        return None if read is None else read[0]

    def sets(self, request_key: str) -> Iterator[tuple[str, Manifest]]:
        """Yield name and manifest of each set of sources of a request, signed or not.

        The most recently stored come first. Folders that cannot be listed are left out, with a
        warning.

        Raises:
            CorruptError: the key is not valid.
        """
        names = sorted(self._set_names(request_key))
        if len(names) > 1:

            def time_ns(name: str) -> int:
                return self._unless_unreadable(self._used_ns, MANIFESTS, name) or 0

            names.sort(key=time_ns, reverse=True)
        for name in names:
            manifest = self.find_manifest(name)
            if manifest is not None and name == set_name(request_key, manifest.read):
                yield name, manifest

    def signed_records(self, request_key: str) -> dict[str, str]:
        """Return the digests of the records that trusted keys signed for a request, by action key.

        Raises:
            CorruptError: the key is not valid.
            SpecError, ToolError: as for `trust`.
        """
        records: dict[str, str] = {}
        for name, manifest in self.sets(request_key):
            is_complete = manifest.action and manifest.record
            if is_complete and self.trust.vouches(KINDS[MANIFESTS], name, manifest.to_json()):
                records.setdefault(manifest.action, manifest.record)
        return records

    def put_set(self, request_key: str, manifest: Manifest, *, sign: bool = True) -> str:
        """Publish a request's manifest for one set of sources; return the manifest's name.

        If the request then has more than `MAX_SETS` manifests, the one with the least recently used
        artifact is removed. Without `sign`, the manifest is not signed, even if there is a key.

        Raises:
            CorruptError: the key is not valid, or a field of the manifest is wrong.
            SpecError, ToolError: as for `trust`.
        """
        name = set_name(format.check_name(request_key), manifest.read)
        if self.put_manifest(name, manifest, sign=sign).stored:
            others = [other for other in self._set_names(request_key) if other != name]
            if len(others) >= MAX_SETS:
                self._remove_sets(others, len(others) + 1 - MAX_SETS)
        return name

    def _set_names(self, request_key: str) -> list[str]:
        prefix = set_prefix(format.check_name(request_key))
        listed = self._listed(format.relative_path(MANIFESTS, request_key).rpartition("/")[0])
        names = {name for name in listed if name.startswith(prefix) and format.is_name(name)}
        return list(names | self._packed_names(MANIFESTS, prefix))

    def _remove_sets(self, names: list[str], count: int) -> None:
        """Remove the `count` least recently used manifests, except those in packs.

        A manifest that another process has replaced in the meantime stays, too.
        """
        ages: list[tuple[int, int, str, files.Identity]] = []
        for name in names:
            with contextlib.suppress(OSError):
                read = self._read(MANIFESTS, name)
                seen = None if read is None else read[2].identity
                if read is not None and seen is not None and seen != files.IN_PACK:
                    action = read[0].action
                    used_ns = self._used_ns(ARTIFACTS, action) if action else 0
                    ages.append((used_ns, self._used_ns(MANIFESTS, name), name, seen))
        for _, _, name, seen in sorted(ages)[:count]:
            with contextlib.suppress(OSError):
                place = format.relative_path(MANIFESTS, name)
                files.remove_same(self.folders, place, seen)

    def _used_ns(self, area: str, name: str) -> int:
        """Return the time of a file, or of the pack that contains it; 0 if it is missing.

        Raises:
            OSError: the time cannot be read.
        """
        places, times_ns = [format.relative_path(area, name)], [0]
        if self.packed is not None:
            places += [f"{format.PACKS}/{pack}" for pack in self.packed.holders(area, name)]
        for place in places:
            with contextlib.suppress(FileNotFoundError):
                times_ns.append(self.folders.status(place).st_mtime_ns)
        return max(times_ns)

    def get_file(self, area: str, name: str) -> bytes | None:
        """Return the bytes of a blob, record, or manifest, verified; None without one.

        Raises:
            CorruptError: the name is not valid.
        """
        read = self._unless_unreadable(self._read, area, format.check_name(name))
        return None if read is None else read[2].data

    def names(self, area: str) -> list[str]:
        """Return the sorted names of an area's files, including files in packs; none is read.

        Folders that cannot be listed are left out, with a warning.
        """
        shards = filter(is_shard, self._listed(area))
        names = {name for shard in shards for name in self._listed(f"{area}/{shard}")}
        return sorted(self._packed_names(area).union(filter(format.is_name, names)))

    def _packed_names(self, area: str, prefix: str = "") -> set[str]:
        packed = self.packed
        if packed is None:
            return set()
        return self._unless_unreadable(packed.names, area, prefix) or set()

    def _listed(self, folder: str) -> list[str]:
        return self._unless_unreadable(self.folders.names, folder) or []

    @property
    def packed(self) -> StorePacks | None:
        """Return the packs of the store, None if it has none."""
        if self._packed is None and os.path.lexists(self._packs_path):
            from pallasc.cache.packs import StorePacks

            self._packed = StorePacks(
                self.folders,
                lambda place, fault: self._warn_once(place, f"{place} {fault}"),
                read_only=self.read_only,
            )
        return self._packed

    def relist_packs(self) -> None:
        """List packs again, after one was added or removed."""
        if self._packed is not None:
            self._packed.relist()

    def put_artifact(
        self,
        action_key: str,
        artifact: Mapping[str, object],
        blobs: Mapping[str, bytes],
        *,
        replace: bool = False,
    ) -> PutResult:
        """Publish the blobs, then the record that names them all.

        The first artifact wins: a valid artifact under a key stays, and a different one under the
        same key is a conflict. An entry counts as stored only after it was read back.

        Args:
            action_key: 64 lower-case hexadecimal digits.
            artifact: the record, JSON.
            blobs: blobs by name.
            replace: quarantine a different artifact under the same key instead of reporting a
                conflict, since no trusted key signed it.

        Raises:
            CorruptError: the key is not valid, or `artifact` is not JSON.
        """
        format.check_name(action_key)
        digests = {name: format.sha256(data) for name, data in blobs.items()}
        parts = {name: {"digest": digests[name], "size": len(blobs[name])} for name in blobs}
        body = {"artifact": artifact, "blobs": parts}
        data, digest = format.encode(KINDS[ARTIFACTS], action_key, body)
        by_digest = {digests[name]: blobs[name] for name in blobs}
        published = False
        try:
            for _ in range(_ATTEMPTS):
                first = self.get_artifact(action_key, verify=True)
                if first is not None and published and first.digest == digest:
                    return PutResult(stored=True, digest=digest)
                if first is not None and replace and first.digest != digest:
                    self.put_away(ARTIFACTS, action_key, "it is not signed by a trusted key", None)
                elif first is not None and first.digest == digest:
                    return PutResult(stored=True, digest=digest, existed=True)
                elif first is not None:
                    reason = (
                        f"action key {action_key} gave {first.digest} before and {digest} now: "
                        "it is not deterministic"
                    )
                    return PutResult(False, digest, stored_digest=first.digest, reason=reason)
                self._publish_blobs(by_digest)
                with files.temporary(self.folders, data) as place:
                    to = format.relative_path(ARTIFACTS, action_key)
                    published = files.publish_first(self.folders, place, to) or published
        except OSError as error:
            return self._not_stored(digest, error)
        return self._not_stored(digest, "it was written, but cannot be read back")

    def put_manifest(self, request_key: str, manifest: Manifest, *, sign: bool = True) -> PutResult:
        """Sign a manifest and publish it, replacing an older one: the last one wins.

        Without `sign`, it is not signed, even if there is a key.

        Raises:
            CorruptError: the key is not valid, or a field of the manifest is wrong.
            SpecError, ToolError: as for `trust`.
        """
        format.check_name(request_key)
        body = manifest.to_json()
        manifest_from_json(request_key, body)
        if sign:
            body = self.trust.signed(KINDS[MANIFESTS], request_key, body)
        data, digest = format.encode(KINDS[MANIFESTS], request_key, body)
        try:
            self.publish_manifest(request_key, data)
        except OSError as error:
            return self._not_stored(digest, error)
        return PutResult(stored=True, digest=digest)

    def publish_manifest(self, request_key: str, data: bytes) -> None:
        """Publish the bytes of a verified manifest, replacing an older one.

        Raises:
            OSError: the file system refuses.
        """
        to = format.relative_path(MANIFESTS, request_key)
        with files.temporary(self.folders, data) as place:
            self.folders.rename(place, to)

    def why_not_writable(self) -> str:
        """Create the folder; return why nothing can be written there, "" if it is writable."""
        try:
            with files.temporary(self.folders, b""):
                return ""
        except OSError as error:
            return _words(error)

    def single_flight(
        self, key: str, *, timeout_s: float = 300.0
    ) -> contextlib.AbstractContextManager[bool]:
        """Wait until no other process is making the entry of `key`, and lock it.

        The caller must look the entry up again, and make it if it is still missing.

        Yields True if the lock is held. Yields False to continue without it: locks do not work
        here, or the holder took longer than `timeout_s`. A dead process does not hold a lock.

        Raises:
            CorruptError: the key is not valid.
        """
        return files.single_flight(
            self.folders,
            f"{files.LOCKS}/{format.check_name(key)}",
            timeout_s=timeout_s,
            on_error=self._without_lock,
        )

    def _unless_unreadable(self, read: Callable[..., T | None], *args: Any) -> T | None:
        """Call a function that reads; turn a disk error into a warning and None."""
        try:
            return read(*args)
        except OSError as error:
            self._warn_once("read", f"cannot be read, so nothing is found: {_words(error)}")
            return None

    def _file(self, area: str, name: str) -> files.Content | None:
        """Read a file from its area or from a pack.

        Records and blobs are the same in both, so open packs are searched first, which is faster. A
        manifest in its area is newer than one in a pack, so the area is searched first.

        Raises:
            OSError: the file exists, or may exist, but cannot be read.
        """
        limit_bytes = None if area == BLOBS else format.MAX_RECORD_BYTES
        if self._packed is not None and area != MANIFESTS:
            found = self._packed.read(area, name, known=True)
            if found is not None:
                return found
        place = format.relative_path(area, name)
        file = files.read(self.folders, place, limit_bytes=limit_bytes)
        if file is None and (packed := self.packed) is not None:
            return packed.read(area, name)
        return file

    def _read(self, area: str, name: str) -> tuple[Any, str, files.Content] | None:
        """Return the body of a file, its digest, and its bytes; None if it is missing or corrupt.

        Raises:
            OSError: the file exists, or may exist, but cannot be read.
        """
        file = self._file(area, name)
        if file is None:
            return None
        try:
            if file.fault:
                raise CorruptError(file.fault)
            return *format.check_file(area, name, file.data), file
        except CorruptError as error:
            self.put_away(area, name, error.message, file.identity)
            return None

    def _find_artifact(self, key: str, verify: bool) -> StoredArtifact | None:
        read = self._read(ARTIFACTS, key)
        if read is None:
            return None
        record, digest, file = read
        held: dict[str, bytes] = {}
        for name, blob in record.blobs.items() if verify else ():
            found = self._read(BLOBS, blob.digest)
            if found is None or len(found[2].data) != blob.size:
                fault = f"its blob {blob.digest} is missing or corrupt"
                self.put_away(ARTIFACTS, key, fault, file.identity)
                return None
            held[name] = found[2].data
        return StoredArtifact(key, record, digest, self, held)

    def _publish_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Publish blobs by their digests.

        A later blob replaces an earlier one. Two valid files with the same digest are equal, so
        this only matters if the earlier one is corrupt or unreadable.
        """
        for digest in sorted(blobs):
            to = format.relative_path(BLOBS, digest)
            if not self._is_kept(digest, to):
                with files.temporary(self.folders, blobs[digest]) as place:
                    self.folders.rename(place, to)

    def _is_kept(self, digest: str, place: str) -> bool:
        """Renew the time of a blob, so that it is not evicted before its new record exists.

        Returns False if the blob must be written.
        """
        try:
            if self._read(BLOBS, digest) is None:
                return False
            self.folders.touch(place)
        except OSError:  # unreadable, just evicted, or another user's file
            return False
        return True

    def put_away(self, area: str, name: str, reason: str, identity: files.Identity | None) -> None:
        """Move a corrupt file to `quarantine/` with the reason; disk errors are not raised.

        A file whose identity has changed was repaired in the meantime and stays. If `identity` is
        `IN_PACK`, the packs that contain the file are moved instead. Without an identity, the file
        and these packs are moved.
        """
        if identity in (None, files.IN_PACK) and (packed := self.packed) is not None:
            packed.drop_holders(area, name, reason)
        if identity == files.IN_PACK:
            return
        place = format.relative_path(area, name)
        self._warn_once(place, f"{place} is corrupt and counts as missing: {reason}")
        if self.read_only:
            return
        files.put_away(self.folders, place, f"{area}-{name}", reason, identity)

    def _not_stored(self, digest: str, error: OSError | str) -> PutResult:
        return PutResult(stored=False, digest=digest, reason=self.not_written(error))

    def not_written(self, error: OSError | str) -> str:
        """Warn once that nothing can be stored; return the reason."""
        reason = error if isinstance(error, str) else _words(error)
        self.not_stored = reason
        self._warn_once("write", f"cannot be written, so nothing is stored: {reason}")
        return reason

    def _without_lock(self, error: OSError) -> None:
        if error.errno not in _NOT_WRITABLE:  # else the failing write warns
            self._warn_once(
                "lock", f"cannot be locked, so two builds may compile the same: {_words(error)}"
            )

    def tell_once(self, topic: str, warning: str) -> None:
        """Report a warning, unless one was already given for this topic."""
        if topic not in self.topics:
            self.topics[topic] = warning
            self.tell(warning)

    def _warn_once(self, topic: str, text: str) -> None:
        self.tell_once(topic, f"the store {self.root} {text}")


def _words(error: OSError) -> str:
    """Return a file system error as `file: reason`, without its number."""
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text
