"""Mutants that do nothing wrong, each with the reason.

Those whose code is that of the unchanged kernel, byte for byte, are found without a list.
"""

from __future__ import annotations

import re

from kernel_mutants import Case

_AT_END = "the wait is the kernel's last; its end makes writes visible, and shared memory was read"

_REASONS: tuple[tuple[str, str], ...] = (
    (r"weaken wait_smem_to_gmem read-only$", _AT_END),
    (
        r"^jax_hopper_matmul\w*/_acc_scope:186:",
        "each later write waits for the copy from the same slot, which is the last but one",
    ),
)
"""Of the ids that a pattern is found in."""


def reason(case: Case) -> str:
    """Return why a mutant is equivalent to its kernel, "" if it is not."""
    return next((why for pattern, why in _REASONS if re.search(pattern, case.id)), "")
