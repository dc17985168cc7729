"""Audits: each kind of finding, its severity, and nothing where there is nothing."""

from collections.abc import Iterable, Sequence

import pytest
from made_bundles import make_artifact, make_items

from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.signature import generate_key
from pallasc.specs.bundle.verify import Finding, Rules, Severity, audit, signed
from pallasc.specs.bundle.writer import build_bundle


def _audit(items: Iterable[Item], rules: Rules = Rules(), **options: bool) -> list[Finding]:  # noqa: B008
    return audit(open_bundle(build_bundle(items, **options)), rules)


def _of(found: Sequence[Finding], kind: str) -> list[tuple[str, str, str]]:
    return [
        (finding.severity, finding.subject, finding.message)
        for finding in found
        if finding.kind == kind
    ]


def test_nothing_is_found_where_there_is_nothing() -> None:
    data = signed(build_bundle(make_items(2)), generate_key())
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
        ("warning", "extra", "1 of its 1 matrix points have no variant for b200"),
        ("warning", "extra", "1 of its 1 matrix points have no variant for sm_90a"),
    ]
    some = [item for item in items if item.name != "extra"][1:]
    assert _of(_audit(some, Rules(targets=("h100-sxm", "sm_100a"))), "target") == [
        ("warning", "norm", "1 of its 3 matrix points have no variant for h100-sxm")
    ]


def test_spills_are_found_and_noted_where_they_are_not_known() -> None:
    artifact = make_artifact(1, spills=24)
    items = [Item("k", {}, artifact)]
    text = "k spills 24 bytes, and the limit is 0"
    assert _of(_audit(items), "spill") == [("warning", "k@h100-sxm", text)]
    assert _of(_audit(items, Rules(spill_bytes=24)), "spill") == []
    record = {**artifact.record}
    record["kernels"] = [{**record["kernels"][0], "spill_load_bytes": None}]
    unknown = [Item("k", {}, Artifact(record, artifact.blob))]
    text = "k has a stack of 24 bytes, which may include spills"
    assert _of(_audit(unknown), "spill") == [("note", "k@h100-sxm", text)]


def test_sizes_beyond_their_budget_are_found() -> None:
    data = build_bundle(make_items(1))
    bundle = open_bundle(data)
    (entry,) = bundle.entries()
    cubin, whole = bundle.artifact(entry).cubin_bytes, len(data)
    found = audit(bundle, Rules(bundle_bytes=whole - 1, variant_bytes=cubin - 1))
    assert _of(found, "size") == [
        ("error", entry.id, f"its cubins have {cubin} bytes, and the limit is {cubin - 1}"),
        ("error", "the bundle", f"it has {whole} bytes, and the limit is {whole - 1}"),
    ]
    assert _of(audit(bundle, Rules(bundle_bytes=whole, variant_bytes=cubin)), "size") == []


@pytest.mark.parametrize(
    ("newest", "severity"), [(None, "note"), ("13.0", "note"), ("12.9", "error")]
)
def test_the_driver_of_each_architecture_is_told(newest: str | None, severity: Severity) -> None:
    found = _of(_audit(make_items(1, targets=("b200", "h100-sxm")), Rules(driver=newest)), "driver")
    assert [row[:2] for row in found] == [(severity, "sm_100a"), (severity, "sm_90a")]
    assert "driver 580.65.06 or newer (CUDA 13.0)" in found[0][2]


def test_debug_data_left_in_is_found_once_for_each_blob() -> None:
    artifact = make_artifact(1)
    items = [Item("k", {}, artifact), Item("l", {}, artifact)]
    found = _of(_audit(items, keep_debug=True, keep_ptx=True), "debug")
    assert [row[:2] for row in found] == [("warning", "k@h100-sxm")] * 2
    assert sorted("PTX" in row[2] for row in found) == [False, True]
    ((severity, _, message),) = _of(_audit([Item("k", {}, artifact, lines=b"{}")]), "debug")
    assert (severity, message) == ("warning", "2 bytes of source lines are in it")


def test_the_worst_comes_first_and_severities_have_an_order() -> None:
    found = _audit([Item("k", {}, make_artifact(1, sm=80, spills=8))])
    assert [(finding.severity, finding.kind) for finding in found] == [
        ("error", "architecture"), ("warning", "signature"), ("warning", "spill"),
        ("note", "driver"),
    ]  # fmt: skip
    assert found[0].message == "it is for sm_90a, but its cubin is for sm_80"
    assert found[1].message == "it is not signed"
    assert [finding.at_least("warning") for finding in found] == [True, True, True, False]
