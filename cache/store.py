"""The store: blobs by their digest, and the records that name them by what was asked.

What the store promises: a hit is byte for byte what was published, at any time, whatever
happened to process, disk or folder in between; everything else is a miss. A corrupt file moves
to `quarantine/` with the reason beside it, so that the next build heals it. No fault of the
disk raises: reading misses, writing says that nothing was stored and why.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pallasc.cache import files, format, lock
from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS
from pallasc.errors import CorruptError, ToolError

_ATTEMPTS = 4
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}


def default_root() -> Path:
    """Return `$PALLASC_CACHE_DIR`, else `$XDG_CACHE_HOME/pallasc`, else `~/.cache/pallasc`.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG base directory specification asks.

    Raises:
        ToolError: if none of them is set and this user has no home folder.
    """
    try:
        if named := os.environ.get("PALLASC_CACHE_DIR"):
            return _absolute(named)
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "pallasc"
    except RuntimeError as error:
        raise ToolError(
            f"no folder for the store: {error}", hint="Set PALLASC_CACHE_DIR to a folder."
        ) from error


def _absolute(folder: str | Path) -> Path:
    """Return a folder without `~` in front.

    Raises:
        ToolError: if the user whose home that stands for has none.
    """
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError as error:
        raise ToolError(
            f"the store {folder}: {error}", hint="Give the folder without '~'."
        ) from error


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of something that was offered to the store.

    Attributes:
        stored: the store holds it now, through this call or an earlier one.
        digest: SHA-256 of what was offered.
        existed: an equal one was already there.
        kept: digest of what the store holds under the same key, if that is something else.
        reason: why it is not stored.
    """

    stored: bool
    digest: str
    existed: bool = False
    kept: str = ""
    reason: str = ""

    @property
    def conflict(self) -> bool:
        """Tell whether the same key had already given something else: it is not deterministic."""
        return bool(self.kept)


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A record and its blobs.

    Attributes:
        key: the action key that it lies under.
        record: the whole record, `artifact` and `blobs`.
        digest: SHA-256 of the record: equal for equal artifacts, under whatever key.
        artifact_digest: SHA-256 of `artifact` as canonical JSON, None where it was not verified.
    """

    key: str
    record: dict[str, Any]
    digest: str
    _store: Store = field(repr=False, compare=False)
    _held: Mapping[str, bytes] = field(repr=False, compare=False, default_factory=dict)
    artifact_digest: str | None = field(default=None, compare=False)

    @property
    def artifact(self) -> dict[str, Any]:
        """Return what was given to `put_artifact`."""
        artifact: dict[str, Any] = self.record["artifact"]
        return artifact

    @property
    def names(self) -> list[str]:
        """Return the names of the blobs, sorted."""
        return sorted(self.record["blobs"])

    def blob(self, name: str) -> bytes | None:
        """Return a blob, verified; None if it is gone or corrupt: then all of it is a miss.

        Raises:
            CorruptError: if the record names no such blob.
        """
        if name in self._held:
            return self._held[name]
        if name not in self.record["blobs"]:
            raise CorruptError(f"artifact {self.key} has no blob {name!r}, only {self.names}")
        digest = self.record["blobs"][name]["digest"]
        data = self._store.get_blob(digest)
        if data is None or len(data) != self.record["blobs"][name]["size"]:
            self._store.get_artifact(self.key, verify=True)  # puts the record away, to heal
            return None
        return data


class Store:
    """A store in a folder. Making the object touches nothing; the first write makes the folder.

    Args:
        root: the folder; by default that of `default_root()`.
        warn: is called with each warning; all are kept in `warnings` anyway.
    """

    def __init__(
        self, root: Path | str | None = None, *, warn: Callable[[str], None] | None = None
    ) -> None:
        self.root = default_root() if root is None else _absolute(root)
        self.folder = self.root / format.FOLDER
        self.warnings: list[str] = []
        self.not_stored = ""
        """Why something was not written, the last time that this happened."""
        self._warn_user = warn
        self._warned: set[str] = set()
        self._prefix = f"{self.folder}/"

    def tell(self, warning: str) -> None:
        """Tell whoever listens of something, and keep it in `warnings`."""
        self.warnings.append(warning)
        if self._warn_user is not None:
            self._warn_user(warning)

    def warn_by(self, warn: Callable[[str], None] | None) -> None:
        """Have later warnings told to somebody else."""
        self._warn_user = warn

    def path(self, area: str, name: str) -> Path:
        """Return where a blob or record of this name lies, or would."""
        return Path(self._place(area, format.check_name(name)))

    # ---- reading

    def get_blob(self, digest: str) -> bytes | None:
        """Return the bytes with this SHA-256, verified; None if they are not to be had.

        Raises:
            CorruptError: if `digest` is not 64 lower-case hexadecimal digits.
        """
        format.check_name(digest, what="digest")
        try:
            return self._read_blob(digest)
        except OSError as error:
            self._warn_once("read", f"cannot be read, so nothing is found: {_words(error)}")
            return None

    def get_artifact(self, action_key: str, *, verify: bool = False) -> StoredArtifact | None:
        """Return the artifact of an action key, or None.

        Args:
            action_key: 64 lower-case hexadecimal digits.
            verify: also read and check every blob, and keep them in the result: it is whole, and
                what was checked is what `blob()` gives.

        Raises:
            CorruptError: if the key is not one.
        """
        format.check_name(action_key)
        try:
            return self._find_artifact(action_key, verify=verify)
        except OSError as error:
            self._warn_once("read", f"cannot be read, so nothing is found: {_words(error)}")
            return None

    def get_manifest(self, request_key: str) -> dict[str, Any] | None:
        """Return the newest manifest of a request key, or None.

        Raises:
            CorruptError: if the key is not one.
        """
        format.check_name(request_key)
        try:
            found = self._read_record(MANIFESTS, request_key)
        except OSError as error:
            self._warn_once("read", f"cannot be read, so nothing is found: {_words(error)}")
            return None
        return None if found is None else found[0]

    # ---- writing

    def put_blob(self, data: bytes) -> str:
        """Publish a blob and return its digest, also where it could not be stored."""
        digest = format.sha256(data)
        try:
            self._publish_blobs({digest: data})
        except OSError as error:
            self._not_stored(digest, error)
        return digest

    def put_artifact(
        self, action_key: str, artifact: Mapping[str, Any], blobs: Mapping[str, bytes]
    ) -> PutResult:
        """Publish the blobs, then the one record that names them all.

        The first one wins: what is whole and valid under a key stays, and something else under
        the same key is answered with a conflict. What counts as stored was read back.

        Raises:
            CorruptError: if the key is not one, or `artifact` is not JSON.
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
                if first is not None:
                    return _second(action_key, first.digest, digest)
                self._publish_blobs(by_digest)
                with files.temporary(self.folder / "tmp", data) as path:
                    place = self.path(ARTIFACTS, action_key)
                    published = files.publish_first(path, place) or published
        except OSError as error:
            return self._not_stored(digest, error)
        return self._not_stored(digest, "what was written cannot be read back")

    def put_manifest(self, request_key: str, manifest: Mapping[str, Any]) -> PutResult:
        """Publish a manifest in the place of an older one: the last one wins.

        Raises:
            CorruptError: if the key is not one, or `manifest` is not JSON.
        """
        format.check_name(request_key)
        data, digest = format.encode(KINDS[MANIFESTS], request_key, manifest)
        place = self.path(MANIFESTS, request_key)
        try:
            with files.temporary(self.folder / "tmp", data) as path:
                files.publish_last(path, place)
            files.sync_folder(place.parent)
        except OSError as error:
            return self._not_stored(digest, error)
        return PutResult(stored=True, digest=digest)

    def why_not_writable(self) -> str:
        """Return why nothing can be written here, "" where it can; makes the folder."""
        try:
            with files.temporary(self.folder / "tmp", b""):
                return ""
        except OSError as error:
            return _words(error)

    def single_flight(
        self, key: str, *, timeout_s: float = 300.0
    ) -> contextlib.AbstractContextManager[bool]:
        """Wait until no other process makes `key`; look it up again inside, then make it.

        Gives True while the lock is held. False means going on without: locks do not work here,
        or the holder took longer than `timeout_s`. A holder that died holds nothing.

        Raises:
            CorruptError: if the key is not one.
        """
        place = self.folder / "locks" / format.check_name(key)
        return lock.single_flight(
            place,
            timeout_s=timeout_s,
            on_error=self._without_lock,
        )

    # ---- inside

    def _place(self, area: str, name: str) -> str:
        return self._prefix + format.relative_path(area, name)

    def _read_blob(self, digest: str) -> bytes | None:
        place = self._place(BLOBS, digest)
        found = files.read(place)
        if found is None:
            return None
        if not found.fault and format.sha256(found.data) == digest:
            return found.data
        fault = found.fault or f"its SHA-256 is {format.sha256(found.data)}"
        self.put_away(BLOBS, digest, fault, found.identity)
        return None

    def _read_record(self, area: str, key: str) -> tuple[dict[str, Any], str, files.Found] | None:
        found = files.read(self._place(area, key), limit_bytes=format.MAX_RECORD_BYTES)
        if found is None:
            return None
        try:
            if found.fault:
                raise CorruptError(f"{KINDS[area]} {key}: {found.fault}")
            return *format.decode(KINDS[area], key, found.data), found
        except CorruptError as error:
            self.put_away(area, key, error.message, found.identity)
            return None

    def _find_artifact(self, key: str, *, verify: bool) -> StoredArtifact | None:
        found = self._read_record(ARTIFACTS, key)
        if found is None:
            return None
        record, digest, file = found
        if not verify:
            return StoredArtifact(key, record, digest, self)
        held: dict[str, bytes] = {}
        for name, blob in record["blobs"].items():
            data = self._read_blob(blob["digest"])
            if data is None or len(data) != blob["size"]:
                fault = f"its blob {name!r}, {blob['digest']}, is missing or corrupt"
                self.put_away(ARTIFACTS, key, fault, file.identity)
                return None
            held[name] = data
        inner = format.artifact_digest(file.data, record)
        return StoredArtifact(key, record, digest, self, held, inner)

    def _publish_blobs(self, blobs: Mapping[str, bytes]) -> None:
        """Publish blobs by their digests; all are durable afterwards.

        The last one wins, which is no different: two valid files of one digest are equal, and
        one that is corrupt or unreadable is replaced.
        """
        written = {self._publish_blob(digest, data) for digest, data in sorted(blobs.items())}
        _sync_folders(written)

    def _publish_blob(self, digest: str, data: bytes) -> Path:
        place = self.path(BLOBS, digest)
        try:
            held = self._read_blob(digest)
        except OSError:
            held = None
        if held is None or not _made_young(place):
            with files.temporary(self.folder / "tmp", data) as path:
                files.publish_last(path, place)
        return place.parent

    def put_away(self, area: str, name: str, reason: str, identity: files.Identity | None) -> None:
        """Move a corrupt file to `quarantine/` and write down why; never raises for the disk.

        A file that has another identity by now was healed meanwhile and stays.
        """
        thing = format.relative_path(area, name)
        self._warn_once(thing, f"{thing} is corrupt and counts as missing: {reason}")
        place = self._place(area, name)
        kept = self.folder / "quarantine" / f"{area}-{name}-{os.urandom(8).hex()}"
        try:
            files.make_folder(kept.parent)
            os.rename(place, kept)
        except FileNotFoundError:
            return
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(place)
            return
        with contextlib.suppress(OSError):
            if identity is not None and files.identity(os.lstat(kept)) != identity:
                # Another process has healed it meanwhile: this is the new file, so give it back.
                _give_back(kept, place)
                return
            text = json.dumps({"path": thing, "reason": reason})
            kept.with_name(f"{kept.name}.reason").write_text(f"{text}\n", encoding="ascii")

    def _not_stored(self, digest: str, error: OSError | str) -> PutResult:
        reason = error if isinstance(error, str) else _words(error)
        self.not_stored = reason
        self._warn_once("write", f"nothing is stored: {reason}")
        return PutResult(stored=False, digest=digest, reason=reason)

    def _without_lock(self, error: OSError) -> None:
        if error.errno not in _NOT_WRITABLE:  # which publishing will tell, once
            self._warn_once("lock", f"works without locks: {_words(error)}")

    def _warn_once(self, topic: str, text: str) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            self.tell(f"store {self.root}: {text}")


def _words(error: OSError) -> str:
    """Return an error of the file system without its number, after the file it is about."""
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text


def _second(key: str, kept: str, offered: str) -> PutResult:
    if kept == offered:
        return PutResult(stored=True, digest=offered, existed=True)
    reason = f"action key {key} gave {kept} before and {offered} now: it is not deterministic"
    return PutResult(stored=False, digest=offered, kept=kept, reason=reason)


def _made_young(place: Path) -> bool:
    """Set a blob's time, so that no eviction takes it before its new record is there."""
    try:
        os.utime(place)
    except OSError:  # evicted this moment, or the file of another user: publish it anew
        return False
    return True


def _sync_folders(paths: Iterable[Path]) -> None:
    for path in sorted(paths):
        files.sync_folder(path)


def _give_back(kept: Path, place: str) -> None:
    files.publish_first(kept, Path(place))
    kept.unlink(missing_ok=True)
