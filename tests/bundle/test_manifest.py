"""Entries and provenance: what they say comes back; entries are found by their keys."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.manifest import (
    Array,
    Entry,
    Provenance,
    content_digest,
    entry_key,
    key_of,
    pack_entries,
    pack_provenance,
    parse_entry,
    parse_provenance,
    split_page,
)
from pallasc.specs.canonical import Scalar, canonical_json

NAMES = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)


def _digest_of(number: int) -> str:
    return f"{number:064x}"


def _entry(
    name: str = "k", target: str = "h100-sxm", params: dict[str, Scalar] | None = None
) -> Entry:
    return Entry(
        name=name,
        params=tuple((params or {}).items()),
        target=target,
        arch="sm_90a",
        inputs=(Array("x", "bf16", (16, 32)),),
        outputs=(Array("out", "f32", ()),),
        minimum_driver={"cuda": "13.0", "linux": "580.65.06"},
        record=5,
        blobs=(7, None),
        digest_of=_digest_of,
    )


def _parsed(page: bytes) -> Entry:
    (text,) = split_page(page, 1)
    return parse_entry(text, _digest_of)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(NAMES, st.dictionaries(NAMES, SCALARS, max_size=3)), min_size=1, max_size=9)
)
def test_entries_come_back(variants: list[tuple[str, dict[str, Scalar]]]) -> None:
    entries = [_entry(name, params=params) for name, params in variants]
    entries[0] = replace(entries[0], vmap="many")
    texts = split_page(pack_entries(entries), len(entries))
    assert [parse_entry(text, _digest_of) for text in texts] == entries
    assert [key_of(text) for text in texts] == [entry.key for entry in entries]
    assert parse_entry(texts[0], _digest_of).digest == _digest_of(5)


def test_the_order_of_parameters_is_kept_and_no_part_of_the_key() -> None:
    first, other = _entry(params={"n": 1, "m": 2}), _entry(params={"m": 2, "n": 1})
    assert first.key == other.key
    assert (first.id, other.id) == ("k[n=1,m=2]@h100-sxm", "k[m=2,n=1]@h100-sxm")
    assert _parsed(pack_entries([first])).params == (("n", 1), ("m", 2))


@pytest.mark.parametrize(("name", "target"), [("", "t"), ("k", ""), ("a\nb", "t"), ("k", "a\0b")])
def test_a_name_that_a_key_cannot_hold_is_refused(name: str, target: str) -> None:
    with pytest.raises(SpecError, match="is not allowed as the name"):
        entry_key(name, target, {})


def test_the_content_depends_on_what_ships_and_not_on_numbers() -> None:
    entry = _entry()
    first = content_digest([entry])
    renumbered = replace(
        entry, record=9, blobs=(1, None), digest_of={9: _digest_of(5), 1: _digest_of(7)}.__getitem__
    )
    assert content_digest([renumbered]) == first
    for other in (
        replace(entry, blobs=(8, None)),
        replace(entry, record=6),
        replace(entry, lines=3),
        replace(entry, reference=3),
        replace(entry, vmap="many"),
    ):
        assert content_digest([other]) != first


@pytest.mark.parametrize(
    ("raw", "count", "words"),
    [(b"", 1, "no room for 1 entries"), (b"\5\0\0\0abc", 1, "do not follow"),
     (b"\3\0\0\0\3\0\0\0abc", 2, "do not follow"), (b"\0\0\0\0\3\0\0\0abc", 2, "do not follow"),
     (b"\4\0\0\0\3\0\0\0abc", 2, "do not follow")],
)  # fmt: skip
def test_a_page_of_another_form_is_refused(raw: bytes, count: int, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        split_page(raw, count)


def test_fields_of_a_later_minor_version_are_passed_over() -> None:
    key, _, about = pack_entries([_entry()])[4:].partition(b"\n")
    text = key + b"\n" + json.dumps({**json.loads(about), "later": [1]}).encode()
    assert parse_entry(text, _digest_of) == _entry()


# ---- provenance

CLEAN = Provenance("pallasc 1.0", {"ptxas": "13.5"}, {"kernels.yaml": "ab" * 32}, "c0ffee", False)
DIRTY = Provenance("pallasc 1.0", {}, {}, None, None)


def test_provenance_comes_back_in_one_order() -> None:
    data = pack_provenance([CLEAN, DIRTY, CLEAN])
    assert data == pack_provenance([DIRTY, CLEAN])
    assert sorted(map(repr, parse_provenance(data))) == sorted(map(repr, (CLEAN, DIRTY)))
    assert parse_provenance(pack_provenance([])) == ()


def test_fields_of_provenance_of_a_later_version_are_passed_over() -> None:
    data = canonical_json([{**GOOD, "dirty": True, "new": 1}])
    assert parse_provenance(data) == (Provenance("b", dirty=True),)


GOOD = {"builder": "b", "toolchain": {}, "specs": {}, "commit": None, "dirty": None}


def test_too_much_provenance_is_refused() -> None:
    many = {f"spec {number}": "ab" * 32 for number in range(20_000)}
    with pytest.raises(SpecError, match=r"^the provenance is \d+ bytes; the limit is \d+\."):
        pack_provenance([Provenance(specs=many)])
