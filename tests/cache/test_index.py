"""The index: what the records say, whatever happens to its file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from pallasc.cache import files, format, single_flight
from pallasc.cache import index as index_module
from pallasc.cache.about import About
from pallasc.cache.index import MIGRATIONS, Index, open_index
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store

Publish = Callable[..., str]

KEYS = ["ab" * 32, "cd" * 32, "ef" * 32]


def known(store: Store, **options: Any) -> list[str]:
    with open_index(store, **options) as index:
        return [key for (key,) in index.read("SELECT key FROM artifacts ORDER BY key")]


@pytest.fixture
def filled(store: Store, publish: Publish) -> Store:
    for key in KEYS:
        publish(key, used_s=5)
    assert known(store) == KEYS
    return store


def sealed(store: Store) -> bytes:
    return (store.folder / "index.seal").read_bytes()


def test_a_missing_store_has_an_empty_index_and_is_not_made(store: Store) -> None:
    assert known(store) == []
    assert not store.root.exists()


def test_an_index_that_is_up_to_date_reads_no_record_and_is_not_written(filled: Store) -> None:
    before = sealed(filled)
    with open_index(filled) as index:
        assert (index.refreshed.read, index.rebuilt) == (0, False)
    assert sealed(filled) == before


def test_a_refresh_reads_what_is_new_and_forgets_what_is_gone(
    filled: Store, publish: Publish
) -> None:
    publish("00" * 32, used_s=7)
    filled.path("ac", KEYS[0]).unlink()
    with open_index(filled) as index:
        assert (index.refreshed.read, index.refreshed.removed) == (1, 1)
    assert known(filled) == ["00" * 32, *KEYS[1:]]


def test_a_record_that_was_used_keeps_its_hits(filled: Store) -> None:
    with open_index(filled) as index:
        index.write(lambda database: database.execute("UPDATE artifacts SET hits = 7"))
    os.utime(filled.path("ac", KEYS[0]), (9, 9))
    with open_index(filled) as index:
        rows = index.read("SELECT hits, last_use_ns, created_ns FROM artifacts WHERE key = ?",
                          [KEYS[0]])  # fmt: skip
    assert rows == [(7, 9 * 10**9, 5 * 10**9)]


def test_a_corrupt_record_is_in_no_table_and_is_told(filled: Store) -> None:
    filled.path("ac", KEYS[0]).write_bytes(b"")
    with open_index(filled) as index:
        (corrupt,) = index.refreshed.corrupt
        assert (corrupt.area, corrupt.name) == ("ac", KEYS[0])
        assert "the file is empty" in corrupt.reason
    assert known(filled) == KEYS[1:]
    assert filled.path("ac", KEYS[0]).exists()


def test_a_folder_that_cannot_be_read_loses_no_row(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refuse(path: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{path}").endswith("/ac/cd"):
            raise OSError(errno.EIO, "broken")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with open_index(filled) as index:
        assert not index.refreshed.complete
        assert "broken" in index.refreshed.faults[0]
    assert known(filled) == KEYS


def test_manifests_say_who_asked_and_what_it_cost(filled: Store) -> None:
    about = About("matmul", "h100-sxm", {"m": 1})
    told = Manifest(action=KEYS[0], about={**about.to_json(), "seconds": 2.5})
    filled.put_manifest("00" * 32, told)
    filled.put_manifest("11" * 32, Manifest(about={}))
    with open_index(filled) as index:
        assert index.read("SELECT * FROM variants") == [(KEYS[0], "matmul", "h100-sxm", '{"m": 1}')]
        assert index.read("SELECT request, action FROM requests ORDER BY 1") == [
            ("00" * 32, KEYS[0]),
            ("11" * 32, ""),
        ]
        assert index.read("SELECT compile_s FROM artifacts WHERE key = ?", KEYS[:1]) == [(2.5,)]


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_what_sqlite_once_left_beside_the_index_goes_with_it(filled: Store, suffix: str) -> None:
    left = filled.folder / f"index.sqlite{suffix}"
    left.write_bytes(b"left")
    with open_index(filled) as index:
        assert (index.refreshed.read, index.rebuilt) == (0, False)
        index.throw_away()
    assert known(filled) == KEYS
    assert not left.exists()


@pytest.mark.parametrize(
    "extra",
    [
        "CREATE TRIGGER again AFTER DELETE ON artifacts BEGIN "
        "INSERT INTO artifacts (key, inode, mtime_ns, bytes) VALUES ('../../x', 1, 1, 1); END",
        "CREATE VIEW mine AS SELECT * FROM artifacts",
    ],
)
def test_an_index_with_more_than_tables_is_thrown_away(filled: Store, extra: str) -> None:
    with open_index(filled) as index:
        index.write(lambda database: database.execute(extra))
    with open_index(filled) as index:
        assert index.refreshed.read == 3
        assert "views or triggers" in index.notes[0]


def test_an_index_without_packs_gets_their_tables_and_keeps_what_it_knows(filled: Store) -> None:
    def as_of_schema_1(database: Any) -> None:
        for table in ("artifacts", "requests"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN pack")
        database.execute("DROP TABLE packs")
        database.execute("ALTER TABLE requests DROP COLUMN lines")
        database.execute("UPDATE artifacts SET hits = 7")
        database.execute("PRAGMA user_version=1")

    with open_index(filled) as index:
        index.write(as_of_schema_1)
    with open_index(filled) as index:
        assert index.read("SELECT hits, pack FROM artifacts") == [(7, "")] * len(KEYS)
        assert (index.refreshed.read, index.rebuilt, index.notes) == (0, False, [])
        assert index.read("PRAGMA user_version") == [(len(MIGRATIONS),)]


@pytest.mark.parametrize("version", [len(MIGRATIONS) + 1, -1])
def test_an_index_of_another_schema_is_thrown_away(filled: Store, version: int) -> None:
    with open_index(filled) as index:
        index.write(lambda database: database.execute(f"PRAGMA user_version={version}"))
    with open_index(filled) as index:
        assert index.refreshed.read == 3
        assert "unknown schema version" in index.notes[0]
        assert index.read("PRAGMA user_version") == [(len(MIGRATIONS),)]
        assert index.durable


def test_the_migrations_that_a_file_lacks_are_applied(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(database: Any) -> None:
        database.table("artifacts").add_column("colour", str)

    monkeypatch.setattr(index_module, "MIGRATIONS", (*MIGRATIONS, add))
    with open_index(filled) as index:
        assert index.read("SELECT key, colour FROM artifacts LIMIT 1") == [(KEYS[0], None)]
        assert (index.refreshed.read, index.rebuilt) == (0, False)
    with open_index(filled) as index:
        assert (index.refreshed.read, index.rebuilt) == (0, False)


def test_the_group_may_write_what_the_umask_lets_it(store: Store, publish: Publish) -> None:
    before = os.umask(0o002)
    try:
        publish(KEYS[0], used_s=5)
        known(store)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.folder.glob("index.*")}
    assert modes == {"index.sqlite": 0o664, "index.seal": 0o664}


def test_a_fault_in_the_middle_begins_anew_and_gives_the_answer_all_the_same(
    filled: Store,
) -> None:
    with open_index(filled) as index:
        index.write(lambda database: database.execute("DROP TABLE artifacts"))
        assert index.read("SELECT count(*) FROM artifacts") == [(3,)]
        assert (index.rebuilt, index.durable) == (True, True)
        assert "no such table" in index.notes[0]
    assert known(filled) == KEYS


def test_a_second_fault_goes_on_in_memory(filled: Store) -> None:
    with open_index(filled) as index:
        for _ in range(2):
            index.write(lambda database: database.execute("DROP TABLE artifacts"))
            assert index.read("SELECT count(*) FROM artifacts") == [(3,)]
        assert not index.durable
    assert known(filled) == KEYS


def test_a_disk_that_fails_goes_on_in_memory(
    filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "disk I/O error")

    with open_index(filled) as index:
        index.write(lambda database: database.execute("UPDATE artifacts SET hits = 7"))
        monkeypatch.setattr(files, "temporary", refuse)
        index.close()
        assert index.notes == ["the index was not saved: [Errno 5] disk I/O error"]
    monkeypatch.undo()
    assert known(filled) == KEYS


def test_an_index_that_another_process_has_is_not_waited_for_too_long(filled: Store) -> None:
    before = sealed(filled)
    with (
        single_flight.single_flight(
            filled.folders, "locks/index", timeout_s=1, on_error=lambda error: None
        ),
        open_index(filled, timeout_s=0) as index,
    ):
        assert not index.durable
        assert index.read("SELECT count(*) FROM artifacts") == [(3,)]
    assert sealed(filled) == before


def test_writing_locks_from_the_start(filled: Store) -> None:
    seen: list[str] = []
    with open_index(filled) as index:
        index.write(lambda database: database.conn.set_trace_callback(seen.append))
        index.write(lambda database: database.execute("UPDATE artifacts SET hits = hits + 1"))
        index.write(lambda database: database.conn.set_trace_callback(None))
    assert seen[1:4] == ["BEGIN IMMEDIATE", "UPDATE artifacts SET hits = hits + 1", "COMMIT"]


def test_a_write_that_fails_changes_nothing(filled: Store) -> None:
    def work(database: Any) -> None:
        database.execute("DELETE FROM artifacts")
        raise KeyError("mine")

    with open_index(filled) as index:
        with pytest.raises(KeyError, match="mine"):
            index.write(work)
        assert index.read("SELECT count(*) FROM artifacts") == [(3,)]


def test_an_index_closes_twice(filled: Store) -> None:
    with open_index(filled) as index:
        assert isinstance(index, Index)
        index.read("SELECT 1")
        index.close()
    assert known(filled) == KEYS


def test_the_index_lies_where_the_grammar_says(filled: Store) -> None:
    names = {path.name for path in filled.folder.iterdir() if path.is_file()}
    assert names == {"index.sqlite", "index.seal"}


def test_records_of_strangers_are_taken_as_they_are_and_their_manifests_checked(
    store: Store,
) -> None:
    digest = store.put_blob(b"x")
    strange = {"kernels": [{"cubin": ["x"]}, 7], "blobs": {}}
    body = {"artifact": strange, "blobs": {"x": {"digest": digest, "size": 2**40}}}
    place = store.path("ac", KEYS[0])
    place.parent.mkdir(parents=True)
    place.write_bytes(format.encode("artifact", KEYS[0], body)[0])
    os.utime(place, ns=(2**63 - 1, 2**63 - 1))
    for number, about in enumerate([{"name": "\ud800"}, {"name": "a", "seconds": 1e300}, 7]):
        name = f"{number:064x}"
        path = store.path("man", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(format.encode("manifest", name, {"action": KEYS[0], "about": about})[0])
    store.put_manifest(f"{9:064x}", Manifest(action=KEYS[0], about={"name": "a"}))
    with open_index(store) as index:
        assert index.read("SELECT blob_bytes, cubin_bytes FROM artifacts") == [(2**40, 0)]
        assert index.read("SELECT name FROM variants") == [("a",)]
        assert index.notes == []
