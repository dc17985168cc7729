"""Items: what ships of an artifact, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_bundles import make_artifact

from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.strip import debug_bytes
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import digest

ARTIFACT = make_artifact(1, constant=b"numbers")
ITEM = Item("scale", {"m": 16, "dtype": "bf16"}, ARTIFACT)


def _shipped(item: Item, **options: bool) -> tuple[Bundle, Artifact]:
    bundle = open_bundle(build_bundle([item], **options))
    (entry,) = bundle.entries()
    return bundle, bundle.artifact(entry)


def test_debug_sections_and_ptx_are_left_out() -> None:
    bundle, artifact = _shipped(ITEM)
    assert debug_bytes(ARTIFACT.cubin()) > 0 == debug_bytes(artifact.cubin())
    assert (artifact.ptx(), artifact.blob(digest(b"numbers"))) == ("", b"numbers")
    (entry,) = bundle.entries()
    assert (entry.digest, bundle.record(entry)) == (ARTIFACT.digest, ARTIFACT.record)


def test_all_of_it_ships_where_it_is_asked_for() -> None:
    _, artifact = _shipped(ITEM, keep_debug=True, keep_ptx=True)
    assert artifact.blobs() == ARTIFACT.blobs()
    assert artifact.digest == ARTIFACT.digest


def test_the_entry_says_what_the_record_says() -> None:
    (entry,) = _shipped(ITEM)[0].entries()
    assert (entry.id, entry.arch) == ("scale[m=16,dtype=bf16]@h100-sxm", "sm_90a")
    assert [str(array) for array in entry.inputs] == ["x: bf16[16, 32]"]
    assert entry.minimum_driver == {"cuda": "13.0", "linux": "580.65.06"}


def test_an_earlier_bundle_may_have_left_out_ptx_but_nothing_else() -> None:
    ptx = ARTIFACT.kernels[0].ptx
    without = replace(ITEM, read=lambda key: None if key == ptx else ARTIFACT.blob(key))
    bundle, _ = _shipped(without, keep_debug=True, keep_ptx=True)
    assert list(bundle.shipped(next(bundle.entries())).values()).count(None) == 1
    with pytest.raises(CorruptError, match=r"scale: its .* was left out"):
        build_bundle([replace(ITEM, read=lambda key: None)])


def test_a_damaged_record_is_refused() -> None:
    record = {**ARTIFACT.record, "kernels": [{"name": "k"}]}
    with pytest.raises(CorruptError, match="kernels are damaged"):
        build_bundle([replace(ITEM, artifact=Artifact(record, ARTIFACT.blob))])
