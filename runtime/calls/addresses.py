"""A quick look at the addresses of a call: are they aligned, and do the arrays lie apart?

What a kernel is given changes from launch to launch, and where there are more sets of addresses
than bound plans, this look is part of many launches. So what is usual is told here in a few
comparisons; what is not goes to `Signature.check_addresses`, which decides and has the words.
"""

from __future__ import annotations

from collections.abc import Sequence

from pallasc.specs.artifacts.signature import Signature


class AddressCheck:
    """Checks the addresses of arrays of one signature.

    Args:
        name: what messages call the variant.
        signature: what it takes and gives.
    """

    def __init__(self, name: str, signature: Signature) -> None:
        self._name = name
        self._signature = signature
        self._low_bits = _low_bits(signature.alignments)
        self._pairs = _pairs(signature)

    def __call__(self, pointers: Sequence[int]) -> None:
        """Check alignment and overlap.

        Raises:
            ArgumentError: an array lies where it may not.
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
    """Return the bits that are zero in aligned addresses: all of them where nothing says which.

    Of powers of two, the largest decides: its multiples are multiples of the others.
    """
    usual = all(alignment & -alignment == alignment > 0 for alignment in alignments)
    return max(alignments, default=1) - 1 if usual else -1


def _pairs(signature: Signature) -> list[tuple[int, int, int, int]]:
    """Return which two arrays must lie apart, as one of them is written, and their sizes."""
    sizes = signature.sizes_bytes
    written = {*signature.updated, *range(len(signature.inputs), len(sizes))}
    return [
        (first, second, sizes[first], sizes[second])
        for second in range(len(sizes))
        for first in range(second)
        if written & {first, second} and sizes[first] and sizes[second]
    ]
