"""Bring the index up to date: read the records and manifests that it does not know yet."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from pallasc.cache import files, format
from pallasc.cache.about import About, about_from_json, cubin_bytes, pack_blobs
from pallasc.cache.folders import Folders
from pallasc.cache.format import ARTIFACTS, KINDS, MANIFESTS, StoredRecord
from pallasc.cache.manifests import seconds_of
from pallasc.cache.scan import Scan
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from sqlite_utils import Database

_BATCH = 5000

# A row of a file in its area takes the place of one of the same name in a pack, never the reverse.
_ARTIFACT = """
INSERT INTO artifacts
    (key, inode, mtime_ns, bytes, blobs, blob_bytes, cubin_bytes, created_ns, last_use_ns, pack)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    inode = excluded.inode, mtime_ns = excluded.mtime_ns, bytes = excluded.bytes,
    blobs = excluded.blobs, blob_bytes = excluded.blob_bytes, cubin_bytes = excluded.cubin_bytes,
    last_use_ns = max(last_use_ns, excluded.last_use_ns), pack = excluded.pack
WHERE pack != '' OR excluded.pack = ''
"""
_REQUEST = """
INSERT INTO requests (request, inode, mtime_ns, bytes, action, pack, lines)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (request) DO UPDATE SET
    inode = excluded.inode, mtime_ns = excluded.mtime_ns, bytes = excluded.bytes,
    action = excluded.action, pack = excluded.pack, lines = excluded.lines
WHERE pack != '' OR excluded.pack = ''
"""
_VARIANT = "INSERT OR IGNORE INTO variants VALUES (?, ?, ?, ?)"
_SECONDS = "UPDATE artifacts SET compile_s = ? WHERE key = ? AND compile_s = 0"


@dataclass(frozen=True, slots=True)
class CorruptFile:
    """A file that is not the record or manifest that its place says."""

    area: str
    name: str
    reason: str
    identity: files.Identity | None


@dataclass(slots=True)
class Refreshed:
    """What a refresh found.

    Attributes:
        read: how many files it had to read.
        removed: how many rows had lost their file.
        corrupt: files that are not what their place says; no table has them.
        faults: what could not be read; the tables may be incomplete then.
    """

    read: int = 0
    removed: int = 0
    corrupt: list[CorruptFile] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Tell whether everything that is there was seen."""
        return not self.faults


class Tables(Protocol):
    """The index, as far as it is brought up to date."""

    def read(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    def write(self, work: Callable[[Database], None]) -> None:
        """Do something in one transaction."""


class Packs(Protocol):
    """The packs of a store, as far as they are listed."""

    def read_all(self, digest: str, area: str) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of each file of an area in a pack."""


def refresh(index: Tables, folders: Folders, packs: Packs | None = None) -> Refreshed:
    """Make the tables say what the files of a store say.

    Args:
        index: the tables.
        folders: of the store.
        packs: of the store, where it has some.

    Raises:
        sqlite3.Error: if the tables cannot be read or written.
    """
    refreshed = Refreshed()
    _refresh_area(index, folders, ARTIFACTS, refreshed, _write_artifacts)
    _refresh_area(index, folders, MANIFESTS, refreshed, _write_manifests)
    _refresh_packs(index, folders, packs, refreshed)
    if refreshed.removed:
        index.write(_forget_variants)
    return refreshed


Row = tuple[str, files.Identity, Mapping[str, object], str]
"""Name, file and body of a record or manifest, and the pack that it lies in, "" for its area."""


def _refresh_area(
    index: Tables,
    folders: Folders,
    area: str,
    refreshed: Refreshed,
    write: Callable[[Database, list[Row]], None],
) -> None:
    table, key = ("artifacts", "key") if area == ARTIFACTS else ("requests", "request")
    listed = {
        name: (inode, mtime_ns, size)
        for name, inode, mtime_ns, size in index.read(
            f"SELECT {key}, inode, mtime_ns, bytes FROM {table} WHERE pack = ''"
        )
    }
    scan = Scan(folders)
    rows = _new_rows(scan, area, listed, refreshed)
    while batch := list(itertools.islice(rows, _BATCH)):
        index.write(lambda database, batch=batch: write(database, batch))  # type: ignore[misc]
    refreshed.faults += map(str, scan.faults)
    if listed and refreshed.complete:  # what is left in `listed` has no file
        refreshed.removed += len(listed)
        gone = [(name,) for name in listed]
        index.write(lambda database: _many(database, f"DELETE FROM {table} WHERE {key} = ?", gone))


def _refresh_packs(
    index: Tables, folders: Folders, packs: Packs | None, refreshed: Refreshed
) -> None:
    """Read packs that are new, or have lost files; all of them where a row was removed.

    What lay in its area, or in another pack, may lie in one that is left, too.
    """
    listed = {row[0]: row[1:] for row in index.read("SELECT * FROM packs")}
    scan = Scan(folders)
    seen = {} if packs is None else {d: (*identity, gone) for d, identity, gone in scan.packs()}
    refreshed.faults += map(str, scan.faults)
    if scan.faults or (seen == listed and not (seen and refreshed.removed)):
        return
    lost = listed.keys() - seen.keys()
    every = bool(lost or refreshed.removed)
    reading = [d for d in seen if every or _without_time(listed.get(d)) != _without_time(seen[d])]

    def work(database: Database) -> None:
        stale, unread = [(digest,) for digest in (*lost, *reading)], set()
        _many(database, "UPDATE artifacts SET pack = '?' WHERE pack = ?", stale)
        _many(database, "UPDATE requests SET pack = '?' WHERE pack = ?", stale)
        for digest in reading:
            try:
                for area, write in (ARTIFACTS, _write_artifacts), (MANIFESTS, _write_manifests):
                    write(database, _packed(packs, digest, area, seen[digest][1], refreshed))
            except OSError as error:
                path = folders.path(f"{format.PACKS}/{digest}")
                refreshed.faults.append(f"{path}: cannot be read: {error.strerror or error}")
                unread.add(digest)
        for table in ("artifacts", "requests"):
            refreshed.removed += database.execute(f"DELETE FROM {table} WHERE pack = '?'").rowcount
        times = [(row[1], digest) for digest, row in seen.items()]
        _many(
            database, "UPDATE artifacts SET last_use_ns = max(last_use_ns, ?) WHERE pack = ?", times
        )
        database.execute("DELETE FROM packs")
        rows = [(digest, *row) for digest, row in seen.items() if digest not in unread]
        _many(database, "INSERT INTO packs VALUES (?, ?, ?, ?, ?)", rows)

    index.write(work)


def _without_time(row: tuple[int, ...] | None) -> tuple[int, ...]:
    return () if row is None else (row[0], *row[2:])


def _packed(
    packs: Packs | None, digest: str, area: str, time_ns: int, refreshed: Refreshed
) -> list[Row]:
    """Return the rows of an area's files in a pack."""
    rows: list[Row] = []
    for name, data in () if packs is None else packs.read_all(digest, area):
        refreshed.read += 1
        try:
            body, _ = format.decode(KINDS[area], name, data)
        except CorruptError as error:
            refreshed.corrupt.append(CorruptFile(area, name, error.message, files.IN_PACK))
            continue
        rows.append((name, (0, time_ns, len(data)), body, digest))
    return rows


def _new_rows(
    scan: Scan, area: str, listed: dict[str, files.Identity], refreshed: Refreshed
) -> Iterator[Row]:
    """Read what is new or has changed; remove from `listed` all that has a file."""
    for name, seen in scan.area(area):
        if listed.get(name) == seen:
            del listed[name]
            continue
        row = _read(scan.folders, area, name, refreshed)
        if row is not None:
            listed.pop(name, None)
            yield row


def _read(folders: Folders, area: str, name: str, refreshed: Refreshed) -> Row | None:
    place = format.relative_path(area, name)
    refreshed.read += 1
    try:
        data = files.read(folders, place, limit_bytes=format.MAX_RECORD_BYTES)
        if data is None or data.identity is None:
            return None
        if data.fault:
            raise CorruptError(data.fault)
        body, _ = format.decode(KINDS[area], name, data.data)
    except OSError as error:
        refreshed.faults.append(f"{folders.path(place)}: cannot be read: {error.strerror or error}")
        return None
    except CorruptError as error:
        identity = None if data is None else data.identity
        refreshed.corrupt.append(CorruptFile(area, name, error.message, identity))
        return None
    return name, data.identity, body, ""


def _write_artifacts(database: Database, rows: list[Row]) -> None:
    _many(database, _ARTIFACT, (_artifact_row(*row) for row in rows))


def _artifact_row(
    key: str, identity: files.Identity, body: Mapping[str, object], pack: str
) -> tuple[object, ...]:
    record = cast(StoredRecord, body)
    sizes = {blob["digest"]: blob["size"] for blob in record["blobs"].values()}
    packed, cubins, mtime_ns = pack_blobs(record), cubin_bytes(record), identity[1]
    return key, *identity, packed, sum(sizes.values()), cubins, mtime_ns, mtime_ns, pack


def _write_manifests(database: Database, rows: list[Row]) -> None:
    requests, abouts = [], []
    for request, identity, body, pack in rows:
        action, about = str(body.get("action", "")), body.get("about")
        requests.append((request, *identity, action, pack, bool(body.get("lines"))))
        if action:
            seconds = seconds_of(about.get("seconds")) if isinstance(about, Mapping) else 0.0
            abouts.append((action, about_from_json(about), seconds))
    _many(database, _REQUEST, requests)
    add_about(database, abouts)


def add_about(database: Database, abouts: Iterable[tuple[str, About | None, float]]) -> None:
    """Note, by action key, who asked for an artifact, and how long it took to compile if known."""
    variants, costs = [], []
    for action, about, seconds in abouts:
        if about is not None:
            params = json.dumps(dict(about.params), sort_keys=True)
            variants.append((action, about.name, about.target, params))
        if seconds:
            costs.append((seconds, action))
    _many(database, _VARIANT, variants)
    _many(database, _SECONDS, costs)


def _forget_variants(database: Database) -> None:
    database.execute("DELETE FROM variants WHERE action NOT IN (SELECT key FROM artifacts)")


def _many(database: Database, query: str, rows: Iterable[tuple[object, ...]]) -> None:
    # The connection's own method: sqlite_utils' insert commits on its own in some versions.
    database.conn.executemany(query, rows)
