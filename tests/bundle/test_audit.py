"""Audits: each kind of finding, its severity, and nothing where there is nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from made_bundles import make_artifact, make_items

from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.signature import generate_key
from pallasc.specs.bundle.verify import Finding, Rules, Severity, audit, compare_with_lock, signed
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.loading.lock import Entry, Lock

KEY = generate_key()


def _audit(items: Iterable[Item], rules: Rules = Rules(), **options: bool) -> list[Finding]:  # noqa: B008
    return audit(open_bundle(build_bundle(items, **options)), rules)


def _of(found: Sequence[Finding], kind: str) -> list[tuple[str, str, str]]:
    return [
        (finding.severity, finding.subject, finding.message)
        for finding in found
        if finding.kind == kind
    ]


def test_nothing_is_found_where_there_is_nothing() -> None:
    data = signed(build_bundle(make_items(2)), KEY)
    rules = Rules(("sm_90a",), 10**6, 10**6, 0, "13.0")
    assert [finding.kind for finding in audit(open_bundle(data), rules)] == ["driver"]


def test_targets_that_nobody_asked_for_and_missing_ones_are_found() -> None:
    items = make_items(3, names=("norm", "scale"), targets=("h100-sxm", "b200"))
    items = [item for item in items if (item.name, dict(item.params)["m"]) != ("scale", 48)]
    items += make_items(1, names=("extra",), targets=("a100-sxm",))
    found = _audit(items, Rules(targets=("sm_90a", "b200", "thor")))
    assert _of(found, "target") == [
        ("error", "thor", "the bundle has no variant for it"),
        ("warning", "a100-sxm", "1 variant for a target that was not requested"),
        ("warning", "extra", "1 of its 1 variants lack one for b200"),
        ("warning", "extra", "1 of its 1 variants lack one for sm_90a"),
    ]
    some = [item for item in items if item.name != "extra"][1:]
    assert _of(_audit(some, Rules(targets=("h100-sxm", "sm_100a"))), "target") == [
        ("warning", "norm", "1 of its 3 variants lack one for h100-sxm")
    ]
    assert _of(_audit(items), "target") == []


def test_spills_are_found() -> None:
    items = [Item("k", {}, make_artifact(1, spills=24))]
    assert _of(_audit(items), "spill") == [
        ("warning", "k@h100-sxm", "k spills 24 bytes, and the limit is 0")
    ]
    assert _of(_audit(items, Rules(spill_bytes=24)), "spill") == []


def test_spills_that_are_not_known_are_noted() -> None:
    artifact = make_artifact(1, spills=24)
    record = {**artifact.record}
    record["kernels"] = [{**record["kernels"][0], "spill_load_bytes": None}]
    from pallasc.specs.artifacts.artifact import Artifact

    items = [Item("k", {}, Artifact(record, artifact.blob))]
    text = "k has a stack of 24 bytes, which may include spills"
    assert _of(_audit(items), "spill") == [("note", "k@h100-sxm", text)]


def test_sizes_beyond_their_budget_are_found() -> None:
    data = build_bundle(make_items(1))
    bundle = open_bundle(data)
    (entry,) = bundle.entries()
    cubin = bundle.artifact(entry).cubin_bytes
    assert _of(
        audit(bundle, Rules(bundle_bytes=len(data) - 1, variant_bytes=cubin - 1)), "size"
    ) == [
        ("error", entry.id, f"its cubins have {cubin} bytes, and the limit is {cubin - 1}"),
        ("error", "the bundle", f"it has {len(data)} bytes, and the limit is {len(data) - 1}"),
    ]
    assert _of(audit(bundle, Rules(bundle_bytes=len(data), variant_bytes=cubin)), "size") == []


@pytest.mark.parametrize(
    ("newest", "severity"), [(None, "note"), ("13.0", "note"), ("12.9", "error")]
)
def test_the_driver_of_each_architecture_is_told(newest: str | None, severity: Severity) -> None:
    found = _of(_audit(make_items(1, targets=("b200", "h100-sxm")), Rules(driver=newest)), "driver")
    assert [(row[0], row[1]) for row in found] == [(severity, "sm_100a"), (severity, "sm_90a")]
    assert "driver 580.65.06 or newer (CUDA 13.0)" in found[0][2]


def test_signatures_are_asked_for() -> None:
    data = build_bundle(make_items(1))
    assert _of(audit(open_bundle(data), Rules()), "signature") == [
        ("warning", "the bundle", "it is not signed")
    ]
    assert _of(audit(open_bundle(signed(data, KEY)), Rules()), "signature") == []


def test_debug_data_left_in_is_found_once_for_each_blob() -> None:
    artifact = make_artifact(1)
    items = [Item("k", {}, artifact), Item("l", {}, artifact)]
    found = _of(_audit(items, keep_debug=True, keep_ptx=True), "debug")
    assert [row[:2] for row in found] == [("warning", "k@h100-sxm")] * 2
    assert sorted("PTX" in row[2] for row in found) == [False, True]
    assert _of(_audit(items), "debug") == []
    located = [Item("k", {}, artifact, lines=b"{}")]
    ((severity, _, message),) = _of(_audit(located), "debug")
    assert (severity, message) == ("warning", "2 bytes of source lines are in it")


def test_code_for_another_architecture_is_found() -> None:
    items = [Item("k", {}, make_artifact(1, sm=80))]
    assert _of(_audit(items), "architecture") == [
        ("error", "k@h100-sxm", "it is for sm_90a, but its cubin is for sm_80")
    ]


def test_the_worst_comes_first_and_severities_have_an_order() -> None:
    items = [Item("k", {}, make_artifact(1, sm=80, spills=8))]
    found = _audit(items)
    assert [finding.severity for finding in found] == ["error", "warning", "warning", "note"]
    assert [finding.at_least("warning") for finding in found] == [True, True, True, False]


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
