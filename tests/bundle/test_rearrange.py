"""Merging, splitting and selecting: the parts hold what the whole held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_bundles import make_items

from pallasc.cli.arguments.variants import select_entries
from pallasc.errors import SpecError
from pallasc.specs.bundle.bundle import Bundle, open_bundle
from pallasc.specs.bundle.manifest import Provenance
from pallasc.specs.bundle.writer import build_bundle


def _merge(bundles: Sequence[Bundle], **options: bool) -> bytes:
    items = (item for bundle in bundles for item in bundle.items())
    origins = [origin for bundle in bundles for origin in bundle.provenance]
    return build_bundle(items, provenance=origins, **options)


def test_taken_apart_and_merged_again_it_is_the_same(small: bytes) -> None:
    whole = open_bundle(small)
    groups = [list(whole.entries(arch=arch)) for arch in ("sm_90a", "sm_100a")]
    parts = [open_bundle(build_bundle(whole.items(group))) for group in groups]
    assert [len(part) for part in parts] == [6, 6]
    assert _merge(parts) == _merge(parts[::-1]) == small


def test_what_several_bundles_have_is_there_once(small: bytes) -> None:
    bundle = open_bundle(small)
    assert _merge([bundle, bundle]) == small


def test_of_one_artifact_the_richer_one_is_taken() -> None:
    items = make_items(3)
    rich = open_bundle(build_bundle(items, keep_debug=True, keep_ptx=True))
    poor = open_bundle(build_bundle(items))
    for order in ((rich, poor), (poor, rich)):
        merged = _merge(order, keep_debug=True, keep_ptx=True)
        assert merged == build_bundle(items, keep_debug=True, keep_ptx=True)
        assert _merge(order) == build_bundle(items)


def test_provenance_of_all_is_kept() -> None:
    origins = [Provenance("a"), Provenance("b")]
    parts = [
        open_bundle(build_bundle(make_items(1, names=(name,)), provenance=[origin]))
        for name, origin in zip("xy", origins, strict=True)
    ]
    merged = open_bundle(_merge(parts))
    assert merged.provenance == tuple(origins)
    assert open_bundle(_merge(parts[::-1])).provenance == tuple(origins)


@pytest.mark.parametrize(
    ("expression", "count"),
    [("norm", 6), ("name=norm and m=16", 2), ("target=sm_90a", 6), ("target=b200 and not m=16", 4),
     ("norm[m=16,dtype=bf16]@b200", 1)],
)  # fmt: skip
def test_entries_are_selected_as_variants_are(small: bytes, expression: str, count: int) -> None:
    assert len(select_entries(open_bundle(small).entries(), expression)) == count


def test_an_expression_that_means_nothing_is_refused(small: bytes) -> None:
    with pytest.raises(SpecError, match="selects none of 12 variants") as caught:
        select_entries(open_bundle(small).entries(), "nrom")
    assert caught.value.hint == "Did you mean 'norm'?"
