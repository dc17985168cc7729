"""Provenance: kept, covered, and no part of what a bundle holds."""

from __future__ import annotations

from typing import Any

import pytest
from made_bundles import make_items

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.manifest import Provenance, pack_provenance, parse_provenance
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import canonical_json

CLEAN = Provenance("pallasc 1.0", {"ptxas": "13.5"}, {"kernels.yaml": "ab" * 32}, "c0ffee", False)
DIRTY = Provenance("pallasc 1.0", {}, {}, None, None)


def test_provenance_comes_back_in_one_order() -> None:
    data = pack_provenance([CLEAN, DIRTY, CLEAN])
    assert data == pack_provenance([DIRTY, CLEAN])
    assert sorted(map(repr, parse_provenance(data))) == sorted(map(repr, (CLEAN, DIRTY)))
    assert parse_provenance(pack_provenance([])) == ()


def test_it_disturbs_neither_content_nor_any_byte_before_it() -> None:
    items = make_items(3)
    with_it, without = build_bundle(items, provenance=[CLEAN]), build_bundle(items)
    first, second = open_bundle(with_it), open_bundle(without)
    assert first.digest == second.digest
    assert first.root != second.root
    assert first.provenance == (CLEAN,)
    assert second.provenance == ()
    head = first.reader.head
    assert with_it[head.head_bytes : head.provenance.at] == without[head.head_bytes :]


def test_fields_of_a_later_minor_version_are_passed_over() -> None:
    data = canonical_json([{**GOOD, "dirty": True, "new": 1}])
    assert parse_provenance(data) == (Provenance("b", dirty=True),)


GOOD = {"builder": "b", "toolchain": {}, "specs": {}, "commit": None, "dirty": None}


@pytest.mark.parametrize(
    "value",
    [5, {}, [5], [{}], [{**GOOD, "builder": 5}], [{**GOOD, "toolchain": []}],
     [{**GOOD, "specs": {"a": 1}}], [{**GOOD, "commit": 7}], [{**GOOD, "dirty": "no"}]],
)  # fmt: skip
def test_what_is_no_provenance_is_refused(value: Any) -> None:
    with pytest.raises(CorruptError, match="provenance is damaged"):
        parse_provenance(canonical_json(value))


def test_too_much_of_it_is_refused() -> None:
    many = {f"spec {number}": "ab" * 32 for number in range(20_000)}
    with pytest.raises(SpecError, match=r"^the provenance is \d+ bytes; the limit is \d+\."):
        pack_provenance([Provenance(specs=many)])
