"""Reading back which memory of its peers a kernel names on the host."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.compiler.lowering.mosaic_kernel import (
    Argument,
    PeerSentinels,
    Recorded,
    TiledMap,
    join_ranks,
    peer_table,
    sentinel,
)
from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import PeerTable

_SENTINELS = PeerSentinels(arrays=3, ranks=2)


def test_a_table_is_as_long_as_the_plan_says() -> None:
    for ranks in (2, 7):
        words = PeerSentinels(3, ranks).words(1)
        assert len(words) == PeerTable(ranks, ((0, 0),) * 3).words
        assert words[:4] == [1, 0, 0, 0]
    for rank in (0, 1):
        words = _SENTINELS.words(rank)
        own = [words[4 + 2 * array + rank] for array in range(3)]
        assert own == [sentinel(array) for array in range(3)]
        assert len(set(words[4:])) == len(words[4:])
    with pytest.raises(CompileError, match="a kernel of 20 arrays over 256 devices"):
        PeerSentinels(20, 256)


def test_an_address_of_no_array_is_refused() -> None:
    for number in (_SENTINELS.arrays, 13, 99):
        with pytest.raises(CompileError, match="builds a tensor map on address"):
            _SENTINELS.own(sentinel(number), 0)


def _recorded(rank: int, peer: int, *, array: int = 1) -> Recorded:
    address = _SENTINELS.words(rank)[4 + 2 * array + peer]
    shown = TiledMap(address, 5, (8, 64), (64, 1), 128, (8, 64))
    arguments = (Argument(address=sentinel(0)), Argument(data=bytes(128), maps=((0, shown),)))
    return Recorded((4, 1, 1), (0, 0, 0), (128, 1, 1), 0, False, arguments)


def test_a_map_names_the_peer_of_each_rank() -> None:
    joined = join_ranks([_recorded(0, 1), _recorded(1, 0)], _SENTINELS)
    ((_, shown),) = joined.arguments[1].maps
    assert (shown.address, shown.peers) == (sentinel(1), (1, 0))
    joined = join_ranks([_recorded(0, 0), _recorded(1, 1)], _SENTINELS)
    ((_, shown),) = joined.arguments[1].maps
    assert (shown.address, shown.peers) == (sentinel(1), None)


def test_ranks_that_launch_different_things_are_refused() -> None:
    first, second = _recorded(0, 0), _recorded(1, 1)
    other = (Argument(address=sentinel(2)), second.arguments[1])
    for wrong in (
        replace(second, grid=(5, 1, 1)),
        replace(second, arguments=second.arguments[:1]),
        replace(second, arguments=other),
        _recorded(1, 1, array=2),
    ):
        with pytest.raises(CompileError, match="something different"):
            join_ranks([first, wrong], _SENTINELS)


def _call(**attributes: Any) -> Any:
    """Return a custom call with attributes as MLIR's bindings give them."""
    entries = [SimpleNamespace(key=key, value=value) for key, value in attributes.items()]
    return SimpleNamespace(attributes=SimpleNamespace(attrs=entries))


def test_flags_for_another_number_of_arrays_are_refused() -> None:
    call = _call(
        uses_xla_collective_metadata=SimpleNamespace(scalar=SimpleNamespace(b=True)),
        xla_replica_ids=SimpleNamespace(str=b"0,1"),
        symmetric_memory_parameters=SimpleNamespace(str=b"1,0,1"),
    )
    table = peer_table(call, [(0, 0)] * 3, multimem=False, ranks=2)
    assert table is not None
    assert table.symmetric == (0, 2)
    with pytest.raises(CompileError) as caught:
        peer_table(call, [(0, 0)] * 2, multimem=False, ranks=2)
    assert caught.value.message == (
        "a Mosaic kernel has symmetric-memory flags for 3 arrays, expected 2"
    )
