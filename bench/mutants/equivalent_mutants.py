"""Mutants that are equivalent to their kernel, each with the reason.

Mutants that compile to the same bytes as the kernel are recognized without this list.
"""

import re

from kernel_mutants import Case

_AT_END = "the last wait: shared memory has been read, and the kernel's end makes writes visible"

_FOR_SPEED = "the barrier lets warpgroups take turns at the tensor cores, only for speed"
_TWO_WAITS = "the two statements that change places do not depend on each other"
_SAME_TURNS = "both warpgroups take one turn more, or fewer, at the tensor cores, only for speed"
_NEXT_USE = (
    "at these sizes, the mutant waits for the next use of the other slot, which follows the last "
    "use of its own slot; with more steps, it deadlocks"
)

REASONS: tuple[tuple[str, str], ...] = (
    (r"weaken wait_smem_to_gmem read-only$", _AT_END),
    (
        r"^jax_hopper_matmul/_acc_scope:186:",
        "each later write waits for the last copy but one, which reads the same slot",
    ),
    (
        r"^jax_blackwell_matmul/_:187:",
        "each copy has read its slot when the next write begins",
    ),
    (r"^jax_blackwell_matmul/mn_loop:122:slot rem\+1$", "all users of the two slots exchange them"),
    (
        r"^blackwell_matmul/multiply_all:118:earlier",
        "the warp that copies waits for all products before the block reads their sum",
    ),
    (
        r"^blackwell_matmul/(drain:105:(delete|slot rem\+1)|copy_all:113:count)",
        "the reader of the sum also waits for the last products, and nothing refills their slots",
    ),
    (r"^jax_attention/\w+:\d+:(earlier|later) perform_schedule_barrier$", _FOR_SPEED),
    (r"^jax_attention/compute_qk:\d+:twice perform_schedule_barrier$", _SAME_TURNS),
    (r"^jax_attention/compute_qk:169:delete perform_schedule_barrier$", _SAME_TURNS),
    (r"^jax_attention/end_softmax_barriers:192:later barrier_arrive$", _FOR_SPEED),
    (r"^jax_attention/end_softmax_barriers:193:later barrier_wait$", _TWO_WAITS),
    (r"^jax_attention/_kv_loop:27[24]:slot [kv]_consumed_barriers\[0\]$", _NEXT_USE),
    (
        r"^jax_attention/_kv_loop:274:earlier barrier_wait$",
        "the copy of K begins later, and the wait before it does not depend on this copy",
    ),
    (r"^jax_attention/kv_loop:200:earlier", _TWO_WAITS),
    (r"^(dequant|fused)_matmul/\w+:(104|122):earlier barrier_wait$", _TWO_WAITS),
    (
        r"^jax_hopper_matmul/_acc_scope:192:",
        "at these sizes no slot is filled twice in a tile",
    ),
)
"""Patterns of mutants' ids, and why the mutants are equivalent."""


def reason(case: Case) -> str:
    """Return why a mutant is equivalent to its kernel, "" if it is not."""
    return next((why for pattern, why in REASONS if re.search(pattern, case.id)), "")
