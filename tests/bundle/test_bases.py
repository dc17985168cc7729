"""Bases: what is alike stands on each other, and no path gets too long."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_bundles import make_cubin

from pallasc.specs.bundle import bases
from pallasc.specs.bundle.bases import LONGEST_PATH, Content, choose_bases, in_order
from pallasc.specs.bundle.blobs import Kind


def _cubins(count: int, sm: int = 90) -> list[Content]:
    return [Content(Kind.CUBIN, make_cubin(seed, sm=sm, debug=False)) for seed in range(count)]


def _depths(chosen: list[int | None]) -> list[int]:
    depths = []
    for item in range(len(chosen)):
        depth, base = 0, chosen[item]
        while base is not None:
            depth, base = depth + 1, chosen[base]
            assert depth <= len(chosen)
        depths.append(depth)
    return depths


def test_variants_of_a_kernel_share_a_root() -> None:
    chosen = choose_bases(_cubins(12))
    assert chosen.count(None) == 1


def test_what_has_nothing_in_common_has_no_base() -> None:
    noise = [Content(Kind.CUBIN, random.Random(seed).randbytes(512)) for seed in range(6)]
    assert choose_bases(noise) == [None] * 6
    assert choose_bases([]) == []


def test_kinds_do_not_mix() -> None:
    data = make_cubin(1)
    chosen = choose_bases([Content(Kind.CUBIN, data), Content(Kind.PTX, data)])
    assert chosen == [None, None]


def test_constants_and_large_contents_have_no_base() -> None:
    large = make_cubin(1) * 500
    kinds = (Kind.CONSTANT, Kind.CUBIN)
    for kind, data in zip(kinds, (make_cubin(1), large), strict=True):
        assert choose_bases([Content(kind, data)] * 2) == [None, None]


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([80, 90, 100])), max_size=30))
def test_the_forest_is_one_and_no_path_is_too_long(cubins: list[tuple[int, int]]) -> None:
    contents = [Content(Kind.CUBIN, make_cubin(seed, sm=sm)) for seed, sm in cubins]
    chosen = choose_bases(contents)
    assert max(_depths(chosen), default=0) <= LONGEST_PATH
    assert choose_bases(contents) == chosen
    order = in_order(chosen)
    assert sorted(order) == list(range(len(contents)))
    for item, base in enumerate(chosen):
        assert base is None or order.index(base) < order.index(item)


def test_paths_have_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = _cubins(20)
    limit = len(contents[0].data)
    monkeypatch.setattr(bases, "LARGEST_PATH_BYTES", limit)
    assert max(_depths(choose_bases(contents))) <= 1


def test_many_contents_are_compared_by_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "_MOST_PIECES", 400)
    monkeypatch.setattr(bases, "_MOST_PAIRS", 10)
    monkeypatch.setattr(bases, "_NEIGHBOURS", range(2, 4))
    chosen = choose_bases(_cubins(30))
    assert chosen.count(None) < 30
    assert all(base is None or abs(base - item) <= 3 for item, base in enumerate(chosen))
