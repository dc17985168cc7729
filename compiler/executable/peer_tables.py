"""Read back which memory of its peers a kernel over several devices names on the host.

Its host function reads addresses from a table (`specs/artifacts/peers.py`) and builds tensor maps
on them. It is run once as each rank, with a table of sentinel addresses, so that every address says
which array of which rank it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pallasc.compiler.executable.host_stub import (
    MOST_SENTINELS,
    Argument,
    Recorded,
    TiledMap,
    locate,
    sentinel,
)
from pallasc.errors import CompileError
from pallasc.specs.artifacts.peers import HEAD_WORDS, MULTICAST


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
        raise CompileError("the host function launches another grid on each device")
    if len({len(one.arguments) for one in recorded}) != 1:
        raise CompileError("the host function passes other arguments on each device")
    arguments = zip(*(one.arguments for one in recorded), strict=True)
    return replace(first, arguments=tuple(_join(one, sentinels) for one in arguments))


def _join(arguments: Sequence[Argument], sentinels: PeerSentinels) -> Argument:
    first = arguments[0]
    for other in arguments:
        same_maps = [at for at, _ in other.maps] == [at for at, _ in first.maps]
        if (other.address, other.data) != (first.address, first.data) or not same_maps:
            raise CompileError("the host function passes other arguments on each device")
    maps = []
    for place, (at, _) in enumerate(first.maps):
        maps.append((at, _join_maps([one.maps[place][1] for one in arguments], sentinels)))
    return replace(first, maps=tuple(maps))


def _join_maps(maps: Sequence[TiledMap], sentinels: PeerSentinels) -> TiledMap:
    found = [sentinels.own(one.address, rank) for rank, one in enumerate(maps)]
    owned = {replace(one, address=at) for one, (at, _) in zip(maps, found, strict=True)}
    if len(owned) != 1:
        raise CompileError("the host function builds other tensor maps on each device")
    peers = tuple(peer for _, peer in found)
    return replace(owned.pop(), peers=None if peers == tuple(range(len(maps))) else peers)
