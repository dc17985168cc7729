"""Determines the granularity at which accesses are tracked, from the accesses of a kernel."""

from __future__ import annotations

from pallasc.emulator.ptx.syntax import Kernel


def granule_shifts(kernel: Kernel, element_bytes: int) -> tuple[int, int]:
    """Return the granule sizes of shared and of global memory, as powers of two.

    A granule is as large as the smallest access of the kernel; all other accesses are multiples.
    Tensor copies of bytes may begin and end at any byte of global memory.

    Args:
        kernel: the kernel.
        element_bytes: size of the smallest element that a tensor map describes.
    """
    shared = 4
    everywhere = min(2, element_bytes)
    for instruction in kernel.instructions:
        parts = instruction.parts
        if parts[0] not in ("ld", "st", "atom", "red", "cp", "ldu", "multimem"):
            continue
        digits = "".join(c for c in parts[-1] if c.isdigit())
        if not digits or parts[-1][0] not in "bufs":
            if parts[0] == "cp":
                everywhere = min(everywhere, 2)
            continue
        if any(p.split("::")[0] in ("param", "local", "const") for p in parts):
            continue
        size = max(1, int(digits) // 8)
        if not any(p.startswith("global") for p in parts):
            shared = min(shared, size)
        if not any(p.startswith("shared") for p in parts):
            everywhere = min(everywhere, size)
    return shared.bit_length() - 1, everywhere.bit_length() - 1
