"""What a kernel over several devices needs to know of its peers.

Such a kernel finds the memory of the other devices in a table, `PeerTable`, that whoever launches
it has to write: an array of 64-bit words. `rank` is the number of a device in the mesh, row-major.

========================== ===================================================================
word                       holds
========================== ===================================================================
0                          the rank of the device that the table is for
1, 2, 3                    nothing that a kernel reads
4 + ranks * a + r          the address of array `a` on rank `r`
4 + ranks * arrays + a     the multicast address of array `a`, 0 where it has none
========================== ===================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD_WORDS = 4
"""Words in front of the addresses."""

MULTICAST = -1
"""Stands for a rank where a tensor map shows the multicast address."""


@dataclass(frozen=True, slots=True)
class Peers:
    """A kernel parameter: the 8-byte address of the launch's table of peers, on the device."""


@dataclass(frozen=True, slots=True)
class PeerTable:
    """The content of the table of a launch.

    Attributes:
        ranks: how many devices there are.
        arrays: the arrays of the table in order, each a buffer and a byte offset.
        symmetric: numbers of the arrays that must lie in memory which all devices can reach, at
            the same place of an allocation each has made; empty where any memory of a peer does.
        multicast: the kernel reads or writes multicast addresses (`multimem`), so the devices must
            share a multicast object.
        barrier: the devices have to wait for each other before they launch.
    """

    ranks: int
    arrays: tuple[tuple[int, int], ...]
    symmetric: tuple[int, ...] = ()
    multicast: bool = False
    barrier: bool = True

    @property
    def words(self) -> int:
        """Length of the table."""
        return HEAD_WORDS + (self.ranks + 1) * len(self.arrays)
