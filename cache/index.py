"""The index: what the records say, in tables that can be asked; never the truth.

`refresh` compares it with the files of the store and reads the ones that are new or changed, so a
rebuild is a refresh from nothing. Any fault throws the file away; if the next file fails too, the
index lives in memory. Only one process at a time has the file, under a lock; a process that does
not get the lock works in memory too. No build waits for any of this.

SQLite works in memory: the file is read and written whole, like any other of the store. It counts
only while it is byte for byte what its last user sealed, so all damage is handled alike.

A file of schema n has had the first n of `MIGRATIONS`:

    1  artifacts, variants, requests
    2  packs; what lies in a pack has its name in the column `pack` of artifacts and requests
    3  `lines` of requests: whether the manifest has the source lines of an artifact
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pallasc.cache import files, format, single_flight
from pallasc.cache.folders import Folders
from pallasc.cache.refresh import Refreshed, refresh
from pallasc.errors import CorruptError, ToolError

if TYPE_CHECKING:
    from sqlite_utils import Database

    from pallasc.cache.store import Store

LOCK_TIMEOUT_S = 10.0
_NAME = format.sha256(b"pallasc index")
PLACE, SEAL_PLACE = "index.sqlite", "index.seal"
_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""What SQLite left beside the file when it worked on that itself."""
_MAX_BYTES = 2**31
T = TypeVar("T")


def _tables(database: Database) -> None:
    """Make the tables. A file's identity is `inode`, `mtime_ns` and `bytes` (`cache/files.py`)."""
    database.create_table(
        "artifacts",
        {
            "key": str,
            "inode": int,
            "mtime_ns": int,
            "bytes": int,
            "blobs": bytes,  # digests and sizes, see cache/about.py
            "blob_bytes": int,
            "cubin_bytes": int,
            "created_ns": int,
            "last_use_ns": int,
            "hits": int,
            "compile_s": float,
        },
        pk="key",
        defaults={"hits": 0, "compile_s": 0.0},
    )
    database.create_table(
        "variants",
        {"action": str, "name": str, "target": str, "params": str},
        pk=("action", "name", "target", "params"),
    )
    database.create_table(
        "requests",
        {"request": str, "inode": int, "mtime_ns": int, "bytes": int, "action": str},
        pk="request",
    )
    database.table("variants").create_index(["name"])
    database.table("requests").create_index(["action"])


def _packs(database: Database) -> None:
    """Make the table of packs. `gone` is the size of the file that says what is missing there."""
    database.create_table(
        "packs",
        {"digest": str, "inode": int, "mtime_ns": int, "bytes": int, "gone": int},
        pk="digest",
    )
    for table in ("artifacts", "requests"):
        database.execute(f"ALTER TABLE {table} ADD COLUMN pack TEXT NOT NULL DEFAULT ''")


def _lines(database: Database) -> None:
    """Note which manifests have source lines; each is read anew for it."""
    database.execute("ALTER TABLE requests ADD COLUMN lines INTEGER NOT NULL DEFAULT 0")
    for table in ("requests", "packs"):
        database.execute(f"UPDATE {table} SET inode = -1")


MIGRATIONS: tuple[Callable[[Database], None], ...] = (_tables, _packs, _lines)


@dataclass(slots=True)
class Index:
    """The tables of one store; faults are dealt with in here.

    Attributes:
        folders: of the store.
        durable: what is written lasts beyond this object.
        refresh: brings the tables up to date; called once for each file or memory that is opened.
        notes: a sentence for each fault.
        rebuilt: the file was not there, or was thrown away.
    """

    folders: Folders
    durable: bool
    refresh: Callable[[Index], Refreshed]
    notes: list[str] = field(default_factory=list)
    rebuilt: bool = False
    _database: Database | None = None
    _dirty: bool = False
    _started_over: bool = False
    _filling: bool = False
    _refreshed: Refreshed = field(default_factory=Refreshed)

    @property
    def path(self) -> Path:
        """Return where the file lies."""
        return self.folders.path(PLACE)

    @property
    def refreshed(self) -> Refreshed:
        """Return what bringing the tables up to date found."""
        return self._do(lambda database: self._refreshed)

    def read(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        values = tuple(parameters)
        return self._do(lambda database: database.execute(query, values).fetchall())

    def write(self, work: Callable[[Database], None]) -> None:
        """Do something in one transaction, which locks from its start."""

        def transaction(database: Database) -> None:
            self._dirty = True
            database.execute("BEGIN IMMEDIATE")
            try:
                work(database)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

        self._do(transaction)

    def close(self) -> None:
        """Close, and write and seal the file where something has changed."""
        database, self._database = self._database, None
        if database is None:
            return
        try:
            if self.durable and self._dirty:
                self._save(database.conn.serialize())
        except (sqlite3.Error, OSError) as error:
            self.notes.append(f"the index was not saved: {error}")
            self.throw_away()
        finally:
            with contextlib.suppress(sqlite3.Error):
                database.conn.close()

    def throw_away(self) -> None:
        """Remove the file; the next use begins with an empty one."""
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.conn.close()
            self._database = None
        if not self.durable:
            return
        for place in (SEAL_PLACE, *(f"{PLACE}{suffix}" for suffix in _SUFFIXES)):
            with contextlib.suppress(OSError):
                files.remove_any(self.folders, place)

    def _do(self, work: Callable[[Database], T]) -> T:
        while True:
            try:
                return work(self._connected())
            except (sqlite3.Error, OSError, ImportError) as error:
                if self._filling:
                    raise
                self._recover(error)

    def _connected(self) -> Database:
        if self._database is None:
            self._database = self._open()
            self._filling = True
            try:
                self._refreshed = self.refresh(self)
            finally:
                self._filling = False
        return self._database

    def _recover(self, error: Exception) -> None:
        """Begin again: the first time with a new file, then in memory."""
        self.notes.append(f"the index was discarded: {error}")
        self.rebuilt = True
        if not self.durable:
            raise ToolError(f"cannot create an index, not even in memory: {error}") from error
        self.throw_away()
        self.durable = not self._started_over
        self._started_over = True

    def _open(self) -> Database:
        data = self._sealed() if self.durable else None
        if self.durable and data is None:
            self.throw_away()
            self.rebuilt = True
        connection = sqlite3.connect(":memory:")
        try:
            if data is not None:
                connection.deserialize(data)
            database, migrated = _prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._dirty = migrated or self._dirty
        return database

    def _sealed(self) -> bytes | None:
        """Return the file's bytes if they are what was sealed."""
        try:
            seal = files.read(self.folders, SEAL_PLACE, limit_bytes=format.MAX_RECORD_BYTES)
            file = files.read(self.folders, PLACE, limit_bytes=_MAX_BYTES)
            if seal is None or seal.fault or file is None or file.fault:
                return None
            sealed, _ = format.decode(format.SEAL, _NAME, seal.data)
            return file.data if sealed == _seal_of(file.data) else None
        except (OSError, CorruptError):
            return None

    def _save(self, data: bytes) -> None:
        seal, _ = format.encode(format.SEAL, _NAME, _seal_of(data))
        for content, to in ((data, PLACE), (seal, SEAL_PLACE)):
            with files.temporary(self.folders, content) as place:
                files.publish_last(self.folders, place, to)


@contextlib.contextmanager
def open_index(store: Store, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[Index]:
    """Open a store's index, in memory where its file is locked or unusable.

    Its first use brings it up to date.

    Args:
        store: the store; where there is none, none is made.
        timeout_s: how long to wait for another process that has the file.
    """
    notes: list[str] = []
    with contextlib.ExitStack() as stack:
        held = store.folder.is_dir() and stack.enter_context(
            single_flight.single_flight(
                store.folders,
                f"{single_flight.FOLDER}/index",
                timeout_s=timeout_s,
                on_error=lambda error: notes.append(f"the index is used without its file: {error}"),
            )
        )

        def bring_up_to_date(index: Index) -> Refreshed:
            return refresh(index, store.folders, store.packed)

        index = Index(store.folders, bool(held), bring_up_to_date, notes)
        stack.callback(index.close)
        yield index


def _prepare(connection: sqlite3.Connection) -> tuple[Database, bool]:
    """Set the connection up and migrate its tables; return whether that was needed."""
    from sqlite_utils import Database

    connection.isolation_level = None  # otherwise sqlite3 begins transactions by itself
    database = Database(connection)
    # What a stranger put into the file must not run: a trigger could bring removed rows back.
    odd = "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')"
    if connection.execute(odd).fetchone() != (0,):
        raise sqlite3.DatabaseError("it holds views or triggers")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= len(MIGRATIONS):
        raise sqlite3.DatabaseError(f"unknown schema version {version}")
    for number, migrate in enumerate(MIGRATIONS[version:], start=version + 1):
        migrate(database)
        connection.execute(f"PRAGMA user_version={number}")
    return database, version < len(MIGRATIONS)


def _seal_of(data: bytes) -> dict[str, object]:
    return {"digest": format.sha256(data), "size": len(data)}
