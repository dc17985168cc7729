"""Instructions of PTX that are refused, for the page of instructions: no list of all others."""

from __future__ import annotations

REFUSED: tuple[tuple[str, str], ...] = (
    ("alloca", "stack memory"),
    ("applypriority", "priorities of caches"),
    ("bar.red", "a barrier that reduces predicates"),
    ("brkpt", "a breakpoint"),
    ("brx.idx", "a branch by a table"),
    ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster",
     "a copy to several blocks without a tensor map"),
    ("cp.async.mbarrier.arrive.shared.b64", "an arrival when copies of lanes are complete"),
    ("createpolicy.fractional.L2::evict_first.b64", "a cache policy"),
    ("discard.global.L2", "what drops lines of a cache"),
    ("istypep.texref", "textures"),
    ("match.any.sync.b32", "lanes with the same value"),
    ("mbarrier.arrive_drop.shared.b64", "an arrival that lowers the count"),
    ("mbarrier.complete_tx.relaxed.cta.shared.b64", "bytes that a thread reports"),
    ("mbarrier.pending_count.b64", "what a state of an mbarrier holds"),
    ("mbarrier.test_wait.shared.b64", "a wait for a state and not for a parity"),
    ("multimem.cp.async.bulk.global.shared::cta.bulk_group", "copies to several devices"),
    ("pmevent", "events of profilers"),
    ("red.global.add.v2.f32", "atomic operations on vectors"),
    ("st.bulk.weak.shared::cta", "fills of shared memory"),
    ("stacksave.u64", "stack memory"),
    ("suld.b.1d.b32.trap", "surfaces"),
    ("tcgen05.shift.cta_group::1.down", "rows of tensor memory moved"),
    ("tensormap.replace.tile.global_address.global.b1024.b64", "tensor maps changed by kernels"),
    ("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
     "tensor maps changed by kernels"),
    ("tex.1d.v4.f32.s32", "textures"),
    ("vadd.u32.u32.u32", "video instructions"),
    ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16", "sparse products of warpgroups"),
    ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16", "the older matrix instructions"),
)  # fmt: skip
"""Mnemonics, and what they are."""
