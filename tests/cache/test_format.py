"""The bytes of a record."""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from pallasc.cache import format
from pallasc.errors import CorruptError
from pallasc.specs.canonical import canonical_json, digest

KEY = "ab" * 32
OTHER = "cd" * 32
BODY = {"artifact": {"b": 1, "a": "é"}, "blobs": {"cubin": {"digest": OTHER, "size": 3}}}
TEXT = (
    b'{"artifact":{"a":"\\u00e9","b":1},"blobs":{"cubin":{"digest":"%s","size":3}}}'
    % OTHER.encode()
)


def test_a_record_has_exactly_these_bytes() -> None:
    data, digest = format.encode("artifact", KEY, BODY)
    assert digest == hashlib.sha256(TEXT).hexdigest()
    assert data == f"pallasc-store 1 artifact {KEY} {digest}\n".encode() + TEXT
    record, read = format.decode("artifact", KEY, data)
    assert (json.loads(bytes(record.artifact)), read) == (BODY["artifact"], digest)
    assert msgspec.to_builtins(record.blobs) == BODY["blobs"]


def _record(body: bytes, *, kind: str = "artifact", key: str = KEY, version: int = 1) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"pallasc-store {version} {kind} {key} {digest}\n".encode() + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"pallasc-store 1 art", "its header is b'pallasc-store 1 art' instead of"),
        (_record(TEXT) + b" ", "the SHA-256 of its body is "),
        (_record(TEXT, kind="manifest"), "its header is b'pallasc-store 1 manifest "),
        (_record(TEXT, version=2), "its header is b'pallasc-store 2 artifact "),
        (_record(TEXT, key=OTHER), f"its header is b'pallasc-store 1 artifact {OTHER} "),
        (_record(b"[" * 100_000), "its body is not valid: "),
        (_record(b"{}"), "missing required field `artifact`"),
        (_record(b'{"artifact":{},"blobs":[]}'), "Expected `object`, got `array` - at `$.blobs`"),
        (
            _record(b'{"artifact":{},"blobs":{"a":{"digest":"../../x","size":1}}}'),
            "matching regex '\\\\A[0-9a-f]{64}\\\\Z' - at `$.blobs[...].digest`",
        ),
        (
            _record(b'{"artifact":{},"blobs":{"a":{"digest":"%s","size":-1}}}' % OTHER.encode()),
            "Expected `int` >= 0 - at `$.blobs[...].size`",
        ),
        (_record(b'{"artifact":{"a":nine},"blobs":{}}'), "its body is not valid: "),
        (_record(b'{"artifact":[],"blobs":{}}'), "`artifact` is not an object"),
    ],
)
def test_decode_says_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptError) as caught:
        format.decode("artifact", KEY, data)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    "name", ["ab", "AB" * 32, "ab" * 32 + "\n", "../" * 21 + "x", "٣" * 64, None]
)
def test_only_64_lower_case_hexadecimal_digits_are_a_name(name: Any) -> None:
    with pytest.raises(CorruptError, match="64 lower-case hexadecimal digits"):
        format.check_name(name)


@pytest.mark.parametrize("artifact", [{}, {"b": [1, {"c": "\u00e4"}], "a": '","blobs":{'}])
def test_the_digest_of_an_artifact_is_that_of_its_canonical_json(artifact: dict[str, Any]) -> None:
    for blobs in ({}, {"x": {"digest": "0" * 64, "size": 7}}):
        data, _ = format.encode("artifact", KEY, {"blobs": blobs, "artifact": artifact})
        record, _ = format.decode("artifact", KEY, data)
        assert format.sha256(record.artifact) == digest(canonical_json(artifact))
