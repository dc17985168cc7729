"""Locks: which one holds a build, what is found and what is refused, and how it is made anew."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import format
from pallasc.cache.inventory import Scan
from pallasc.cache.store import Store
from pallasc.compiler.builds.locked import Locked, load_locked
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.relock import LockReport, check_lock, update_lock
from pallasc.compiler.toolchain import identity
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.loading.lock import Change, Component, Entry, Lock, write_lock

FILE = Path("pallasc.lock")
FIRST, SECOND = "scaled[n=128]@h100-sxm", "scaled[n=256]@h100-sxm"
OTHER = Entry("a" * 64, "b" * 64, "c" * 64)
KERNEL = """\
from helper import twice


def scaled(x, *, factor):
    return twice(x) * factor
"""
HELPER = "def twice(x): return x + x\n"
OTHER_HELPER = "def twice(x): return 3 * x\n"
UPDATE = "pallasc lock SPECS --update"


def write_spec(project: Any, *values: int, factor: object = 2.0, **more: Any) -> None:
    project.spec(
        {
            "name": "scaled",
            "entry": "kernel.py:scaled",
            "args": {"x": "f32[8, {n}]"},
            "static": {"factor": factor},
            "matrix": {"n": list(values)},
            **more,
        }
    )


def update(project: Any, lock: Lock | None, *, whole: bool = True) -> LockReport:
    return update_lock(
        project.variants(),
        lock,
        file=FILE,
        whole=whole,
        store=project.store,
        options=Options(jobs=1),
    )


def check(project: Any, lock: Lock, *, whole: bool = True) -> dict[str, tuple[str, str]]:
    found = check_lock(project.variants(), FILE, lock, whole=whole, store=project.store)
    assert list(found.changes) == sorted(found.changes, key=lambda change: change.variant)
    return {change.variant: (change.kind, change.reason) for change in found.changes}


@pytest.fixture(scope="module")
def original(make_project: Callable[[], Any]) -> tuple[Any, Lock]:
    """Return a project of two variants that are in its store, and their lock."""
    project = make_project()
    project.write("kernel.py", KERNEL)
    project.write("helper.py", HELPER)
    write_spec(project, 128, 256)
    updated = update(project, None)
    assert updated.complete
    assert [result.status for result in updated.report.results] == ["compiled"] * 2
    assert updated.changes == tuple(
        Change("added", name, None, updated.lock.variants[name]) for name in (FIRST, SECOND)
    )
    return project, updated.lock


@pytest.fixture
def project(original: tuple[Any, Lock], tmp_path: Path) -> Any:
    """Return a copy of the project and of its store."""
    return original[0].copy(tmp_path)


@pytest.fixture
def lock(original: tuple[Any, Lock]) -> Lock:
    return original[1]


def refusal(project: Any, lock: Lock, **options: Any) -> str:
    """Return the error of the first variant, which a lock does not accept."""
    result = project.build(locked=Locked("pallasc.lock", lock), **options).results[0]
    assert (result.status, result.error.exit_code) == ("failed", 3)
    return str(result.error)


def changed(lock: Lock, **values: str) -> Lock:
    """Return a lock with another entry of the first variant."""
    entry = lock.variants[FIRST]._replace(**values)
    return replace(lock, variants={**lock.variants, FIRST: entry})


def remove(store: Store, area: str) -> int:
    """Remove every record or blob of an area; returns how many there were."""
    names = [name for name, _ in Scan(store.folders).area(area)]
    for name in names:
        store.path(area, name).unlink()
    return len(names)


# ---- which lock holds a build


@pytest.mark.parametrize(("frozen", "locked"), [(True, False), (False, True), (True, True)])
def test_a_lock_is_taken_from_the_current_folder_or_where_it_is_said_to_be(
    frozen: bool, locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"frozen": frozen, "locked": locked}
    there = Path("other.lock")
    with pytest.raises(NotCachedError) as caught:
        load_locked(there, **options)
    assert caught.value.exit_code == 3
    assert str(caught.value) == (
        f"there is no other.lock.\n  Make it with: {UPDATE} --lock other.lock"
    )
    if locked:
        with pytest.raises(NotCachedError) as caught:
            load_locked(None, **options)
        assert str(caught.value) == f"there is no pallasc.lock here.\n  Make it with: {UPDATE}"
    else:
        assert load_locked(None, **options) == Locked("pallasc.lock", None)
    locks = {name: Lock(variants={name: OTHER}) for name in ("pallasc.lock", "other.lock")}
    for name, lock in locks.items():
        write_lock(Path(name), lock)
    assert load_locked(None, **options) == Locked("pallasc.lock", locks["pallasc.lock"])
    assert load_locked(there, **options) == Locked("other.lock", locks["other.lock"])


def test_without_an_option_nothing_holds_a_build(tmp_path: Path) -> None:
    assert load_locked(None, frozen=False, locked=False) is None
    with pytest.raises(SpecError, match="--lock needs --frozen or --locked"):
        load_locked(tmp_path / "x.lock", frozen=False, locked=False)


def test_frozen_without_a_lock_looks_into_the_store_alone_and_says_so(project: Any) -> None:
    report = project.build(frozen=True, locked=Locked("pallasc.lock", None))
    assert [result.status for result in report.results] == ["hit", "hit"]
    note = "pallasc.lock does not exist: variants were looked up without a lock file"
    assert note in report.notes


# ---- the toolchain


def test_a_lock_of_another_toolchain_is_refused_with_what_differs(
    project: Any, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jaxlib, ptxas = lock.toolchain["jaxlib"], lock.toolchain["ptxas"]
    others = {"jaxlib": Component("0" * 64, "0.9.9"), "ptxas": ptxas._replace(digest="1" * 64)}
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text")
    old = replace(lock, toolchain={**lock.toolchain, **others})
    with pytest.raises(NotCachedError) as caught:
        project.build(locked=Locked("ci.lock", old))
    assert str(caught.value) == (
        "ci.lock is for another toolchain: "
        f"jaxlib: 0.9.9 before, {jaxlib.version} here; "
        f"ptxas: other content of the same version, {ptxas.version}; "
        "variable XLA_FLAGS: only here.\n"
        f"  Install what it was made with, or run: {UPDATE} --lock ci.lock"
    )


def test_other_packages_for_tracing_are_refused_only_where_nothing_can_be_lowered(
    project: Any, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**lock.toolchain, "tracing packages": Component("0" * 64, "numpy 2.4.5")}
    with pytest.raises(NotCachedError, match=r"numpy 2\.4\.5"):
        project.build(locked=Locked("x", replace(lock, toolchain=other)), frozen=True)
    # Another digest under the same label.
    monkeypatch.setitem(identity._PACKAGES, identity.TRACED_WITH, {"numpy": "numpy"})
    report = project.build(locked=Locked("pallasc.lock", lock))
    assert [(r.status, r.error) for r in report.results] == [("lowered", None)] * 2


def test_entries_of_another_toolchain_cannot_stay(project: Any, lock: Lock) -> None:
    older = {**lock.toolchain, "jaxlib": Component("0" * 64, "0.9.9")}
    more = Lock(older, {**lock.variants, "gone@b200": OTHER})
    with pytest.raises(NotCachedError, match=r"jaxlib: 0\.9\.9 before,"):
        update(project, more, whole=False)
    with pytest.raises(NotCachedError, match=r"jaxlib: 0\.9\.9 before,"):
        check(project, more)
    whole = update(project, more, whole=True)
    assert (whole.lock, len(whole.toolchain)) == (lock, 1)
    assert update(project, replace(lock, toolchain=older), whole=False).lock == lock


# ---- what is found, and what is refused


def test_what_is_as_locked_is_found_and_what_the_lock_lacks_is_refused(
    project: Any, lock: Lock
) -> None:
    report = project.build(locked=Locked("pallasc.lock", lock), frozen=True)
    keys = [lock.variants[name].action for name in (FIRST, SECOND)]
    assert [(r.status, r.action_key) for r in report.results] == [("hit", key) for key in keys]
    assert report.notes == ()
    for frozen in (True, False):
        told = refusal(project, replace(lock, variants={}), frozen=frozen)
        assert f"{FIRST} is not in pallasc.lock.\n  Add it: {UPDATE}" in told


def test_a_source_that_changed_is_named_unless_it_gives_the_same(project: Any, lock: Lock) -> None:
    write_spec(project, 128)
    project.write("helper.py", OTHER_HELPER)
    assert (
        f"{FIRST} is not in the store: helper (helper.py) has changed.\n"
        "  --frozen compiles nothing: build without it, or restore the store that the lock was "
        "made with."
    ) in refusal(project, lock, frozen=True)
    assert (
        f"{FIRST} is not as locked: its sources have changed since it was locked "
        "(helper (helper.py) has changed).\n"
        f"  If that is intended: {UPDATE}"
    ) in refusal(project, lock)
    project.build()
    why = "its sources have changed since it was locked (helper (helper.py) has changed)"
    assert f"{FIRST} is not as locked: {why}.\n" in refusal(project, lock, frozen=True)
    assert check(project, lock)[FIRST] == ("changed", f"not as locked: {why}")
    project.write("helper.py", f"# a note\n{HELPER}")
    (same,) = project.build(locked=Locked("pallasc.lock", lock)).results
    assert (same.status, same.error) == ("lowered", None)


def test_a_spec_that_changed_is_refused_even_where_the_id_is_the_same(
    project: Any, lock: Lock
) -> None:
    write_spec(project, 128, factor=3.0)
    why = f"{FIRST} is not in the store: its spec, or a data file of it, has changed since"
    assert why in refusal(project, lock, frozen=True)
    remove(project.store, format.MANIFESTS)
    assert why in refusal(project, lock, frozen=True)
    assert f"{FIRST} is not as locked: its spec, or a data" in refusal(project, lock)


@pytest.mark.parametrize("area", [format.ARTIFACTS, format.BLOBS])
def test_a_store_that_lacks_a_record_or_a_blob_is_refused(
    project: Any, lock: Lock, area: str
) -> None:
    assert remove(project.store, area)
    why = "is not in the store: the store no longer has its record."
    assert why in refusal(project, lock, frozen=True)
    remove(project.store, format.MANIFESTS)
    why = "is not in the store: never compiled with this spec and toolchain."
    assert why in refusal(project, lock, frozen=True)


def test_a_record_other_than_the_locked_one_is_refused(project: Any, lock: Lock) -> None:
    entry, other = lock.variants[FIRST], changed(lock, artifact="0" * 64)
    assert check(project, other)[FIRST][1].startswith("not the locked artifact:")
    (change,) = update(project, other).changes
    assert (change.kind, change.after) == ("changed", entry)
    assert change.reason == "the same action key gave another artifact"
    assert (
        f"{FIRST} is not the locked artifact: action key {entry.action} gave {entry.artifact}, "
        f"and pallasc.lock has {'0' * 64}.\n"
        "  Compiling is not deterministic, or the store was modified. See what differs with: "
        "pallasc build SPECS --reproduce N"
    ) in refusal(project, other, frozen=True)
    remove(project.store, format.ARTIFACTS)
    assert f"{FIRST} is not the locked artifact: action key" in refusal(project, other)


def test_an_action_key_that_was_edited_is_not_taken_for_a_changed_source(
    project: Any, lock: Lock
) -> None:
    other, why = changed(lock, action="1" * 64), "its action key differs from the lock's"
    for frozen in (True, False):
        told = f"{FIRST} is not as locked: {why}.\n  If that is intended: {UPDATE}"
        assert told in refusal(project, other, frozen=frozen)
    assert check(project, other) == {FIRST: ("changed", f"not as locked: {why}")}
    updated = update(project, other)
    assert updated.lock == lock
    assert [change.reason for change in updated.changes] == [why]


# ---- a lock is compared, and made anew


def test_a_spec_that_gives_the_same_in_another_way_changes_the_entry(
    project: Any, lock: Lock
) -> None:
    write_spec(project, 128, factor=2)
    project.build()
    partial = replace(lock, variants={FIRST: lock.variants[FIRST]})
    (change,) = update(project, partial).changes
    why = "its spec has changed, with the same result"
    assert check(project, partial)[FIRST] == (change.kind, change.reason) == ("changed", why)
    assert change.before is not None
    assert change.after is not None
    assert change.before.action == change.after.action


def test_only_a_compilation_can_tell_what_a_changed_source_gives(project: Any, lock: Lock) -> None:
    project.write("kernel.py", "def scaled(x, *, factor): return x + factor\n")
    why = "kernel.py has changed"
    assert check(project, lock) == {FIRST: ("unknown", why), SECOND: ("unknown", why)}
    updated = update(project, lock)
    assert {change.reason for change in updated.changes} == {"kernel.py has changed"}
    assert check(project, updated.lock) == {}


def test_a_variant_that_fails_or_is_over_its_budget_leaves_the_lock_as_it_is(
    project: Any, lock: Lock
) -> None:
    write_spec(project, 128, 256, budget={"registers": 1})
    updated = update(project, lock)
    assert (updated.complete, updated.lock, updated.report.exit_code) == (False, lock, 5)
    project.write("kernel.py", "def scaled(x, *, factor): raise ValueError(x.shape)\n")
    updated = update(project, lock)
    assert (updated.complete, updated.lock, updated.changes) == (False, lock, ())
    assert updated.report.exit_code == 1
