"""What JAX 0.10's Mosaic lacks before Hopper, and how it is given here.

Mosaic 0.10 picks one thread of a block with `elect.sync` and fences barrier initialisation for
clusters in every kernel; neither exists before sm_90, and LLVM aborts the process. Later versions
compare the thread's index instead, and fence only where there are clusters. The same is done here,
in compiling processes for an architecture below sm_90 only.
"""

from __future__ import annotations

from typing import Any


def adapt_before_hopper() -> None:
    """Replace the two operations in this process's Mosaic."""
    from jax._src.lib.mlir.dialects import arith, nvvm
    from jax.experimental.mosaic import gpu
    from jax.experimental.mosaic.gpu import utils

    subset = utils.ThreadSubset
    group_threads = {subset.WARP: 32, subset.WARPGROUP: 128}

    def first_thread(scope: Any = subset.BLOCK) -> Any:
        index = utils.thread_idx()
        if scope in group_threads:
            index = arith.remui(index, utils.c(group_threads[scope], index.type))
        zero = utils.c(0, index.type)
        return arith.cmpi(arith.CmpIPredicate.eq, index, zero)

    gpu.single_thread_predicate = first_thread
    utils.single_thread_predicate = first_thread
    mosaic: Any = nvvm
    mosaic.fence_mbarrier_init = lambda *_, **__: None
