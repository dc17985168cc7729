"""Reading back which memory of its peers a kernel names on the host."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.lowering.mosaic_kernel import (
    HostObject,
    Sentinels,
    from_mosaic,
    join_ranks,
    peer_table,
    sentinel,
)
from pallasc.errors import CompileError
from pallasc.specs.artifacts.plan import Bytes, Launch, PeerTable, Pointer

_OF_RANK = [Sentinels(3, 2, rank) for rank in (0, 1)]


def test_a_table_is_as_long_as_the_plan_says() -> None:
    for ranks in (2, 7):
        words = Sentinels(3, ranks, 1).words()
        assert len(words) == PeerTable(ranks, ((0, 0),) * 3).words
        assert words[:4] == [1, 0, 0, 0]
    for rank in (0, 1):
        words = _OF_RANK[rank].words()
        own = [words[4 + 2 * array + rank] for array in range(3)]
        assert own == [sentinel(array) for array in range(3)]
        assert len(set(words[4:])) == len(words[4:])
    with pytest.raises(CompileError, match="a kernel of 20 arrays over 256 devices"):
        Sentinels(20, 256)


def test_an_address_of_no_array_is_refused() -> None:
    for number in (3, 13, 99):
        with pytest.raises(CompileError, match="which is in no array"):
            _OF_RANK[0].find(sentinel(number))
        with pytest.raises(CompileError, match="which is in no array"):
            Sentinels(3).find(sentinel(number))


def test_an_array_of_another_device_is_no_pointer() -> None:
    host = object.__new__(HostObject)
    host._sentinels = _OF_RANK[0]
    own, other = (ctypes.c_uint64(_OF_RANK[0].words()[6 + peer]) for peer in (0, 1))
    assert host._address(ctypes.addressof(own)) == Pointer(1, 0)
    with pytest.raises(CompileError, match="an array of another device"):
        host._address(ctypes.addressof(other))


def _recorded(rank: int, peer: int, *, array: int = 1) -> Launch:
    address = _OF_RANK[rank].words()[4 + 2 * array + peer]
    buffer, offset, owner = _OF_RANK[rank].find(address)
    shown = from_mosaic(5, (8, 64), (64, 1), 128, window=(8, 64), buffer=buffer, offset=offset)
    parameters = Pointer(0, 0), Bytes(128, "", ((0, replace(shown, peers=(owner,))),))
    return Launch("", "", (4, 1, 1), None, (128, 1, 1), 0, False, parameters)


def test_a_map_names_the_peer_of_each_rank() -> None:
    joined = join_ranks([_recorded(0, 1), _recorded(1, 0)])
    ((_, shown),) = joined.parameters[1].tensor_maps  # type: ignore[union-attr]
    assert (shown.buffer, shown.peers) == (1, (1, 0))
    joined = join_ranks([_recorded(0, 0), _recorded(1, 1)])
    ((_, shown),) = joined.parameters[1].tensor_maps  # type: ignore[union-attr]
    assert (shown.buffer, shown.peers) == (1, None)


def test_ranks_that_launch_different_things_are_refused() -> None:
    first, second = _recorded(0, 0), _recorded(1, 1)
    other = (Pointer(2, 0), second.parameters[1])
    for wrong in (
        replace(second, grid=(5, 1, 1)),
        replace(second, parameters=second.parameters[:1]),
        replace(second, parameters=other),
        _recorded(1, 1, array=2),
    ):
        with pytest.raises(CompileError, match="makes different launches"):
            join_ranks([first, wrong])


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
    table = peer_table(call, [Pointer(0, 0)] * 3, multimem=False, ranks=2)
    assert table is not None
    assert table.symmetric == (0, 2)
    with pytest.raises(CompileError) as caught:
        peer_table(call, [Pointer(0, 0)] * 2, multimem=False, ranks=2)
    assert caught.value.message == (
        "a Mosaic kernel has symmetric-memory flags for 3 arrays, expected 2"
    )
