"""Records of artifacts in forged bundles: a field of another form is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_bundles import make_artifact
from taken_apart import Parts

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import kinds_of, minimum_driver, open_bundle
from pallasc.specs.bundle.format import Kind
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import canonical_json, digest

ARTIFACT = make_artifact(1, constant=b"numbers")
CUBIN, PTX, CONSTANT = ARTIFACT.kernels[0].cubin, ARTIFACT.kernels[0].ptx, digest(b"numbers")


def test_blobs_are_known_by_their_use() -> None:
    kinds = kinds_of(ARTIFACT)
    assert kinds == {CUBIN: Kind.CUBIN, PTX: Kind.PTX, CONSTANT: Kind.CONSTANT}
    assert list(kinds) == sorted(kinds)


def test_the_driver_is_read() -> None:
    assert minimum_driver(ARTIFACT.record) == {"cuda": "13.0", "linux": "580.65.06"}


def _forged(record: Any) -> Artifact:
    """Return the artifact of a bundle whose record is another, and all digests fit."""
    parts = Parts.of(build_bundle([Item("k", {}, ARTIFACT)], keep_debug=True, keep_ptx=True))
    (number,) = (n for n, row in enumerate(parts.rows) if row.kind is Kind.RECORD)
    parts.contents()
    parts.set_content(number, canonical_json(record))
    bundle = open_bundle(parts.data())
    return bundle.artifact(next(bundle.entries()))


def _copy() -> Any:
    return json.loads(canonical_json(ARTIFACT.record))


def test_a_record_that_stays_as_it_is_is_taken() -> None:
    assert _forged(_copy()).blobs() == ARTIFACT.blobs()


def test_unknown_spills_are_taken() -> None:
    record = _copy()
    record["kernels"][0]["spill_load_bytes"] = None
    assert _forged(record).kernels[0].spill_bytes is None


CHANGES: list[tuple[tuple[str | int, ...], Any]] = [
    (("schema",), 2), (("schema",), None), (("target",), []), (("target", "name"), 5),
    (("target", "sm_count"), "132"), (("target", "sm_count"), 0), (("toolchain",), []),
    (("minimum_driver",), {"cuda": 13}), (("minimum_driver",), [1]), (("blobs",), []),
    (("blobs",), {}), (("blobs", "0" * 64), 5), (("kernels",), 5),
    (("kernels", 0), {}), (("kernels", 0, "registers"), "40"), (("kernels", 0, "registers"), -1),
    (("kernels", 0, "registers"), True), (("kernels", 0, "ptx"), 5), (("kernels", 0, "cubin"), []),
    (("kernels", 0, "ptx"), None),
    (("kernels", 0, "spill_load_bytes"), 1.5), (("plan",), None), (("plan", "inputs"), 5),
    (("plan", "inputs", 0, "shape"), [[]]), (("plan", "outputs", 0, "path"), None),
    (("plan", "steps"), 5), (("plan", "steps", 0), []), (("plan", "steps", 0, "cubin"), {}),
    (("plan", "buffers"), None), (("plan", "buffers", 0), 5), (("plan", "steps"), [{}]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), CHANGES)
def test_a_record_with_another_field_is_refused(path: tuple[str | int, ...], value: Any) -> None:
    record = holder = _copy()
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(CorruptError, match=r"^the bundle is damaged: "):
        _forged(record)


def test_a_record_without_a_field_is_refused() -> None:
    for key in ARTIFACT.record:
        record = {name: value for name, value in _copy().items() if name != key}
        with pytest.raises(CorruptError, match=r"^the bundle is damaged: "):
            _forged(record)
