"""Examples of PTX instructions that are not supported, for docs/opcodes.md; not a full list."""

from __future__ import annotations

REFUSED: tuple[tuple[str, str], ...] = (
    ("alloca", "stack memory"),
    ("applypriority", "cache eviction priorities"),
    ("bar.red", "a barrier with a reduction of predicates"),
    ("brkpt", "a breakpoint"),
    ("brx.idx", "an indirect branch"),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster",
     "a multicast copy without a tensor map"),
    ("cp.async.mbarrier.arrive.shared.b64", "an arrival triggered by `cp.async`"),
    ("createpolicy.fractional.L2::evict_first.b64", "a cache policy"),
    ("discard.global.L2", "discarding cache lines"),
    ("istypep.texref", "textures"),
    ("match.any.sync.b32", "matching values across lanes"),
    ("mbarrier.arrive_drop.shared.b64", "an arrival that lowers the expected count"),
    ("mbarrier.pending_count.b64", "reading the state of an mbarrier"),
    ("mbarrier.test_wait.shared.b64", "a wait for a state instead of a parity"),
    ("multimem.cp.async.bulk.global.shared::cta.bulk_group", "multimem copies"),
    ("pmevent", "performance monitor events"),
    ("red.global.add.v2.f32", "vector atomics"),
    ("st.bulk.weak.shared::cta", "bulk initialization of shared memory"),
    ("stacksave.u64", "stack memory"),
    ("suld.b.1d.b32.trap", "surfaces"),
    ("tcgen05.shift.cta_group::1.down", "shifting rows of tensor memory"),
    ("tensormap.replace.tile.global_address.global.b1024.b64", "tensor maps modified by kernels"),
    ("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
     "tensor maps modified by kernels"),
    ("tex.1d.v4.f32.s32", "textures"),
    ("vadd.u32.u32.u32", "video instructions"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16", "sparse `wgmma`"),
    ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16", "the older matrix instructions, `wmma`"),
)  # fmt: skip
"""Mnemonics, and their descriptions."""
