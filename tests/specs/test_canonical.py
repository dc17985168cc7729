"""Canonical JSON and labelled keys: one text for one value, another for any other."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.specs.canonical import canonical_json, digest, labelled_key

BASE = {"module": "text", "target": "sm_90a", "tool ptxas": "13.5"}

CHANGES = {
    "another value": {**BASE, "module": "texT"},
    "another label": {"modulf": "text", "target": "sm_90a", "tool ptxas": "13.5"},
    "a field more": {**BASE, "extra": ""},
    "a field less": {"module": "text", "target": "sm_90a"},
    "a byte that moves to the next field": {**BASE, "module": "tex", "target": "tsm_90a"},
    "a field inside another": {"module": "text\n6:target 6:sm_90a", "tool ptxas": "13.5"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_key_changes_with(name: str) -> None:
    assert labelled_key(CHANGES[name]) != labelled_key(BASE)


def test_a_key_does_not_depend_on_the_order_of_fields() -> None:
    assert labelled_key(dict(reversed(BASE.items()))) == labelled_key(BASE)


def test_a_key_is_the_same_for_text_and_its_bytes() -> None:
    assert labelled_key({"a": "é"}) == labelled_key({"a": "é".encode()})


def test_a_key_is_the_digest_of_the_written_grammar() -> None:
    text = b"pallasc key 1\n6:module 4:text\n6:target 6:sm_90a\n10:tool ptxas 4:13.5\n"
    assert labelled_key(BASE) == hashlib.sha256(text).hexdigest() == digest(text)


def test_canonical_json_sorts_and_escapes() -> None:
    assert canonical_json({"b": [1, None, True], "a": "é"}) == b'{"a":"\\u00e9","b":[1,null,true]}'


def test_canonical_json_refuses_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@given(st.dictionaries(st.text(max_size=4), st.binary(max_size=6), max_size=3),
       st.dictionaries(st.text(max_size=4), st.binary(max_size=6), max_size=3))  # fmt: skip
def test_two_sets_of_fields_have_one_key_only_where_they_are_equal(
    first: dict[str, bytes], other: dict[str, bytes]
) -> None:
    assert (labelled_key(first) == labelled_key(other)) == (first == other)
