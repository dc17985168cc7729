"""A build that is held to a lock: what is found, what is refused, and the reason that is given."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pallasc.cache import format
from pallasc.cache.inventory import Scan
from pallasc.cache.store import Store
from pallasc.compiler.builds.locked import (
    Locked,
    LockedLookup,
    load_locked,
)
from pallasc.compiler.builds.relock import update_lock
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain import identity
from pallasc.compiler.toolchain.setup import prepare
from pallasc.errors import NotCachedError
from pallasc.specs.loading.lock import Component, Entry, Lock
from pallasc.specs.spec import Variant

KERNEL = """\
from helper import twice


def scaled(x, *, factor):
    return twice(x) * factor
"""
HELPER = "def twice(x): return x + x\n"


def write_spec(project: Any, factor: float = 2.0) -> None:
    project.spec(
        {
            "name": "scaled",
            "entry": "kernel.py:scaled",
            "args": {"x": "f32[8, {n}]"},
            "static": {"factor": factor},
            "matrix": {"n": [128]},
        }
    )


@pytest.fixture(scope="session")
def original(make_project: Callable[[], Any]) -> tuple[Any, Lock]:
    """Return a project whose one variant is in its store, and the lock of it."""
    project = make_project()
    project.write("kernel.py", KERNEL)
    project.write("helper.py", HELPER)
    write_spec(project)
    updated = update_lock(
        project.variants(), None, file=Path("pallasc.lock"), whole=True, store=project.store
    )
    assert [result.status for result in updated.report.results] == ["compiled"]
    return project, updated.lock


@pytest.fixture
def project(original: tuple[Any, Lock], tmp_path: Path) -> Any:
    """Return a copy of the project and of its store."""
    return original[0].copy(tmp_path)


@pytest.fixture
def lock(original: tuple[Any, Lock]) -> Lock:
    return original[1]


def held_to(lock: Lock, project: Any, *, frozen: bool = True) -> tuple[LockedLookup, Variant]:
    """Return a lookup that is held to a lock, and the project's variant."""
    plain, variants = Lookup(project.context(), project.store), project.variants()
    frozen_by = "--frozen" if frozen else ""
    lookup = LockedLookup("pallasc.lock", lock, plain, variants, frozen_by=frozen_by)
    (variant,) = variants
    return lookup, variant


def refusal(lookup: LockedLookup, variant: Variant) -> str:
    with pytest.raises(NotCachedError) as caught:
        lookup.find(variant, lookup.lookup.requests.of(variant))
    assert caught.value.exit_code == 3
    return str(caught.value)


def result_of(lookup: LockedLookup, variant: Variant) -> VariantResult:
    found = lookup.find(variant, lookup.lookup.requests.of(variant))
    return VariantResult(variant, "hit", 0.0, found.action_key, found.artifact)


def remove(store: Store, area: str) -> int:
    """Remove every record or blob of an area; returns how many there were."""
    names = [name for name, _ in Scan(store.folders).area(area)]
    for name in names:
        store.path(area, name).unlink()
    return len(names)


def test_frozen_without_a_lock_looks_into_the_store_alone_and_says_so(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_locked(None, frozen=True, locked=False) == Locked("pallasc.lock", None)
    report = project.build(frozen=True, locked=load_locked(None, frozen=True, locked=False))
    assert [result.status for result in report.results] == ["hit"]
    note = "there is no pallasc.lock here: variants were only looked up in the store"
    assert note in report.notes


def test_a_lock_of_this_toolchain_is_accepted_and_has_versions(project: Any, lock: Lock) -> None:
    with prepare() as setup:
        context = setup.context(project.store)
        assert context.components() == lock.toolchain
        lookup = Lookup(context, project.store)
        LockedLookup("pallasc.lock", lock, lookup, [], frozen_by="--frozen")
    versions = {label: component.version for label, component in lock.toolchain.items()}
    assert {"jax", "jaxlib", "ptxas", "plugin", "libdevice", "python", "pallasc"} <= set(versions)
    assert versions["jax"] == setup.toolchain.packages[0].version
    assert re.fullmatch(r"\d+(\.\d+)+", versions["ptxas"])
    assert re.fullmatch(r"\d+(\.\d+)+", versions["python"])
    assert len(lock.toolchain) == len(context.identity) + len(context.variables)


def test_every_package_that_is_computed_with_has_its_version(lock: Lock) -> None:
    for label, modules in (
        ("packages", identity._PACKAGES[identity.COMPUTED_WITH]),
        ("tracing packages", identity._PACKAGES[identity.TRACED_WITH]),
    ):
        listed = [text.split()[0] for text in lock.toolchain[label].version.split(", ")]
        assert listed == sorted(name.replace("google.", "") for name in modules)


def test_a_lock_of_another_toolchain_is_refused_with_what_differs(
    project: Any, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        **lock.toolchain,
        "jaxlib": Component("0" * 64, "0.9.9"),
        "ptxas": lock.toolchain["ptxas"]._replace(digest="1" * 64),
    }
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text")
    old = replace(lock, toolchain=others)
    with prepare() as setup:
        lookup = Lookup(setup.context(project.store), project.store)
        with pytest.raises(NotCachedError) as caught:
            LockedLookup("ci.lock", old, lookup, [])
    jaxlib, ptxas = lock.toolchain["jaxlib"].version, lock.toolchain["ptxas"].version
    assert str(caught.value) == (
        "ci.lock is for another toolchain: "
        f"jaxlib: 0.9.9 before, {jaxlib} here; "
        f"ptxas: other content of the same version, {ptxas}; "
        "variable XLA_FLAGS: only here.\n"
        "  Install what it was made with, or run: pallasc lock SPECS --update --lock ci.lock"
    )


def test_other_packages_for_tracing_are_refused_only_where_nothing_can_be_lowered(
    project: Any, lock: Lock
) -> None:
    other = {**lock.toolchain, "tracing packages": Component("0" * 64, "numpy 2.4.5")}
    with prepare() as setup:
        lookup = Lookup(setup.context(project.store), project.store)
        old = Lock(other, lock.variants)
        LockedLookup("x", old, lookup, [])
        with pytest.raises(NotCachedError, match=r"numpy 2\.4\.5"):
            LockedLookup("x", old, lookup, [], frozen_by="--frozen")


def test_after_an_upgrade_of_packages_for_tracing_a_locked_build_lowers_and_finds(
    project: Any, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another digest under the same label.
    monkeypatch.setitem(identity._PACKAGES, identity.TRACED_WITH, {"numpy": "numpy"})
    report = project.build(locked=Locked("pallasc.lock", lock))
    assert [(r.status, r.error) for r in report.results] == [("lowered", None)]
    assert report.exit_code == 0


def test_what_is_as_locked_is_found(project: Any, lock: Lock) -> None:
    lookup, variant = held_to(lock, project)
    result = result_of(lookup, variant)
    assert lookup.check(result) is None
    assert result.action_key == lock.variants[variant.id].action
    assert lookup.notes() == []


def test_a_variant_that_the_lock_lacks_is_refused(project: Any, lock: Lock) -> None:
    for frozen in (True, False):
        lookup, variant = held_to(replace(lock, variants={}), project, frozen=frozen)
        assert refusal(lookup, variant) == (
            "scaled[n=128]@h100-sxm is not in pallasc.lock.\n  Add it: pallasc lock SPECS --update"
        )


@pytest.mark.parametrize("text", ["def twice(x): return 3 * x\n", f"# a note\n{HELPER}"])
def test_a_source_that_changed_is_named_and_not_compiled(
    project: Any, lock: Lock, text: str
) -> None:
    project.write("helper.py", text)
    lookup, variant = held_to(lock, project)
    assert refusal(lookup, variant) == (
        "scaled[n=128]@h100-sxm would have to be compiled: helper (helper.py) has changed.\n"
        "  Build without --frozen."
    )


def test_a_spec_that_changed_is_refused_even_where_the_id_is_the_same(
    project: Any, lock: Lock
) -> None:
    write_spec(project, factor=3.0)
    lookup, variant = held_to(lock, project)
    assert variant.id in lock.variants
    assert refusal(lookup, variant).startswith(
        "scaled[n=128]@h100-sxm would have to be compiled: its spec, or a data file of it, has "
        "changed since it was locked."
    )


def test_a_store_without_manifests_gives_what_the_lock_names_and_says_so(
    project: Any, lock: Lock
) -> None:
    assert remove(project.store, format.MANIFESTS) == 2  # the kernel's, and one of toolchains
    project.write("helper.py", "def twice(x): return 3 * x\n")
    lookup, variant = held_to(lock, project)
    result = result_of(lookup, variant)
    assert lookup.check(result) is None
    assert result.action_key == lock.variants[variant.id].action
    assert lookup.notes() == [
        "this store does not know the sources of 1 of the variants: the entries of "
        "pallasc.lock were used, and sources may have changed since"
    ]


def test_without_manifests_a_spec_that_changed_is_still_refused(project: Any, lock: Lock) -> None:
    remove(project.store, format.MANIFESTS)
    write_spec(project, factor=3.0)
    assert "would have to be compiled: its spec" in refusal(*held_to(lock, project))


@pytest.mark.parametrize("manifests", [True, False])
@pytest.mark.parametrize("area", [format.ARTIFACTS, format.BLOBS])
def test_a_store_that_lacks_a_record_or_a_blob_is_refused(
    project: Any, lock: Lock, area: str, manifests: bool
) -> None:
    assert remove(project.store, area)
    if not manifests:
        remove(project.store, format.MANIFESTS)
    text = refusal(*held_to(lock, project))
    if manifests:
        assert "would have to be compiled: the store no longer has its record." in text
    else:
        action = lock.variants["scaled[n=128]@h100-sxm"].action
        assert f"has no complete record under action key {action}." in text


def test_a_record_other_than_the_locked_one_is_refused(project: Any, lock: Lock) -> None:
    name, entry = next(iter(lock.variants.items()))
    other = replace(lock, variants={name: entry._replace(artifact="0" * 64)})
    for manifests in (True, False):
        lookup, variant = held_to(other, project)
        error = lookup.check(result_of(lookup, variant))
        assert error is not None
        assert (error.exit_code, str(error)) == (
            3,
            f"{name} is not the locked artifact: the store has {entry.artifact} under action key "
            f"{entry.action}, and pallasc.lock has {'0' * 64}.\n"
            "  The store was modified, or compiling is not deterministic. Empty the store "
            "with pallasc cache prune --all, or name another with --store or PALLASC_CACHE_DIR, "
            "and build again.",
        )
        compiled = structs.replace(result_of(lookup, variant), status="compiled")
        assert f"{name} is not deterministic: action key" in str(lookup.check(compiled))
        if manifests:
            remove(project.store, format.MANIFESTS)


def test_an_action_key_that_was_edited_is_not_taken_for_a_changed_source(
    project: Any, lock: Lock
) -> None:
    name, entry = next(iter(lock.variants.items()))
    other = replace(lock, variants={name: entry._replace(action="1" * 64)})
    for frozen in (True, False):
        lookup, variant = held_to(other, project, frozen=frozen)
        assert str(lookup.check(result_of(lookup, variant))) == (
            f"{name} is not as locked: its action key differs from the lock's.\n"
            "  If that is intended: pallasc lock SPECS --update"
        )


def test_what_a_fresh_store_compiled_to_something_else_has_changed_sources(
    project: Any, lock: Lock
) -> None:
    name, entry = next(iter(lock.variants.items()))
    old = replace(lock, variants={name: Entry("1" * 64, "0" * 64, entry.request)})
    lookup, variant = held_to(old, project, frozen=False)
    compiled = structs.replace(result_of(lookup, variant), status="compiled")
    assert "its sources have changed since it was locked." in str(lookup.check(compiled))


def test_what_is_missing_may_be_compiled_unless_the_build_is_frozen(
    project: Any, lock: Lock
) -> None:
    project.write("helper.py", "def twice(x): return 3 * x\n")
    lookup, variant = held_to(lock, project, frozen=False)
    found = lookup.find(variant, lookup.lookup.requests.of(variant))
    assert (found.artifact, found.reason) == (None, "helper (helper.py) has changed")


def test_a_failure_is_no_difference(project: Any, lock: Lock) -> None:
    lookup, variant = held_to(lock, project, frozen=False)
    assert lookup.check(VariantResult(variant, "failed")) is None


def test_a_source_that_gives_the_same_is_as_locked_and_another_one_is_named(
    project: Any, lock: Lock
) -> None:
    remove(project.store, format.MANIFESTS)  # of the folder that this one is a copy of
    project.write("helper.py", f"# a note\n{HELPER}")
    lookup, variant = held_to(lock, project, frozen=False)
    lookup.find(variant, lookup.lookup.requests.of(variant))
    (same,) = project.build().results
    assert (same.status, lookup.check(same)) == ("lowered", None)

    project.write("helper.py", "def twice(x): return 3 * x\n")
    lookup, variant = held_to(lock, project, frozen=False)
    lookup.find(variant, lookup.lookup.requests.of(variant))
    (compiled,) = project.build().results
    error = lookup.check(compiled)
    assert str(error) == (
        "scaled[n=128]@h100-sxm is not as locked: its sources have changed since it was locked "
        "(helper (helper.py) has changed).\n"
        "  If that is intended: pallasc lock SPECS --update"
    )

    later, variant = held_to(lock, project, frozen=False)
    assert "its sources have changed since it was locked.\n" in str(
        later.check(result_of(later, variant))
    )


def test_a_spec_that_gives_something_else_is_a_reason(project: Any, lock: Lock) -> None:
    write_spec(project, factor=3.0)
    (compiled,) = project.build().results
    lookup, _ = held_to(lock, project, frozen=False)
    error = str(lookup.check(compiled))
    assert "scaled[n=128]@h100-sxm is not as locked: its spec, or a data file of it," in error
