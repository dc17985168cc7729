"""Manifests: sets of sources, and what strangers write."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import format
from pallasc.cache.evict import Limits
from pallasc.cache.format import ARTIFACTS, MANIFESTS, sha256
from pallasc.cache.inventory import artifacts, stats
from pallasc.cache.manifests import MAX_SETS, Manifest, manifest_from_json, set_name
from pallasc.cache.prune import prune
from pallasc.cache.store import Store
from pallasc.cache.uses import Totals, read_totals
from pallasc.cache.verify import verify
from pallasc.errors import CorruptError

REQUEST = sha256(b"request")


def read_of(number: int) -> str:
    return sha256(f"sources {number}".encode())


def put(store: Store, number: int) -> str:
    """Store an artifact that was made from a set of sources; return the name of its manifest."""
    action = sha256(f"action {number}".encode())
    store.put_artifact(action, {"number": number}, {"cubin": f"cubin {number}".encode()})
    return store.put_set(REQUEST, Manifest(action=action, read=read_of(number), name=str(number)))


def held(store: Store) -> set[int]:
    return {int(manifest.name) for _, manifest in store.sets(REQUEST)}


def use(store: Store, number: int, time_s: float) -> None:
    path = store.path(ARTIFACTS, sha256(f"action {number}".encode()))
    os.utime(path, (time_s, time_s))


def test_each_set_of_sources_has_a_manifest_and_the_same_set_replaces_its_own(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "store")
    assert held(store) == set()
    assert [put(store, number) for number in (1, 2, 1)] == [
        set_name(REQUEST, read_of(number)) for number in (1, 2, 1)
    ]
    assert held(store) == {1, 2}
    assert verify(store).ok
    for other in (REQUEST[:32] + "0" * 32, "0" * 32 + REQUEST[32:]):
        assert list(store.sets(other)) == []
    now_s = time.time() + 1
    for number, age_s in ((1, 9000.0), (2, 1000.0)):
        use(store, number, now_s - age_s)
    prune(store, limits=Limits(max_age_s=5000.0, grace_s=0.0), now_ns=round(now_s * 1e9))
    assert held(store) == {2}
    assert len(store.names(MANIFESTS)) == 1


def test_beyond_the_limit_the_set_whose_artifact_was_used_longest_ago_goes(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for number in range(MAX_SETS):
        put(store, number)
        use(store, number, 1000.0 + number)
    use(store, 0, 9000.0)  # by a build that found it
    for number in range(MAX_SETS, MAX_SETS + 3):
        put(store, number)
    assert held(store) == {0, *range(4, MAX_SETS + 3)}
    assert len(store.names(MANIFESTS)) == MAX_SETS


def test_processes_that_store_sets_at_the_same_time_lose_none(tmp_path: Path) -> None:
    program = (
        "import sys; from pallasc.cache.store import Store\n"
        "from pallasc.cache.manifests import Manifest\n"
        "store, key = Store(sys.argv[1]), sys.argv[2]\n"
        "for read in sys.argv[3:]: store.put_set(key, Manifest(read=read, name='1'))\n"
    )
    reads = [read_of(number) for number in range(MAX_SETS)]
    command = [sys.executable, "-c", program, str(tmp_path / "store"), REQUEST]
    processes = [subprocess.Popen([*command, *part]) for part in (reads[::2], reads[1::2])]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    found = {manifest.read for _, manifest in Store(tmp_path / "store").sets(REQUEST)}
    assert found == {*reads}


NAME, KEY = "ab" * 32, "cd" * 32
GOOD: dict[str, Any] = {
    "about": {"name": "add", "target": "h100-sxm", "params": {"m": 1}, "seconds": 1.5},
    "absent": ["helper"], "action": KEY, "env": {"env X": "unset"},
    "diagnostics": [{"stage": "lower", "kind": "k", "source": "s", "text": "t", "count": 1}],
    "fields": "{}",
    "files": {"file:k.py": NAME}, "hidden": None, "name": "add", "opened": {"is:x": None},
    "packages": {"numpy": NAME}, "printed": "", "read": NAME, "record": NAME, "request": "{}",
    "schema": 2, "signed": [{"key": "hmac-00", "signature": "AAAA"}], "specs": "[]",
    "missed": {"HOME": "k.py:3"}, "package_versions": {"numpy": "2.0"}, "versions": {"jax": "1"},
    "toolchains": [{"identity": {"python": "x"}, "versions": {}, "jax": "x"}],
    "variant": "add[m=1]", "warnings": [],
}  # fmt: skip
WRONG: list[tuple[str, Any]] = [
    ("about", 7), ("about", {"name": 1}), ("about", {"seconds": 1e300}), ("about", {"seconds": -1}),
    ("about", {"params": []}), ("about", {"seconds": float("nan")}),
    ("about", {"seconds": 10**400}), ("about", {"seconds": True}), ("about", {"name": "\ud800"}),
    ("absent", "helper"), ("absent", [1]), ("absent", ["\ud800"]), ("action", None), ("action", []),
    ("action", "../../etc/passwd"), ("action", "AB" * 32), ("action", {"a": 1}),
    ("env", {"x": None}), ("missed", ["x"]), ("package_versions", {"x": 1}), ("versions", "x"),
    ("toolchains", {}), ("toolchains", [7]), ("toolchains", [{"identity": {"x": 1}}]),
    ("diagnostics", [{}]), ("diagnostics", {}), ("warnings", ["x"]),
    ("diagnostics", GOOD["diagnostics"] * 51),
    ("diagnostics", [{**GOOD["diagnostics"][0], "text": "t" * 2002}]),
    ("fields", {}), ("files", []), ("files", {"k": 1}), ("files", {"k": ""}),
    ("hidden", "x"), ("name", None), ("name", ["add"]), ("opened", {"x": 1}), ("packages", ["x"]),
    ("printed", 1), ("record", None), ("request", []), ("schema", "2"),
    ("schema", True), ("signed", {}), ("signed", [1]), ("signed", [{"key": "x"}]),
    ("signed", [{"key": 1, "signature": 1}]),
    ("signed", [{"key": "x", "signature": "y"}] * 17),
    ("signed", [{"key": "x", "signature": "y" * 10**6}]), ("specs", []),
    ("variant", 7), ("unknown", 1), ("'", 1),
]  # fmt: skip


def test_a_manifest_with_every_field_is_one() -> None:
    manifest_from_json(NAME, GOOD)
    manifest_from_json(NAME, {})
    for field in GOOD:
        manifest_from_json(NAME, {label: value for label, value in GOOD.items() if label != field})


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_a_wrong_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(CorruptError, match=f"{field}|Unicode"):
        manifest_from_json(NAME, {**GOOD, field: value})


def forged(kind: str, name: str, text: str) -> bytes:
    """Return a record with a right header around any text."""
    header = f"pallasc-store 1 {kind} {name} {format.sha256(text.encode())}\n"
    return (header + text).encode()


BODIES = [
    "[]", "null", "{", "", '{"action": []}', '{"about": {"seconds": 1e999}}',
    '{"about": {"seconds": %s}}' % ("9" * 400), '{"a": ' * 2000 + "1" + "}" * 2000,
    '{"about": {"params": {"x": ' + "[" * 900 + "]" * 900 + "}}}", '{"unknown": 1}',
    '{"name": "\\ud800"}', '{"signed": [{}]}', '{"action": NaN}', "9" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_forged_manifest_is_a_miss_that_is_told_and_healed(store: Store, body: str) -> None:
    store.put_artifact(KEY, {"kernels": []}, {"cubin": b"x"})
    store.put_manifest(NAME, Manifest(action=KEY))
    place = store.path("man", NAME)
    place.write_bytes(forged("manifest", NAME, body))
    assert stats(store).entries == 1
    assert len(artifacts(store)) == 1
    found = store.get_manifest(NAME)
    if found is None:
        assert f"man/ab/{NAME} is corrupt and counts as missing" in store.warnings[0]
        assert not place.exists()
        assert store.put_manifest(NAME, Manifest(action=KEY)).stored
    assert verify(store).ok
    assert prune(store).records == 0


NAMES = {
    "digests": ("stat", format.sha256(b"pallasc file digests")),
    "index": ("index", format.sha256(b"pallasc index")),
    "uses": ("uses", NAME),
}


@pytest.mark.parametrize("where", NAMES)
def test_other_forged_records_stop_nobody(store: Store, where: str) -> None:
    store.put_artifact(KEY, {"kernels": []}, {"cubin": b"x"})
    for body in [*BODIES, '{"facts": {"": [1, 2]}}', '{"facts": {" ac ": 1}}']:
        stats(store)
        (store.folder / "stat" / where).write_bytes(forged(*NAMES[where], body))
        assert stats(store).entries == 1
        assert read_totals(store) == Totals()
        assert prune(store).records == 0
        assert verify(store, repair=True).ok
