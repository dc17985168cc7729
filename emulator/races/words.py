"""Names of asynchronous operations in messages, and of the waits for them."""

from __future__ import annotations

from pallasc.emulator.machine.block import Asynchronous
from pallasc.emulator.races.scopes import WEAK
from pallasc.emulator.races.threads import Event

NAMES = {
    "wgmma": "the wgmma",
    "cp.async": "the copy",
    "tcgen05.mma": "the tcgen05.mma",
    "tcgen05.cp": "the copy",
    "tcgen05.commit": "the commit",
    "tcgen05.ld": "the load",
    "tcgen05.st": "the store",
    "a bulk store": "the bulk store",
    "a tensor load": "the tensor load",
    "a bulk copy": "the bulk copy",
    "st.async": "the asynchronous store",
    "red.async": "the asynchronous reduction",
}


def wait_of(operation: Asynchronous) -> str:
    """Return the name of the wait for an operation."""
    return {
        "wgmma": "wgmma.wait_group",
        "cp.async": "cp.async.wait_group",
        "a bulk store": "cp.async.bulk.wait_group",
        "tcgen05.mma": "wait on the mbarrier of a tcgen05.commit",
        "tcgen05.cp": "wait on the mbarrier of a tcgen05.commit",
        "tcgen05.ld": "tcgen05.wait::ld",
        "tcgen05.st": "tcgen05.wait::st",
    }.get(operation.what, "wait on the mbarrier of the copy")


def is_replicated(first: Event, second: Event, *, shared: bool) -> bool:
    """Return True if several execute the same store: no race if they write the same bytes.

    In Mosaic's kernels, every warp of a block stores a scalar, and every warp or block stores the
    same rows.
    """
    if first.access.instruction is not second.access.instruction or first.scope != WEAK:
        return False
    if not shared:
        return True
    plain = first.operation is None and second.operation is None
    return plain and first.warp.block is second.warp.block
