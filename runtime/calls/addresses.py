"""Quick check of the addresses in a call: alignment, and no forbidden overlap.

Addresses change from launch to launch, and if there are more sets of addresses than bound plans,
many launches run this check. So the common cases are decided here in a few comparisons; all others
go to `Signature.check_addresses`, which decides and writes the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from pallasc.specs.artifacts.signature import Signature


class AddressCheck:
    """Address check for arrays of one signature.

    Args:
        name: the variant's name in messages.
        signature: its signature.
    """

    def __init__(self, name: str, signature: Signature) -> None:
        self._name = name
        self._signature = signature
        self._low_bits = _low_bits(signature.alignments)
        self._pairs = _pairs(signature)

    def __call__(self, pointers: Sequence[int]) -> None:
        """Check alignment and overlap.

        Raises:
            ArgumentError: an array is misaligned, or overlaps another.
        """
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits & self._low_bits:
            self._signature.check_addresses(self._name, pointers)
        for first, second, first_bytes, second_bytes in self._pairs:
            distance = pointers[second] - pointers[first]
            if -second_bytes < distance < first_bytes:
                self._signature.check_addresses(self._name, pointers)


def _low_bits(alignments: Sequence[int]) -> int:
    """Return the bits that must be zero in aligned addresses, all bits if alignments are unusual.

    With powers of two, only the largest matters: its multiples are multiples of the others.
    """
    usual = all(alignment & -alignment == alignment > 0 for alignment in alignments)
    return max(alignments, default=1) - 1 if usual else -1


def _pairs(signature: Signature) -> list[tuple[int, int, int, int]]:
    """Return the pairs of arrays that must not overlap, since one is written, with their sizes."""
    sizes = signature.sizes_bytes
    written = {*signature.updated, *range(len(signature.inputs), len(sizes))}
    return [
        (first, second, sizes[first], sizes[second])
        for second in range(len(sizes))
        for first in range(second)
        if written & {first, second} and sizes[first] and sizes[second]
    ]
