"""Compare variants with a lock, and make it anew; the kernels are XLA's, which compile fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache import format
from pallasc.cache.inventory import Scan
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.relock import LockUpdate, check_lock, update_lock
from pallasc.errors import NotCachedError
from pallasc.specs.loading.lock import Change, Component, Entry, Lock, settled_cost

FILE = Path("pallasc.lock")
FIRST, SECOND = "scaled[n=128]@h100-sxm", "scaled[n=256]@h100-sxm"
OTHER = Entry("a" * 64, "b" * 64, "c" * 64)


def write_spec(project: Any, *values: int, factor: object = 2.0) -> None:
    project.spec(
        {
            "name": "scaled",
            "entry": "kernel.py:scaled",
            "args": {"x": "f32[8, {n}]"},
            "static": {"factor": factor},
            "matrix": {"n": list(values)},
        }
    )


@pytest.fixture(scope="session")
def original(make_project: Callable[[], Any]) -> tuple[Any, Lock]:
    """Return a project of two variants that are in its store, and their lock."""
    project = make_project()
    project.write("kernel.py", "def scaled(x, *, factor): return x * factor\n")
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
    return original[0].copy(tmp_path)


@pytest.fixture
def lock(original: tuple[Any, Lock]) -> Lock:
    return original[1]


def update(project: Any, lock: Lock | None, *, whole: bool = True) -> LockUpdate:
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


def test_a_lock_names_each_variant_and_no_path(project: Any, lock: Lock) -> None:
    results = project.build().results
    assert {result.status for result in results} == {"hit"}
    assert {r.variant.id: (r.action_key, r.artifact.digest) for r in results} == {
        name: (entry.action, entry.artifact) for name, entry in lock.variants.items()
    }
    assert check(project, lock) == {}


def test_a_lock_that_is_current_stays_equal(project: Any, lock: Lock) -> None:
    updated = update(project, lock)
    assert (updated.lock, updated.changes, updated.toolchain) == (lock, (), ())
    assert {result.status for result in updated.report.results} == {"hit"}


def test_what_is_missing_on_either_side_is_a_change(project: Any, lock: Lock) -> None:
    partial = replace(lock, variants={FIRST: lock.variants[FIRST], "gone@b200": OTHER})
    assert check(project, partial) == {"gone@b200": ("dropped", ""), SECOND: ("added", "")}
    assert check(project, partial, whole=False) == {SECOND: ("added", "")}


def test_an_update_of_everything_drops_what_is_gone_and_one_of_a_part_keeps_it(
    project: Any, lock: Lock
) -> None:
    more = replace(lock, variants={**lock.variants, "gone@b200": OTHER})
    assert update(project, more, whole=True).lock == lock
    kept = update(project, more, whole=False)
    assert (kept.lock, kept.changes) == (more, ())


def test_an_entry_that_is_no_longer_true_is_changed(project: Any, lock: Lock) -> None:
    entry = lock.variants[FIRST]
    wrong = replace(lock, variants={**lock.variants, FIRST: entry._replace(artifact="0" * 64)})
    kind, reason = check(project, wrong)[FIRST]
    assert (kind, reason.partition(":")[0]) == ("changed", "not the locked artifact")
    (change,) = update(project, wrong).changes
    assert (change.kind, change.after) == ("changed", entry)
    assert change.reason == "the same action key gave another artifact"


def test_an_action_key_that_was_edited_is_no_changed_source(project: Any, lock: Lock) -> None:
    edited = lock.variants[FIRST]._replace(action="0" * 64)
    wrong = replace(lock, variants={**lock.variants, FIRST: edited})
    why = "its action key differs from the lock's"
    assert check(project, wrong) == {FIRST: ("changed", f"not as locked: {why}")}
    updated = update(project, wrong)
    assert updated.lock == lock
    assert [change.reason for change in updated.changes] == [why]


@pytest.mark.parametrize("limit", [{"timeout_s": 0.1}, {"memory_bytes": 1 << 20}])
def test_an_update_holds_its_workers_to_their_limits(
    project: Any, lock: Lock, limit: dict[str, Any]
) -> None:
    project.write(
        "kernel.py",
        "import time\ndef scaled(x, *, factor):\n    time.sleep(60)\n    return x * factor\n",
    )
    updated = update_lock(
        project.variants(),
        lock,
        file=FILE,
        whole=True,
        store=project.store,
        options=Options(jobs=1, **limit),
    )
    assert (updated.complete, updated.lock) == (False, lock)
    assert {result.status for result in updated.report.results} == {"failed"}


def test_a_spec_that_gives_the_same_in_another_way_changes_the_entry(
    project: Any, lock: Lock
) -> None:
    write_spec(project, 128, factor=2)
    project.build()
    partial = replace(lock, variants={FIRST: lock.variants[FIRST]})
    kind, reason = check(project, partial)[FIRST]
    (change,) = update(project, partial).changes
    assert change.before is not None
    assert change.after is not None
    assert (kind, change.kind) == ("changed", "changed")
    assert change.reason == reason == "its spec has changed, with the same result"
    assert change.before.action == change.after.action


def test_only_a_compilation_can_tell_what_a_changed_source_gives(project: Any, lock: Lock) -> None:
    project.write("kernel.py", "def scaled(x, *, factor): return x + factor\n")
    why = "would have to be compiled: kernel.py has changed"
    assert check(project, lock) == {FIRST: ("unknown", why), SECOND: ("unknown", why)}
    updated = update(project, lock)
    assert {change.reason for change in updated.changes} == {"kernel.py has changed"}
    assert check(project, updated.lock) == {}


def test_a_check_tells_what_was_taken_at_the_locks_word(project: Any, lock: Lock) -> None:
    for name, _ in list(Scan(project.store.folders).area(format.MANIFESTS)):
        project.store.path(format.MANIFESTS, name).unlink()
    found = check_lock(project.variants(), FILE, lock, whole=True, store=project.store)
    assert found.changes == ()
    assert "does not know the sources of 2 of the variants" in found.notes[0]


def test_a_variant_that_fails_leaves_the_lock_as_it_is(project: Any, lock: Lock) -> None:
    project.write("kernel.py", "def scaled(x, *, factor): raise ValueError(x.shape)\n")
    updated = update(project, lock)
    assert not updated.complete
    assert (updated.lock, updated.changes) == (lock, ())
    assert updated.report.exit_code == 1


def test_a_variant_over_its_budget_leaves_the_lock_as_it_is(project: Any, lock: Lock) -> None:
    text = (project.folder / "spec.yaml").read_text()
    project.write("spec.yaml", text.replace('"name"', '"budget": {"registers": 1}, "name"'))
    updated = update(project, lock)
    assert not updated.complete
    assert (updated.lock, updated.report.exit_code) == (lock, 5)


def test_entries_of_another_toolchain_cannot_stay(project: Any, lock: Lock) -> None:
    older = {**lock.toolchain, "jaxlib": Component("0" * 64, "0.9.9")}
    more = Lock(older, {**lock.variants, "gone@b200": OTHER})
    with pytest.raises(NotCachedError, match=r"jaxlib: 0\.9\.9 before,"):
        update(project, more, whole=False)
    with pytest.raises(NotCachedError, match=r"jaxlib: 0\.9\.9 before,"):
        check(project, more)
    whole = update(project, more, whole=True)
    assert whole.lock == lock
    assert len(whole.toolchain) == 1
    assert update(project, replace(lock, toolchain=older), whole=False).lock == lock


def test_an_update_records_what_compiling_took_and_leaves_it_alone_from_then_on(
    project: Any, lock: Lock
) -> None:
    assert lock.costs.keys() == {FIRST, SECOND}
    assert all(cost_s > 0 for cost_s in lock.costs.values())
    written = {result.variant.id: result.saved_s for result in project.build().results}
    assert lock.costs == {name: settled_cost(None, taken_s) for name, taken_s in written.items()}
    other = replace(lock, costs={FIRST: lock.costs[FIRST] * 1.9, SECOND: 1000.0})
    updated = update(project, other)
    assert updated.changes == ()
    assert updated.lock.costs == {FIRST: other.costs[FIRST], SECOND: lock.costs[SECOND]}
