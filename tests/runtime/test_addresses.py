"""The quick look at addresses says what the signature says."""

from __future__ import annotations

from typing import Any

import made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallasc.errors import ArgumentError
from pallasc.runtime.calls.addresses import AddressCheck
from pallasc.runtime.matching.candidates import Candidate
from pallasc.specs.artifacts.signature import Signature

_NAME = "made@h100-sxm"


@pytest.fixture(scope="module")
def signatures() -> list[Signature]:
    """Give signatures: results, an input updated in place, arrays without elements."""
    text = "f32[4, 64]"
    artifacts = [
        made.add(),
        made.artifact(made.launch("four", 0, 1, 2, 3), outputs=[text, "b", text]),
        made.add(inputs={"a": "f32[0]", "b": text}),
        made.add(outputs=["f32[0]"]),
    ]
    return [Candidate("made", {}, artifact).signature for artifact in artifacts]


def _said(check: Any, *arguments: Any) -> str:
    try:
        check(*arguments)
    except ArgumentError as error:
        return str(error)
    return ""


@settings(max_examples=500)
@given(
    which=st.integers(0, 3),
    places=st.lists(st.sampled_from([0, 1, 8, 256, 512, 1023, 1024, 1280, 2048, 4096]), min_size=4),
)
def test_it_says_what_the_signature_says(
    which: int, places: list[int], signatures: list[Signature]
) -> None:
    signature = signatures[which]
    pointers = [0x7F00_0000_0000 + place for place in places[: len(signature.passed)]]
    quick, exact = AddressCheck(_NAME, signature), signature.check_addresses
    assert _said(quick, pointers) == _said(exact, _NAME, pointers)


def test_the_cases_are_of_both_kinds(signatures: list[Signature]) -> None:
    check = AddressCheck(_NAME, signatures[0])
    assert _said(check, [0, 1024, 2048]) == ""
    assert "misaligned by 8 bytes" in _said(check, [0, 1032, 4096])
    assert "the memory for out overlaps b" in _said(check, [0, 1024, 1280])
