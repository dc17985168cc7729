"""Which memory of its peers a kernel over several devices uses.

Its custom call says whether it reads a table of addresses, and its host function may name peers'
memory, too. That reads addresses from a table (`specs/artifacts/peers.py`) and builds tensor maps
on them. It is run once as each rank, with a table of sentinel addresses, so that every address says
which array of which rank it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallasc.compiler.executable.host_stub import (
    MOST_SENTINELS,
    Argument,
    Recorded,
    TiledMap,
    locate,
    sentinel,
)
from pallasc.errors import CompileError
from pallasc.specs.artifacts.peers import HEAD_WORDS, MULTICAST, PeerTable

# The second name is JAX 0.10's, where only multicast asked for it.
_SYMMETRIC = ("symmetric_memory_parameters", "multimem_parameters")


@dataclass(frozen=True, slots=True)
class PeerSentinels:
    """Sentinels for `arrays` arrays on `ranks` devices.

    Those of the own arrays come first, then the one of the table on the device, then one for each
    array on each rank, then one for the multicast address of each array.
    """

    arrays: int
    ranks: int

    def __post_init__(self) -> None:
        if self.arrays * (self.ranks + 2) + 1 > MOST_SENTINELS:
            raise CompileError(f"a kernel of {self.arrays} arrays over {self.ranks} devices")

    @property
    def table(self) -> int:
        """The number of the sentinel for the table on the device."""
        return self.arrays

    def words(self, rank: int) -> list[int]:
        """Return the table as `rank` gets it."""
        addresses = [
            sentinel(array if peer == rank else self._number(array, peer))
            for array in range(self.arrays)
            for peer in range(self.ranks)
        ]
        shared = [sentinel(self._number(self.arrays, array)) for array in range(self.arrays)]
        return [rank, *[0] * (HEAD_WORDS - 1), *addresses, *shared]

    def _number(self, array: int, peer: int) -> int:
        return self.table + 1 + array * self.ranks + peer

    def own(self, address: int, rank: int) -> tuple[int, int]:
        """Return an address in the same array of the own device, and on whose it was.

        Raises:
            CompileError: it lies in no array.
        """
        number, offset = locate(address)
        if number < self.arrays:
            return address, rank
        array, peer = divmod(number - self.table - 1, self.ranks)
        if array >= self.arrays:
            array, peer = array * self.ranks + peer - self.arrays * self.ranks, MULTICAST
        if number <= self.table or array >= self.arrays:
            raise CompileError(f"the host function builds a tensor map on address {address:#x}")
        return sentinel(array) + offset, peer


def join_ranks(recorded: Sequence[Recorded], sentinels: PeerSentinels) -> Recorded:
    """Return what all ranks launch, with the peers of each tensor map.

    Raises:
        CompileError: ranks launch different things, apart from whose memory a tensor map shows.
    """
    first, *others = recorded
    if any(replace(other, arguments=first.arguments) != first for other in others):
        raise CompileError("the host function launches a different grid on each device")
    if len({len(launch.arguments) for launch in recorded}) != 1:
        raise CompileError("the host function passes different arguments on each device")
    by_parameter = zip(*(launch.arguments for launch in recorded), strict=True)
    return replace(first, arguments=tuple(_join(ranks, sentinels) for ranks in by_parameter))


def _join(arguments: Sequence[Argument], sentinels: PeerSentinels) -> Argument:
    first = arguments[0]
    for other in arguments:
        same_maps = [at for at, _ in other.maps] == [at for at, _ in first.maps]
        if (other.address, other.data) != (first.address, first.data) or not same_maps:
            raise CompileError("the host function passes different arguments on each device")
    maps = []
    for index, (at, _) in enumerate(first.maps):
        of_ranks = [argument.maps[index][1] for argument in arguments]
        maps.append((at, _join_maps(of_ranks, sentinels)))
    return replace(first, maps=tuple(maps))


def _join_maps(maps: Sequence[TiledMap], sentinels: PeerSentinels) -> TiledMap:
    places = [sentinels.own(tensor_map.address, rank) for rank, tensor_map in enumerate(maps)]
    owned = {
        replace(tensor_map, address=at) for tensor_map, (at, _) in zip(maps, places, strict=True)
    }
    if len(owned) != 1:
        raise CompileError("the host function builds different tensor maps on each device")
    peers = tuple(peer for _, peer in places)
    return replace(owned.pop(), peers=None if peers == tuple(range(len(maps))) else peers)


# ---- the custom call


def uses_peers(call: Any) -> bool:
    """Return whether a custom call reads the table of peers."""
    return _is_true(_attributes(call).get("uses_xla_collective_metadata"))


def peer_table(
    call: Any, places: Sequence[tuple[int, int]], *, multimem: bool, ranks: int
) -> PeerTable | None:
    """Return the table that a custom call needs, None if it needs none.

    Args:
        call: the custom call.
        places: buffer and offset of its operands, then of its results.
        multimem: whether the kernel uses multicast addresses.
        ranks: how many devices run it together.

    Raises:
        CompileError: the call names other devices, or other arrays.
    """
    if not uses_peers(call):
        return None
    attributes = _attributes(call)
    devices = _numbers(attributes.get("xla_replica_ids"))
    if devices != list(range(ranks)):
        raise CompileError(f"a Mosaic kernel for {ranks} devices names devices {devices}")
    flags = next((_numbers(attributes[name]) for name in _SYMMETRIC if name in attributes), [])
    if len(flags) not in (0, len(places)):
        raise CompileError(
            f"a Mosaic kernel has symmetric-memory flags for {len(flags)} arrays, "
            f"expected {len(places)}"
        )
    symmetric = tuple(number for number, flag in enumerate(flags) if flag)
    barrier = not _is_true(attributes.get("skip_device_barrier"))
    return PeerTable(ranks, tuple(places), symmetric, multimem, barrier)


def _attributes(call: Any) -> Mapping[str, object]:
    return {entry.key: entry.value for entry in call.attributes.attrs}


def _is_true(attribute: Any) -> bool:
    return attribute is not None and bool(attribute.scalar.b)


def _numbers(attribute: Any) -> list[int]:
    if attribute is None:
        return []
    return [int(text) for text in bytes(attribute.str).decode().split(",") if text]
