"""Resource usage of a variant in six numbers, recorded in locks and compared with budgets."""

from __future__ import annotations

from typing import NamedTuple


class Resources(NamedTuple):
    """Resource usage of a variant; None for unknown.

    With several kernels, each number is the one of the most demanding kernel.

    Attributes:
        registers: registers per thread.
        spill_bytes: bytes of spill stores plus spill loads per thread.
        stack_bytes: stack frame per thread.
        smem_bytes: static plus dynamic shared memory per block.
        occupancy: resident warps per multiprocessor, the minimum over all launches.
        cubin_bytes: total size of the variant's cubins.
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
"""Numbers that should be high; the others should be low."""
