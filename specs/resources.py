"""What a variant takes of the machine, in six numbers: what a lock keeps and gates compare."""

from __future__ import annotations

from typing import NamedTuple


class Resources(NamedTuple):
    """The resources of a variant; None for what is not known.

    Of several kernels each number is that of the kernel that takes most.

    Attributes:
        registers: registers of a thread.
        spill_bytes: bytes of spill stores and spill loads of a thread together.
        stack_bytes: stack frame of a thread.
        smem_bytes: static and dynamic shared memory of a block.
        occupancy: warps that a multiprocessor holds at once, of the launch that has fewest.
        cubin_bytes: size of all cubins of the variant.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    smem_bytes: int | None = None
    occupancy: int | None = None
    cubin_bytes: int | None = None


WORDS = {
    "registers": "registers",
    "spill_bytes": "spill bytes",
    "stack_bytes": "stack bytes",
    "smem_bytes": "shared memory bytes",
    "occupancy": "resident warps",
    "cubin_bytes": "cubin bytes",
}
"""Words for each number, as in "takes 40 registers"."""

MORE_IS_BETTER = frozenset({"occupancy"})
"""The numbers of which a variant should have many; of the others few."""
