"""A bundle and a lock file: the same artifacts, or a finding that says which differ."""

from __future__ import annotations

from made_bundles import make_items

from pallasc.specs.bundle.agreement import compare_with_lock
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.lock import Entry, Lock


def _lock(data: bytes) -> Lock:
    entries = open_bundle(data).entries()
    return Lock(variants={item.id: Entry("a" * 64, item.digest, "b" * 64) for item in entries})


def test_a_bundle_agrees_with_its_lock_whatever_was_left_out() -> None:
    items = make_items(3)
    lock = _lock(build_bundle(items, keep_debug=True, keep_ptx=True))
    assert compare_with_lock(open_bundle(build_bundle(items)).entries(), lock) == []


def test_other_artifacts_and_unknown_ones_are_errors_and_missing_ones_are_notes() -> None:
    data = build_bundle(make_items(3))
    lock = _lock(data)
    first, second, _ = sorted(lock.variants)
    variants = dict(lock.variants)
    variants["gone@b200"] = variants.pop(first)
    variants[second] = Entry("a" * 64, "c" * 64, "b" * 64)
    found = compare_with_lock(open_bundle(data).entries(), Lock(variants=variants))
    assert [(finding.severity, finding.subject) for finding in found] == [
        ("error", first),
        ("error", second),
        ("note", "gone@b200"),
    ]
    assert "has artifact cccccccccccc, the bundle " in found[1].message
