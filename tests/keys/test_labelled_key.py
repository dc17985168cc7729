"""Keys over labelled fields: what is hashed can be read back, so two sets never give one input."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.specs import canonical
from pallasc.specs.canonical import KEY_SCHEMA, canonical_json, labelled_key

TRICKY = st.sampled_from(["", " ", ":", "1:a", "1:a 1:b", "\n", "1:a 1:b\n1:c 1:d", "é", "\0", "0"])
LABELS = st.text(max_size=6) | TRICKY
VALUES = st.binary(max_size=12) | TRICKY.map(str.encode)
FIELDS = st.dictionaries(LABELS, VALUES, max_size=5)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
DATA = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


class Recorder:
    """Takes what is hashed and gives it back as the digest."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def update(self, data: bytes) -> None:
        self.data += data

    def hexdigest(self) -> str:
        return self.data.hex()


class Hashlib:
    sha256 = Recorder


def hashed(fields: Mapping[str, bytes | str]) -> bytes:
    """Return the bytes that a key is the digest of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "hashlib", Hashlib)
        data = bytes.fromhex(labelled_key(fields))
    assert hashlib.sha256(data).hexdigest() == labelled_key(fields)
    return data


def read_back(data: bytes) -> dict[str, bytes]:
    """Return the fields, from the grammar that the module states."""
    assert data.startswith(KEY_SCHEMA)
    at, fields = len(KEY_SCHEMA), {}
    while at < len(data):
        parts = []
        for end in (b" ", b"\n"):
            length, _, _ = data[at:].partition(b":")
            start = at + len(length) + 1
            stop = start + int(length)
            assert data[stop : stop + 1] == end
            parts.append(data[start:stop])
            at = stop + 1
        fields[parts[0].decode()] = parts[1]
    return fields


def test_a_key_is_the_digest_of_the_written_grammar() -> None:
    text = b"pallasc key 1\n6:module 4:text\n6:target 6:sm_90a\n10:tool ptxas 4:13.5\n"
    fields = {"tool ptxas": "13.5", "module": "text", "target": b"sm_90a"}
    assert labelled_key(fields) == hashlib.sha256(text).hexdigest()
    assert labelled_key({"a": "\u00e9"}) == labelled_key({"a": "\u00e9".encode()})


def test_canonical_json_sorts_and_escapes_and_refuses_what_json_has_not() -> None:
    assert canonical_json({"b": [1, None, True], "a": "\u00e9"}) == (
        b'{"a":"\\u00e9","b":[1,null,true]}'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


@given(FIELDS)
def test_what_is_hashed_can_be_read_back(fields: dict[str, bytes]) -> None:
    assert read_back(hashed(fields)) == fields


@given(DATA)
def test_canonical_json_is_ascii_and_keeps_values_and_their_types(value: Any) -> None:
    text = canonical_json(value)
    assert text.isascii()
    assert b"\n" not in text
    assert typed(json.loads(text)) == typed(value)


def typed(value: Any) -> Any:
    """Return a value in which 1, 1.0 and True, and 0.0 and -0.0, are told apart."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value).__name__, repr(value)
