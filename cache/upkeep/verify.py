"""Read everything in a store and compare it with what its name and its records say."""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pallasc.cache import files, format, stat_digest, uses
from pallasc.cache.about import pack_blobs
from pallasc.cache.format import ARTIFACTS, BLOBS, KINDS, MANIFESTS, PACKS, StoredRecord
from pallasc.cache.index import LOCK_TIMEOUT_S, Index, open_index
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store
from pallasc.cache.upkeep.verify_packs import (
    CORRUPT,
    ExaminedPack,
    open_for_verification,
    put_pack_away,
    replace,
)
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.artifacts.cubin import Tool, other_maker, tools_of

INCOMPLETE, FOREIGN, UNREADABLE, INDEX = "incomplete", "foreign", "unreadable", "index"
_Body = TypeVar("_Body")
_DECODERS: dict[str, Callable[[str, bytes], object]] = {
    "uses": uses.decode_events,
    "stat/digests": lambda _, data: stat_digest.decode(data),
    "stat/totals": lambda _, data: uses.decode_totals(data),
}
"""The records that lie outside of the areas: how one is read, by its folder or its path."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        kind: "corrupt": the bytes do not fit the name, or another assembler made the kernels than
            the record says · "incomplete": a record lacks a blob · "foreign": not a file of a store
            · "unreadable": the disk refuses · "index": the index contradicts the records.
        path: where, below the version's folder.
        reason: what is wrong.
        repaired: it is put away, and the next build makes it anew; totals begin anew.
    """

    kind: str
    path: str
    reason: str
    repaired: bool = False


@dataclass(slots=True)
class Verified:
    """What a verification found.

    Attributes:
        records, blobs, manifests, uses: how many files of each are as they should be, those in
            packs too.
        source_lines: how many of the manifests have the source lines of an artifact.
        packs: how many packs are as they should be.
        stat: how many of the two files in `stat/` that say something.
        bytes: how much was read.
        orphans: blobs that no record names; pruning takes them.
        dangling: manifests that lead to no record; pruning takes them.
        findings: everything that is wrong.
    """

    records: int = 0
    blobs: int = 0
    manifests: int = 0
    source_lines: int = 0
    packs: int = 0
    uses: int = 0
    stat: int = 0
    bytes: int = 0
    orphans: int = 0
    dangling: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong, or everything was repaired."""
        return all(finding.repaired for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {**asdict(self), "ok": self.ok}


def verify(store: Store, *, repair: bool = False, timeout_s: float = LOCK_TIMEOUT_S) -> Verified:
    """Read every file of a store and say what is wrong.

    Args:
        store: the store.
        repair: put away what is wrong, so that it is a miss and the next build makes it anew.
        timeout_s: how long to wait for another process that has the index.
    """
    verification = _Verification(store, repair)
    result = verification.run()
    with open_index(store, timeout_s=timeout_s) as index:
        _verify_index(store, index, verification.packed, result, repair)
    return result


class _Verification:
    """The state of one verification: what was found so far."""

    def __init__(self, store: Store, repair: bool) -> None:
        self._store, self._repair = store, repair
        self._result = Verified()
        self._sizes: dict[str, int] = {}
        self._unreadable: set[str] = set()
        self._tools: dict[str, tuple[Tool, ...]] = {}
        """Who made each cubin."""
        self._refused: set[str] = set()
        self.packed: dict[str, bytes] = {}
        """The blobs of each record, as the index should have them."""
        self._named: Counter[str] = Counter()
        self._sound: set[str] = set()
        """The keys of the records that are as they should be."""
        self._actions: dict[str, str] = {}
        """Where the manifests that are as they should be lead to."""
        self._with_lines: set[str] = set()
        """The manifests with source lines."""

    def run(self) -> Verified:
        """Verify blobs, then the records that name them, then all else."""
        self._verify_folders()
        scan = Scan(self._store.folders)
        for digest, _ in scan.area(BLOBS):
            self._verify_blob(digest)
        for digest, _, _ in scan.packs():
            self._verify_pack(digest)
        for key, _ in scan.area(ARTIFACTS):
            self._verify_record(key)
        for request, _ in scan.area(MANIFESTS):
            self._verify_manifest(request)
        for place in scan.foreign:
            if place not in self._refused:
                self._foreign(place)
        for fault in scan.faults:
            where = str(fault.path.relative_to(self._store.folder))
            self._find(UNREADABLE, where, fault.reason, False)
        self._result.records, self._result.manifests = len(self._sound), len(self._actions)
        self._result.source_lines = len(self._with_lines)
        actions = self._actions.values()
        self._result.dangling = sum(1 for key in actions if key and key not in self.packed)
        self._result.orphans = sum(1 for digest in self._sizes if not self._named[digest])
        self._verify_singles()
        return self._result

    def _verify_folders(self) -> None:
        try:
            refused = list(self._store.folders.refused())
        except ToolError as error:
            self._find(UNREADABLE, "", error.message, False)
            return
        for place, kind in refused:
            self._foreign(place, f"{kind} is in the place of a folder of the store")
            self._refused.add(place)

    def _verify_blob(self, digest: str) -> None:
        path = format.relative_path(BLOBS, digest)
        file = self._read(path)
        if file is None:
            return
        fault = file.fault
        if not fault and (actual := format.sha256(file.data)) != digest:
            fault = f"its SHA-256 is {actual}"
        if fault:
            self._put_away(CORRUPT, BLOBS, digest, fault, file.identity)
            return
        self.add_blob(digest, file.data)

    def _verify_pack(self, digest: str) -> None:
        place = f"{PACKS}/{digest}"
        try:
            opened = open_for_verification(self._store, digest)
        except FileNotFoundError:
            return
        except OSError as error:
            self._find(UNREADABLE, place, f"cannot be read: {error.strerror or error}", False)
            return
        except CorruptError as error:
            done = self._repair and put_pack_away(self._store, digest, error.message)
            self._find(CORRUPT, place, error.message, done)
            return
        examined = ExaminedPack(self, opened)
        try:
            examined.run()
        except OSError as error:
            self._find(UNREADABLE, place, f"cannot be read: {error.strerror or error}", False)
            return
        done = self._repair and bool(examined.faults)
        done = done and replace(self._store, opened, opened.gone | examined.wrong)
        for kind, reason in examined.faults:
            self._find(kind, place, reason, done)
        self._result.packs += not examined.faults
        self._result.bytes += opened.pack.size

    def fault_of_record(self, body: StoredRecord) -> tuple[str, str] | None:
        """Return the kind of what is wrong with a record beside its bytes, and what it is."""
        if lack := next(self._lacks(body), ""):
            return INCOMPLETE, lack
        return (CORRUPT, maker) if (maker := self._other_maker(body)) else None

    def add_blob(self, digest: str, data: bytes) -> None:
        """Note a blob that is as it should be."""
        self._result.blobs += digest not in self._sizes
        self._sizes[digest] = len(data)
        self._look_into(digest, data)

    def add_record(self, key: str, body: StoredRecord) -> None:
        """Note a record; whether it counts is decided later."""
        self.packed[key] = pack_blobs(body)
        self._named.update({blob["digest"] for blob in body["blobs"].values()})

    def add_sound(self, area: str, name: str, body: Mapping[str, object]) -> None:
        """Note a record or manifest that is as it should be."""
        if area == ARTIFACTS:
            self._sound.add(name)
        else:
            self._actions[name] = str(body.get("action", ""))
            self._with_lines.update([name] if body.get("lines") else [])

    def _look_into(self, digest: str, data: bytes) -> None:
        with contextlib.suppress(CorruptError):  # it is not a cubin
            self._tools[digest] = tools_of(data)

    def _verify_record(self, key: str) -> None:
        read = self._record(ARTIFACTS, key, format.decode_artifact)
        if read is None:
            return
        body, identity = read
        self.add_record(key, body)
        fault = self.fault_of_record(body)
        if fault and fault[0] == INCOMPLETE:
            if self._is_still(format.relative_path(ARTIFACTS, key), identity):
                self._put_away(INCOMPLETE, ARTIFACTS, key, fault[1], identity)
                return
            fault = None
        if fault:
            self._put_away(CORRUPT, ARTIFACTS, key, fault[1], identity)
            return
        self.add_sound(ARTIFACTS, key, {})

    def _other_maker(self, body: StoredRecord) -> str:
        """Return which kernel another assembler made than the record names, "" if there is none.

        A record of another form has no such kernel: its form is checked where it is used.
        """
        artifact: Any = body["artifact"]
        with contextlib.suppress(KeyError, TypeError, AttributeError):
            ptxas = artifact["toolchain"]["ptxas"]
            for kernel in artifact["kernels"]:
                tools = self._tools.get(body["blobs"][kernel["cubin"]]["digest"])
                if tools is not None and (maker := other_maker(tools, ptxas)):
                    name = kernel["name"]
                    return f"it says that ptxas {ptxas} assembled {name}, but {maker} did"
        return ""

    def _lacks(self, body: StoredRecord) -> Iterator[str]:
        for name, blob in sorted(body["blobs"].items()):
            digest = blob["digest"]
            if digest in self._unreadable:
                continue
            if digest not in self._sizes and not self._is_new(digest):
                yield f"its blob {digest} is missing or corrupt"
            elif self._sizes.get(digest, blob["size"]) != blob["size"]:
                yield f"its blob {name!r} has {self._sizes[digest]} bytes, not {blob['size']}"

    def _is_new(self, digest: str) -> bool:
        """Look again: a build may have published the blob since the blobs were listed."""
        with contextlib.suppress(OSError):  # which the walk has told already
            seen = files.read(self._store.folders, format.relative_path(BLOBS, digest))
            if seen is None or seen.fault or format.sha256(seen.data) != digest:
                return False
            self._sizes[digest] = len(seen.data)
            self._look_into(digest, seen.data)
        return True

    def _verify_manifest(self, request: str) -> None:
        kind = KINDS[MANIFESTS]
        read = self._record(MANIFESTS, request, lambda key, data: format.decode(kind, key, data))
        if read is not None:
            self.add_sound(MANIFESTS, request, read[0])

    def _record(
        self, area: str, key: str, decode: Callable[[str, bytes], tuple[_Body, str]]
    ) -> tuple[_Body, files.Identity | None] | None:
        file = self._read(format.relative_path(area, key), limit_bytes=format.MAX_RECORD_BYTES)
        if file is None:
            return None
        try:
            if file.fault:
                raise CorruptError(file.fault)
            return decode(key, file.data)[0], file.identity
        except CorruptError as error:
            self._put_away(CORRUPT, area, key, error.message, file.identity)
            return None

    def _verify_singles(self) -> None:
        """Verify uses, and what `stat/` remembers."""
        for name in self._listed("uses"):
            if format.is_name(name):
                self._verify_single("uses", f"uses/{name}", "uses")
            else:
                self._foreign(f"uses/{name}")
        for path in ("stat/digests", "stat/totals"):
            self._verify_single("stat", path, path)

    def _verify_single(self, kind: str, path: str, decoder: str) -> None:
        file = self._read(path, limit_bytes=format.MAX_RECORD_BYTES)
        if file is None:
            return
        try:
            if file.fault:
                raise CorruptError(file.fault)
            _DECODERS[decoder](path.rpartition("/")[2], file.data)
        except CorruptError as error:
            self._find(CORRUPT, path, error.message, self._repair and self._mended(path, file))
        else:
            setattr(self._result, kind, getattr(self._result, kind) + 1)

    def _mended(self, path: str, file: files.Content) -> bool:
        with contextlib.suppress(OSError):
            if file.identity is not None and not self._is_still(path, file.identity):
                return True  # another process has mended it
            files.remove_any(self._store.folders, path)
            return True
        return False

    def _listed(self, folder: str) -> list[str]:
        if folder in self._refused:
            return []
        try:
            return self._store.folders.names(folder)
        except OSError as error:
            self._find(UNREADABLE, folder, f"cannot be listed: {error.strerror or error}", False)
            return []

    def _read(self, path: str, *, limit_bytes: int | None = None) -> files.Content | None:
        try:
            file = files.read(self._store.folders, path, limit_bytes=limit_bytes)
        except OSError as error:
            self._unreadable.add(path.rpartition("/")[2])
            self._find(UNREADABLE, path, f"cannot be read: {error.strerror or error}", False)
            return None
        self._result.bytes += 0 if file is None else len(file.data)
        return file

    def _put_away(
        self, kind: str, area: str, name: str, reason: str, identity: files.Identity | None
    ) -> None:
        if self._repair:
            self._store.put_away(area, name, reason, identity)
        self._find(kind, format.relative_path(area, name), reason, self._repair)

    def _foreign(
        self, place: str, reason: str = "a store has no file of this name or type"
    ) -> None:
        done = False
        if self._repair:
            with contextlib.suppress(OSError):
                if place == files.QUARANTINE:  # it cannot be put into itself
                    self._store.folders.unlink(place)
                else:
                    aside = f"{files.QUARANTINE}/foreign-{secrets.token_hex(8)}"
                    self._store.folders.rename(place, aside)
                done = True
        self._find(FOREIGN, place, reason, done)

    def _is_still(self, place: str, identity: files.Identity | None) -> bool:
        """Tell whether a file is the one that was read, and not evicted or made anew."""
        with contextlib.suppress(OSError):
            return files.identity(self._store.folders.status(place)) == identity
        return False

    def _find(self, kind: str, path: str, reason: str, repaired: bool) -> None:
        self._result.findings.append(Finding(kind, path, reason, repaired))


def _verify_index(
    store: Store, index: Index, packed: dict[str, bytes], result: Verified, repair: bool
) -> None:
    """Compare what the index says of records with the records themselves."""
    for key, listed in index.read("SELECT key, blobs FROM artifacts"):
        if packed.get(key, listed) != listed and not _is_right(store, key, listed):
            reason = f"its entry for {key} does not match the record"
            result.findings.append(Finding(INDEX, index.path.name, reason, repair))
            if repair:
                index.throw_away()
            return


def _is_right(store: Store, key: str, packed: bytes) -> bool:
    """Look again: a build may have made the record anew."""
    with contextlib.suppress(OSError, CorruptError):
        file = files.read(store.folders, format.relative_path(ARTIFACTS, key))
        return file is None or pack_blobs(format.decode_artifact(key, file.data)[0]) == packed
    return True
