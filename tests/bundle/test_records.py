"""Records of artifacts: checked, and rewritten to name what ships."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_bundles import make_artifact

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.blobs import Kind
from pallasc.specs.bundle.manifest import Array
from pallasc.specs.bundle.records import (
    kinds_of,
    minimum_driver,
    parse_record,
    shipped_record,
    signature,
)
from pallasc.specs.canonical import canonical_json, digest

ARTIFACT = make_artifact(1, constant=b"numbers")
RECORD: dict[str, Any] = dict(ARTIFACT.record)
CUBIN, PTX = RECORD["kernels"][0]["cubin"], RECORD["kernels"][0]["ptx"]
CONSTANT = digest(b"numbers")


def test_a_record_comes_back() -> None:
    assert parse_record(canonical_json(RECORD)) == RECORD


def test_blobs_are_known_by_their_use() -> None:
    kinds = kinds_of(RECORD)
    assert kinds == {CUBIN: Kind.CUBIN, PTX: Kind.PTX, CONSTANT: Kind.CONSTANT}
    assert list(kinds) == sorted(kinds)


def test_driver_and_signature_are_read() -> None:
    assert minimum_driver(RECORD) == {"cuda": "13.0", "linux": "580.65.06"}
    assert minimum_driver({}) == {}
    assert signature(RECORD["plan"], "inputs") == (Array("x", "bf16", (16, 32)),)


def test_what_ships_is_named_by_its_own_digests() -> None:
    blobs = {**ARTIFACT.blobs(), digest(b"stripped"): b"stripped"}
    shipped = shipped_record(
        RECORD, {CUBIN: (digest(b"stripped"), 8), PTX: None, CONSTANT: (CONSTANT, 7)}
    )
    artifact = Artifact(shipped, blobs.__getitem__)
    assert artifact.cubin() == b"stripped"
    assert artifact.ptx() == ""
    assert artifact.plan.launches[0].cubin == digest(b"stripped")
    assert artifact.blobs() == {digest(b"stripped"): b"stripped", CONSTANT: b"numbers"}
    assert dict(ARTIFACT.record) == RECORD


def test_a_record_whose_blobs_all_ship_stays_as_it_is() -> None:
    whole = {key: (key, size) for key, size in RECORD["blobs"].items()}
    assert canonical_json(shipped_record(RECORD, whole)) == canonical_json(RECORD)


@pytest.mark.parametrize("left_out", [CUBIN, CONSTANT])
def test_what_a_launch_needs_must_ship(left_out: str) -> None:
    shipped = {key: (key, size) for key, size in RECORD["blobs"].items()}
    with pytest.raises(CorruptError, match="was left out"):
        shipped_record(RECORD, {**shipped, left_out: None})


CHANGES: list[tuple[tuple[str | int, ...], Any]] = [
    (("schema",), 2), (("schema",), None), (("target",), []), (("target", "name"), 5),
    (("target", "sm_count"), "132"), (("target", "sm_count"), 0), (("toolchain",), []),
    (("minimum_driver",), {"cuda": 13}), (("minimum_driver",), [1]), (("blobs",), []),
    (("blobs",), {}), (("blobs", CUBIN), -1), (("blobs", CUBIN), True), (("kernels",), 5),
    (("kernels", 0), {}), (("kernels", 0, "registers"), "40"), (("kernels", 0, "registers"), -1),
    (("kernels", 0, "registers"), True), (("kernels", 0, "ptx"), 5), (("kernels", 0, "cubin"), []),
    (("kernels", 0, "spill_load_bytes"), 1.5), (("plan",), None), (("plan", "inputs"), 5),
    (("plan", "inputs", 0, "shape"), [[]]), (("plan", "outputs", 0, "path"), None),
    (("plan", "steps"), 5), (("plan", "steps", 0), []), (("plan", "steps", 0, "cubin"), {}),
    (("plan", "buffers"), None), (("plan", "buffers", 0), 5), (("plan", "steps"), [{}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), CHANGES)
def test_a_record_with_another_field_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    record = json.loads(canonical_json(RECORD))
    holder = record
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(CorruptError, match=r"damaged|the artifact.s target has"):
        parse_record(canonical_json(record))


def test_a_record_without_a_field_is_refused() -> None:
    for key in RECORD.keys() - {"minimum_driver"}:
        record = {name: value for name, value in RECORD.items() if name != key}
        with pytest.raises(CorruptError, match="damaged"):
            parse_record(canonical_json(record))


def test_spills_may_be_unknown_and_ptx_missing() -> None:
    record = json.loads(canonical_json(RECORD))
    record["kernels"][0].update(spill_load_bytes=None, ptx=None)
    del record["blobs"][PTX]
    assert parse_record(canonical_json(record)) == record
