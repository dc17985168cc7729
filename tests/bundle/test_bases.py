"""Bases: what is alike stands on each other, and no path gets too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from made_bundles import make_cubin

from pallasc.specs.bundle.format import Kind
from pallasc.specs.bundle.writer import LONGEST_PATH, Blob, choose_bases, in_order


def _depths(chosen: list[int | None]) -> list[int]:
    depths = []
    for item in range(len(chosen)):
        depth, base = 0, chosen[item]
        while base is not None:
            depth, base = depth + 1, chosen[base]
            assert depth <= len(chosen)
        depths.append(depth)
    return depths


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
