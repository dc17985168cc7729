"""Verification: read everything in a store and compare it with its name and its records."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import msgspec

from pallasc.cache import files, format
from pallasc.cache.format import ARTIFACTS, BLOBS, MANIFESTS, PACKS
from pallasc.cache.inventory import INDEX, Scan
from pallasc.cache.packs import open_stored, put_pack_away
from pallasc.cache.store import Store
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.artifacts.cubin import Tool, other_maker, tools_of

CORRUPT, INCOMPLETE, FOREIGN, UNREADABLE = "corrupt", "incomplete", "foreign", "unreadable"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a store.

    Attributes:
        kind: "corrupt": the bytes do not match the name, or the assembler that made a cubin is not
            the one in the record · "incomplete": a record lacks a blob · "foreign": the file is not
            part of a store · "unreadable": the disk fails.
        path: its place, below the version's folder.
        reason: the problem.
        repaired: it is quarantined, and the next build makes it again.
    """

    kind: str
    path: str
    reason: str
    repaired: bool = False


@dataclass(slots=True)
class Verified:
    """Result of a verification.

    Attributes:
        records, blobs, manifests: number of intact files of each, including files in packs.
        packs: number of intact packs.
        bytes: number of bytes read.
        findings: all faults.
    """

    records: int = 0
    blobs: int = 0
    manifests: int = 0
    packs: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if there are no faults, or everything was repaired."""
        return all(finding.repaired for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {**asdict(self), "ok": self.ok}


class _IntactFile(NamedTuple):
    """Facts about an intact file: the body of a record, and the tools that made a cubin."""

    area: str
    name: str
    size: int
    body: format.StoredRecord | None
    tools: tuple[Tool, ...] | None


def _checked(area: str, name: str, data: bytes) -> _IntactFile:
    """Check the bytes of a file.

    Raises:
        CorruptError: the bytes do not match the name.
    """
    body, _ = format.check_file(area, name, data)
    tools = None
    if area == BLOBS:
        with contextlib.suppress(CorruptError):  # a blob may be anything
            tools = tools_of(data)
    return _IntactFile(area, name, len(data), body if area == ARTIFACTS else None, tools)


def verify(store: Store, *, repair: bool = False) -> Verified:
    """Read every file of a store and report faults.

    Args:
        store: the store.
        repair: quarantine damaged files, so that the next build makes them again, and remove the
            index, which the next command makes again.
    """
    return _Verification(store, repair).run()


class _Verification:
    """The state of one verification: its findings so far."""

    def __init__(self, store: Store, repair: bool) -> None:
        self._store, self._folders, self._repair = store, store.folders, repair
        self._result = Verified()
        self._sizes: dict[str, int] = {}
        self._tools: dict[str, tuple[Tool, ...]] = {}
        self._unreadable: set[str] = set()
        self._records: list[tuple[str, format.StoredRecord, files.Identity | None, str]] = []
        """Well-formed records: key, body, identity of the file, and the pack that contains it."""
        self._sound: set[str] = set()
        """Keys of intact records."""
        self._manifests: set[str] = set()
        self._damaged_packs: set[str] = set()

    def run(self) -> Verified:
        result, scan = self._result, Scan(self._folders)
        refused = self._check_folders()
        for area in (MANIFESTS, ARTIFACTS, BLOBS):  # blobs last, since builds write them first
            for name, _ in scan.area(area):
                self._check_file(area, name)
        packs = {digest for digest, _ in scan.packs() if self._check_pack(digest)}
        for record in self._records:
            self._check_record(*record)
        for place in scan.foreign:
            if place not in refused:
                self._move_foreign(place, "a store has no file of this name or type")
        for place, reason in scan.faults:
            self._find(UNREADABLE, place, reason)
        result.records, result.manifests = len(self._sound), len(self._manifests)
        result.blobs, result.packs = len(self._sizes), len(packs - self._damaged_packs)
        if self._repair:
            with contextlib.suppress(OSError):
                self._folders.unlink(INDEX)
        return result

    def _check_folders(self) -> set[str]:
        """Report everything that replaces a folder of the store, and return their places."""
        try:
            refused = dict(self._folders.refused())
        except ToolError as error:
            self._find(UNREADABLE, "", error.message)
            return set()
        for place, kind in refused.items():
            self._move_foreign(place, f"{kind} replaces a folder of the store")
        return set(refused)

    def _check_file(self, area: str, name: str) -> None:
        place = format.relative_path(area, name)
        limit_bytes = None if area == BLOBS else format.MAX_RECORD_BYTES
        try:
            file = files.read(self._folders, place, limit_bytes=limit_bytes)
        except OSError as error:
            self._unreadable.add(name)
            self._find(UNREADABLE, place, f"cannot be read: {error.strerror or error}")
            return
        if file is None:
            return
        self._result.bytes += len(file.data)
        try:
            if file.fault:
                raise CorruptError(file.fault)
            self._add(_checked(area, name, file.data), file.identity)
        except CorruptError as error:
            self._put_away(CORRUPT, area, name, error.message, file.identity)

    def _check_pack(self, digest: str) -> bool:
        """Check the files in a pack; return False if any of them is damaged."""
        place, seen = f"{PACKS}/{digest}", None
        try:
            pack = open_stored(self._folders, digest)
            seen = pack.identity
            self._result.bytes += pack.size
            for file in [_checked(*entry) for entry in pack.check()]:
                self._add(file, seen, digest)
            return True
        except FileNotFoundError:
            return False
        except OSError as error:
            self._find(UNREADABLE, place, f"cannot be read: {error.strerror or error}")
        except CorruptError as error:
            self._put_pack_away(CORRUPT, digest, error.message, seen)
        return False

    def _add(self, file: _IntactFile, identity: files.Identity | None, pack: str = "") -> None:
        """Remember an intact file; the blobs of records are checked later."""
        if file.body is not None:
            self._records.append((file.name, file.body, identity, pack))
        elif file.area == MANIFESTS:
            self._manifests.add(file.name)
        else:
            self._sizes[file.name] = file.size
            if file.tools is not None:
                self._tools[file.name] = file.tools

    def _check_record(
        self, key: str, body: format.StoredRecord, identity: files.Identity | None, pack: str
    ) -> None:
        kind, reason = INCOMPLETE, self._lack_of(body)
        if not reason:
            kind, reason = CORRUPT, self._other_maker(body)
        if not reason:
            self._sound.add(key)
        elif pack:
            self._damaged_packs.add(pack)
            self._put_pack_away(kind, pack, f"{ARTIFACTS} {key}: {reason}", identity)
        elif self._is_still(format.relative_path(ARTIFACTS, key), identity):
            self._put_away(kind, ARTIFACTS, key, reason, identity)

    def _lack_of(self, body: format.StoredRecord) -> str:
        """Return the fault of a record's blobs, "" if all are here with the right sizes."""
        for name, blob in sorted(body.blobs.items()):
            if blob.digest not in self._sizes and not self._is_unreadable(blob.digest):
                return f"its blob {blob.digest} is missing or corrupt"
            size = self._sizes.get(blob.digest, blob.size)
            if size != blob.size:
                return f"its blob {name!r} has {size} bytes, not {blob.size}"
        return ""

    def _is_unreadable(self, digest: str) -> bool:
        """Return True if a blob may be here but is unreadable, which was already reported."""
        try:
            self._folders.status(format.relative_path(BLOBS, digest))
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return digest in self._unreadable

    def _other_maker(self, body: format.StoredRecord) -> str:
        """Describe a cubin that the record's assembler did not make, "" if there is none."""
        # A record of another form.
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
            artifact = msgspec.json.decode(body.artifact)
            ptxas = artifact["toolchain"]["ptxas"]
            for kernel in artifact["kernels"]:
                tools = self._tools.get(body.blobs[kernel["cubin"]].digest)
                if tools is not None and (maker := other_maker(tools, ptxas)):
                    return f"it names ptxas {ptxas}, but {maker} assembled {kernel['name']}"
        return ""

    def _put_pack_away(
        self, kind: str, digest: str, reason: str, seen: files.Identity | None
    ) -> None:
        place, done = f"{PACKS}/{digest}", False
        if self._repair:
            put_pack_away(self._folders, digest, reason, seen)
            self._store.relist_packs()
            done = not os.path.lexists(self._folders.path(place))
        self._find(kind, place, reason, repaired=done)

    def _put_away(
        self, kind: str, area: str, name: str, reason: str, identity: files.Identity | None
    ) -> None:
        if self._repair:
            self._store.put_away(area, name, reason, identity)
        self._find(kind, format.relative_path(area, name), reason, repaired=self._repair)

    def _move_foreign(self, place: str, reason: str) -> None:
        done = False
        if self._repair:
            with contextlib.suppress(OSError):
                if place == files.QUARANTINE:  # it cannot be put into itself
                    self._folders.unlink(place)
                else:
                    aside = f"{files.QUARANTINE}/foreign-{secrets.token_hex(8)}"
                    self._folders.rename(place, aside)
                done = True
        self._find(FOREIGN, place, reason, repaired=done)

    def _is_still(self, place: str, identity: files.Identity | None) -> bool:
        """Return True if a file is still the one that was read, not evicted or replaced."""
        with contextlib.suppress(OSError):
            return files.identity(self._folders.status(place)) == identity
        return False

    def _find(self, kind: str, path: str, reason: str, *, repaired: bool = False) -> None:
        self._result.findings.append(Finding(kind, path, reason, repaired))
