"""Bases: what is alike stands on each other, and no path gets too long."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from made_bundles import make_cubin

from pallasc.specs.bundle.format import Kind
from pallasc.specs.bundle.writer import LONGEST_PATH, Blob, choose_bases, in_order


def _cubins(count: int, sm: int = 90) -> list[Blob]:
    return [Blob(Kind.CUBIN, make_cubin(seed, sm=sm, debug=False), "k") for seed in range(count)]


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


def test_what_is_unlike_of_another_kind_constant_or_large_has_no_base() -> None:
    noise = [Blob(Kind.CUBIN, random.Random(seed).randbytes(512), "k") for seed in range(6)]
    assert choose_bases(noise) == [None] * 6
    assert choose_bases([]) == []
    data = make_cubin(1)
    for kinds, content in (
        ((Kind.CUBIN, Kind.PTX), data),
        ((Kind.CONSTANT,) * 2, data),
        ((Kind.CUBIN,) * 2, data * 500),
    ):
        assert choose_bases([Blob(kind, content, "k") for kind in kinds]) == [None, None]


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([80, 90, 100])), max_size=30))
def test_the_forest_is_one_and_no_path_is_too_long(cubins: list[tuple[int, int]]) -> None:
    contents = [Blob(Kind.CUBIN, make_cubin(seed, sm=sm), "k") for seed, sm in cubins]
    chosen = choose_bases(contents)
    assert max(_depths(chosen), default=0) <= LONGEST_PATH
    assert choose_bases(contents) == chosen
    order = in_order(chosen)
    assert sorted(order) == list(range(len(contents)))
    for item, base in enumerate(chosen):
        assert base is None or order.index(base) < order.index(item)
