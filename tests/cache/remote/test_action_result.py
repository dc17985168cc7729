"""`ActionResult` of Bazel: read as written, on the wire as Bazel has it."""

from __future__ import annotations

import pytest

from pallasc.cache.remote.action_result import Output, Result, decode_result, encode_result
from pallasc.errors import CorruptError

RESULT = Result(b"catalog", [Output("packs/a", "ab" * 32, 300), Output("data", "cd" * 32, 0)])


def test_a_result_is_read_as_it_was_written() -> None:
    assert decode_result(encode_result(RESULT)) == RESULT


def test_the_bytes_are_those_of_remote_execution_proto() -> None:
    """Field 2 is `output_files` with path 1 and digest 2 (hash 1, size 2); 5 is `stdout_raw`."""
    assert encode_result(Result(b"out", [Output("p", "ab", 300)])) == bytes.fromhex(
        "12 0c  0a 01 70  12 07  0a 02 61 62  10 ac 02  2a 03 6f 75 74"
    )


def test_fields_that_are_not_known_are_passed_over() -> None:
    assert decode_result(encode_result(RESULT) + bytes.fromhex("4a 02 08 01")) == RESULT


@pytest.mark.parametrize("data", [b"\xff", b"<html>", encode_result(RESULT)[:-3]])
def test_what_is_no_result_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match="not an ActionResult"):
        decode_result(data)
