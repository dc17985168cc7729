"""Items: what ships of an artifact, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_bundles import make_artifact

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.blobs import Kind
from pallasc.specs.bundle.items import item_of, pack_item
from pallasc.specs.bundle.strip import debug_bytes
from pallasc.specs.canonical import canonical_json, digest

ARTIFACT = make_artifact(1, constant=b"numbers")
ITEM = item_of("scale", {"m": 16, "dtype": "bf16"}, ARTIFACT)


def test_debug_sections_and_ptx_are_left_out() -> None:
    packed = pack_item(ITEM, keep_debug=False, keep_ptx=False)
    kinds = {blob.kind: blob.data for blob in packed.blobs.values()}
    assert set(kinds) == {Kind.RECORD, Kind.CUBIN, Kind.CONSTANT}
    assert debug_bytes(ARTIFACT.cubin()) > 0 == debug_bytes(kinds[Kind.CUBIN])
    assert kinds[Kind.RECORD] == canonical_json(ARTIFACT.record)
    assert packed.entry.digest == ARTIFACT.digest
    assert all(digest(blob.data) == key for key, blob in packed.blobs.items())


def test_all_of_it_ships_where_it_is_asked_for() -> None:
    packed = pack_item(ITEM, keep_debug=True, keep_ptx=True)
    assert {key: packed.blobs[key].data for key in ARTIFACT.record["blobs"]} == ARTIFACT.blobs()
    assert packed.shipped == tuple(sorted(ARTIFACT.record["blobs"]))


def test_the_entry_says_what_the_record_says() -> None:
    entry = pack_item(ITEM, keep_debug=False, keep_ptx=False).entry
    assert (entry.id, entry.arch) == ("scale[m=16,dtype=bf16]@h100-sxm", "sm_90a")
    assert [str(array) for array in entry.inputs] == ["x: bf16[16, 32]"]
    assert entry.minimum_driver == {"cuda": "13.0", "linux": "580.65.06"}


def test_an_earlier_bundle_may_have_left_out_ptx_but_nothing_else() -> None:
    ptx = ARTIFACT.kernels[0].ptx
    without = replace(ITEM, read=lambda key: None if key == ptx else ARTIFACT.blob(key))
    packed = pack_item(without, keep_debug=True, keep_ptx=True)
    assert packed.shipped.count(None) == 1
    with pytest.raises(CorruptError, match=r"scale: its .* was left out"):
        pack_item(replace(ITEM, read=lambda key: None), keep_debug=True, keep_ptx=True)


def test_a_blob_that_is_another_one_is_refused() -> None:
    wrong = Artifact(ARTIFACT.record, lambda key: b"something else")
    with pytest.raises(CorruptError, match="does not match its digest"):
        pack_item(item_of("scale", {}, wrong), keep_debug=False, keep_ptx=False)


def test_a_record_that_is_damaged_is_refused() -> None:
    record = {**ARTIFACT.record, "kernels": [{"name": "k"}]}
    with pytest.raises(CorruptError, match="record is damaged"):
        pack_item(replace(ITEM, record=record), keep_debug=False, keep_ptx=False)
