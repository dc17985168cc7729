"""What a launch does, counted along the ways of its threads."""

from typing import Any

import pytest

from pallasc.analysis.threads import MOST_STEPS
from pallasc.analysis.work import FIELDS, Work, work_of
from pallasc.specs.artifacts.plan import Bytes, Dim3, Launch, TensorMap

PTX = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 k_param_0[256], .param .u64 k_param_1)
{{
.reg .pred %p<9>;
.reg .b32 %r<20>;
.reg .b64 %rd<9>;
{body}
ret;
}}
"""
WGMMA = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r10,%r11,%r12,%r13}, "
    "%rd1, %rd2, 1, 1, 1, 0, 1;"
)
BULK = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 512;"
MAPS = """mov.b64 %rd3, k_param_0;
cvta.param.u64 %rd4, %rd3;
add.s64 %rd5, %rd4, 128;
elect.sync %r1|%p1, -1;
"""
TMA = (
    "{guard} cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
    "[%r2], [{base}, {{%r3,%r4}}], [%r5];"
)
LOOP = """mov.b32 %r1, 0;
again:
{body}
add.s32 %r1, %r1, 1;
setp.lt.s32 %p3, %r1, {count};
@%p3 bra again;
"""


def _map(*box: int, dtype: str = "float16", **changes: Any) -> TensorMap:
    sizes = tuple(1024 for _ in box)
    return TensorMap(0, 0, dtype, sizes, (2048,) * (len(box) - 1), box, (1,) * len(box), **changes)


def _work(
    body: str, *, grid: Dim3 = (1, 1, 1), block: Dim3 = (128, 1, 1), cluster: Dim3 | None = None
) -> Work:
    parameters = (Bytes(256, "", ((0, _map(64, 8)), (128, _map(32, 4, dtype="float32")))),)
    launch = Launch("k", "", grid, cluster, block, 0, False, parameters)
    return work_of(launch, PTX.format(body=body))


def _flops(body: str, **launch: Any) -> int | None:
    flops = _work(body, **launch).tensor_flops
    return None if flops is None else sum(flops.values())


ONE = 2 * 64 * 8 * 16


def test_a_warpgroup_does_a_product_together() -> None:
    assert _flops(WGMMA) == ONE
    assert _flops(WGMMA, block=(256, 1, 1), grid=(3, 2, 1)) == ONE * 2 * 6
    body = f"""mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 7;
    shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;
    setp.eq.b32 %p1, %r3, 0;
    @%p1 bra other;
    {WGMMA}
    other:
    """  # the first of three warpgroups does something else
    assert _flops(body, block=(384, 1, 1)) == ONE * 2


def test_loops_count_as_often_as_they_run() -> None:
    assert _flops(LOOP.format(body=WGMMA, count=7)) == ONE * 7
    inner = LOOP.format(body=WGMMA, count=5).replace("%r1", "%r2").replace("again", "inner")
    outer = LOOP.format(body=inner.replace("%p3", "%p4"), count=7)
    assert _flops(outer) == ONE * 35


def test_a_loop_over_tiles_that_blocks_share_counts_each_tile_once() -> None:
    tiles = """mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    setp.ge.s32 %p2, %r1, 10;
    @%p2 bra done;
    again:
    {body}
    add.s32 %r1, %r1, %r2;
    setp.lt.s32 %p3, %r1, 10;
    @%p3 bra again;
    done:
    """
    for blocks in (1, 3, 4, 16):
        assert _flops(tiles.format(body=WGMMA), grid=(blocks, 1, 1)) == ONE * 10


def test_waiting_takes_no_time_and_an_elected_lane_copies_once() -> None:
    wait = "try:\nmbarrier.try_wait.parity.shared.b64 %p5, [%r5], %r6, %r7;\n@!%p5 bra try;\n"
    work = _work(MAPS + wait + TMA.format(guard="@%p1", base="%rd5"))
    # One lane of each of four warps, a box of 32 x 4 floats.
    assert work.tma_load_bytes == 4 * 32 * 4 * 4
    assert (work.tma_store_bytes, work.tensor_flops) == (0, {})
    store = "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd4, {%r3,%r4}], [%r2];"
    assert _work(MAPS + store, block=(32, 1, 1)).tma_store_bytes == 64 * 8 * 2


def test_a_loop_that_waits_for_data_and_counts_nothing_is_left() -> None:
    wait = (
        "spin:\nld.acquire.sys.global.u32 %r9, [%rd1];\nsetp.ne.s32 %p5, %r9, 1;\n@%p5 bra spin;\n"
    )
    assert _flops(wait + WGMMA) == ONE
    # What the loop leaves behind is not known.
    after = "setp.eq.s32 %p6, %r9, 0;\n@%p6 bra end;\n" + WGMMA + "\nend:\n"
    assert _flops(wait + after) is None
    # One that copies while it waits copies an unknown number of bytes.
    assert _work(wait.replace("setp", f"{BULK}\nsetp")).tma_store_bytes is None
    elected = f"elect.sync %r1|%p1, -1;\n@%p1 bra end;\n{BULK}\nend:\n"
    assert _work(elected).tma_store_bytes == 4 * 31 * 512


READ = "ld.global.b32 %r9, [%rd1];"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"{READ}\n{LOOP.format(body=WGMMA, count='%r9')}", "depends on data"),
        (f"{READ}\nsetp.ne.s32 %p1, %r9, 0;\n@%p1 {BULK}", "depends on data"),
        (f"mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 5;\n@%p1 {BULK}", "or on the lane"),
        (LOOP.format(body="", count=2_000_000_000) + WGMMA, f"{MOST_STEPS:,} steps"),
        (f"again:\nbra again;\n{WGMMA}", f"{MOST_STEPS:,} steps"),
    ],
)
def test_where_nothing_can_be_counted_it_says_why(body: str, why: str) -> None:
    work = _work(body)
    assert (work.tensor_flops, work.tma_load_bytes, work.tma_store_bytes) == (None, None, None)
    assert tuple(work.reasons) == FIELDS
    assert all(why in reason for reason in work.reasons.values())
