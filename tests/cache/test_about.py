"""What is known of an artifact beside its record."""

from __future__ import annotations

from typing import Any

import pytest

from pallasc.cache.about import (
    About,
    about_from_json,
    cubin_bytes,
    pack_blobs,
    unpack_blobs,
)
from pallasc.cache.manifests import seconds_of

A, B = "ab" * 32, "cd" * 32


def record(artifact: dict[str, Any], **blobs: tuple[str, int]) -> dict[str, Any]:
    named = {name: {"digest": digest, "size": size} for name, (digest, size) in blobs.items()}
    return {"artifact": artifact, "blobs": named}


def test_it_comes_back_from_json() -> None:
    about = About("matmul", "h100-sxm", {"m": 1024})
    assert about_from_json(about.to_json()) == about


@pytest.mark.parametrize(
    "value",
    [None, 7, [], {}, {"name": 7}, {"name": "a", "params": []}, {"params": {"m": 1}},
     {"name": "x" * 20_000}, {"name": "\ud800"}],
)  # fmt: skip
def test_what_is_something_else_is_nothing(value: object) -> None:
    assert about_from_json(value) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1.5, 1.5), (2, 2.0), (-1, 0.0), (True, 0.0), ("3", 0.0), (None, 0.0), (float("nan"), 0.0)],
)
def test_seconds_are_a_number_or_none(value: object, seconds: float) -> None:
    assert seconds_of(value) == seconds


@pytest.mark.parametrize(
    ("kernels", "size"),
    [
        ([{"cubin": "one"}, {"cubin": "one"}, {"cubin": "two"}], 30),
        ([{"cubin": "two", "ptx": "one"}], 20),
        ([{"cubin": "gone"}], 0),
        ([7, {"cubin": ["one"]}], 0),
        ("text", 0),
    ],
)
def test_each_cubin_counts_once(kernels: object, size: int) -> None:
    assert cubin_bytes(record({"kernels": kernels}, one=(A, 10), two=(B, 20))) == size


def test_a_record_that_says_nothing_of_kernels_has_no_cubins() -> None:
    assert cubin_bytes(record({}, one=(A, 10))) == 0


def test_blobs_are_packed_sorted_and_each_once() -> None:
    packed = pack_blobs(record({}, x=(B, 2), y=(A, 2**40), z=(B, 2)))
    assert unpack_blobs(packed) == [(A, 2**40), (B, 2)]
    assert len(packed) == 80
