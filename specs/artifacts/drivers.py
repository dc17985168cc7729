"""Which driver a cubin needs at least.

"Minor Version Compatibility" in the CUDA compatibility guide: a cubin of toolkit 13.x runs on every
driver for CUDA 13, one of 12.x on every driver from CUDA 12 on; an architecture needs the driver
that brought it.
"""

from __future__ import annotations

from pallasc.errors import CompileError
from pallasc.specs.gpus import ARCHITECTURES, LINUX_DRIVERS


def minimum_driver(*, toolkit: str, sm: int) -> dict[str, str]:
    """Return `cuda` (driver API) and `linux` (driver package) that a cubin needs.

    Args:
        toolkit: CUDA version of the assembler, "13.5".
        sm: 10 × major + minor of the compute capability.

    Raises:
        CompileError: the toolkit's major version was not tested.
    """
    major = toolkit.partition(".")[0]
    if major not in ("12", "13"):
        raise CompileError(
            f"the cubin is from CUDA toolkit {toolkit or 'unknown'}; tested are 12 and 13"
        )
    known = ARCHITECTURES.get(divmod(sm, 10))
    api = max((int(major), 0), known.driver if known else (12, 0))
    return {"cuda": f"{api[0]}.{api[1]}", "linux": LINUX_DRIVERS[api]}
