"""JSON from strangers: read within bounds, or refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallasc.errors import CorruptError
from pallasc.specs.canonical import canonical_json, parse_json

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


@settings(max_examples=40)
@given(VALUES)
def test_what_is_written_comes_back(value: Any) -> None:
    assert parse_json(canonical_json(value)) == value
    for edge in (b"18446744073709551615", b"-9223372036854775808", b"[" * 64 + b"]" * 64):
        assert parse_json(edge) == json.loads(edge)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b'{"a":NaN}', "NaN is not a JSON number"),
        (b"1e999", "too large"),
        (b"18446744073709551616", "beyond 64 bits"),
        (b"[[-9223372036854775809]]", "beyond 64 bits"),
        (b"9" * 5000, "is not JSON"),
        ('"é"'.encode(), "is not JSON"),
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b"[" * 10**6, "is not JSON"),
        (b'{"a":' * 10**5 + b"1" + b"}" * 10**5, "is not JSON"),
    ],
)
def test_what_is_out_of_bounds_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(CorruptError, match=words):
        parse_json(data)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_the_one_error(data: bytes) -> None:
    try:
        value = parse_json(data)
    except CorruptError:
        return
    assert value == json.loads(data)
