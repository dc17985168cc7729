"""The static level reports what is certain of barriers, waits and bounds, and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from static_kernels import (
    EXAMPLES,
    H100,
    RESOURCES,
    edited,
    found_in,
    plan_of,
    ptx_of,
    rules_in,
)

from pallasc.checks.static.check import check
from pallasc.specs.artifacts.plan import (
    Copy,
)

BYTES = "mov.b32 %r2, 4096;"
UNKNOWN = "ld.global.b32 %r2, [%x];"


def test_bytes_that_are_not_known_are_not_reported() -> None:
    assert rules_in(edited("transaction-bytes", (BYTES, UNKNOWN))) == set()


def test_each_of_128_threads_may_announce_a_128th() -> None:
    everyone = ("@%leader mbarrier.arrive", "mbarrier.arrive")
    share = edited("transaction-bytes", (BYTES, "mov.b32 %r2, 64;"), everyone)
    assert "transaction-bytes" not in rules_in(share)
    whole = edited("transaction-bytes", (BYTES, "mov.b32 %r2, 8192;"), everyone)
    assert "transaction-bytes" in rules_in(whole)


@pytest.mark.parametrize(
    ("move", "guard", "expected"),
    [
        ("mov.b32 %r2, 4096;", "setp.ne.b32 %q, %r8, 0;", set()),
        ("mov.b32 %r2, 4096;", "setp.ne.b32 %q, 1, 1;", {"transaction-bytes"}),
        ("mov.b32 %r2, 8192;", "setp.ne.b32 %q, 1, 1;", set()),
        ("mov.b32 %r2, 4096;", "setp.ne.b32 %q, 1, 0;", set()),
    ],
)
def test_a_guard_that_is_not_known_leaves_two_values(
    move: str, guard: str, expected: set[str]
) -> None:
    declared = ".reg .pred %q;\n.reg .b32 %r8;\nld.global.b32 %r8, [%x];"
    text = f"{declared}\n{guard}\n{move}\n@%q mov.b32 %r2, 8192;"
    assert rules_in(edited("transaction-bytes", (BYTES, text))) == expected


@pytest.mark.parametrize(
    ("clock", "bits"), [("%clock", 32), ("%globaltimer", 64), ("%clock64", 64)]
)
def test_a_clock_shows_another_time_at_each_reading(clock: str, bits: int) -> None:
    text = (
        f".reg .b{bits} %a, %b;\nmov.b{bits} %a, {clock};\nmov.b{bits} %b, {clock};\n"
        f"sub.s{bits} %b, %b, %a;\nadd.s{bits} %b, %b, 4096;\n"
        + ("mov.b32 %r2, %b;" if bits == 32 else "cvt.u32.u64 %r2, %b;")
    )
    assert rules_in(edited("transaction-bytes", (BYTES, text))) == set()
    same = text.replace(clock, "%laneid" if bits == 32 else "0")
    assert rules_in(edited("transaction-bytes", (BYTES, same))) == {"transaction-bytes"}


EXTRACTED = "bfe.u64 %rd3, %rd1, 4, 14;"


@pytest.mark.parametrize(
    ("extract", "expected"),
    [
        (EXTRACTED, {"operand-overwritten"}),
        (EXTRACTED.replace("u64", "s64"), set()),
        (EXTRACTED.replace("14", "13"), set()),
        (EXTRACTED.replace("4, 14", "3, 14"), set()),
        (EXTRACTED.replace("14", "62"), set()),
    ],
)
def test_a_descriptor_is_known_only_with_all_bits_of_the_address(
    extract: str, expected: set[str]
) -> None:
    shift_and_mask = "shr.u64 %rd2, %rd1, 4;\nand.b64 %rd3, %rd2, 16383;"
    assert rules_in(edited("operand-overwritten", (shift_and_mask, extract))) == expected


def test_bits_of_a_number_that_is_known_are_known() -> None:
    announced = "mov.b32 %r9, 0x12000F;\nbfe.u32 %r2, %r9, 8, 14;"  # 0x1200: 4608 bytes
    assert "transaction-bytes" in rules_in(edited("transaction-bytes", (BYTES, announced)))
    right = announced.replace("0x12000F", "0x20000F")  # 0x2000: 8192 bytes
    assert rules_in(edited("transaction-bytes", (BYTES, right))) == set()


def test_a_cluster_has_barriers_that_other_blocks_signal() -> None:
    (_, wrong), _ = EXAMPLES["transaction-bytes"]
    assert rules_in(wrong, cluster=(2, 1, 1), grid=(2, 1, 1)) == set()


def test_arrivals_of_threads_that_are_not_known_are_not_counted() -> None:
    condition = "ld.global.b32 %r9, [%x];\nsetp.eq.s32 %p2, %r9, 0;\n@%p2 mbarrier.arrive.rel"
    assert rules_in(edited("arrivals", ("mbarrier.arrive.rel", condition))) == set()


def test_a_condition_is_known_for_some_threads_where_it_is_not_for_others() -> None:
    alone = """
    ld.global.b32 %r9, [%x];
    setp.gt.u32 %p2, %thread, 99;
    setp.lt.or.s32 %p3, %r9, 2, %p2;
    @%p3 bra OVER;
    mbarrier.arrive"""
    behind = ("_, [%smem], 1;", "_, [%smem], 1;\nOVER:")
    assert rules_in(edited("arrivals", ("mbarrier.arrive", alone), behind)) == set()
    fewer = ("%thread, 99", "%thread, 63")
    assert rules_in(edited("arrivals", ("mbarrier.arrive", alone), behind, fewer)) == {"arrivals"}


def test_a_barrier_that_takes_more_than_ever_arrive_is_told_with_both_numbers() -> None:
    (finding,) = found_in(edited("arrivals", ("mov.b32 %r1, 100;", "mov.b32 %r1, 384;")))
    assert "expects 384 arrivals, but there are only 128" in finding.message


def test_a_wait_that_nobody_arrives_for() -> None:
    arrive = "mbarrier.arrive.release.cta.shared::cta.b64 _, [%smem], 1;\n"
    assert rules_in(edited("arrivals", (arrive, ""), which=1)) == {"arrivals"}
    # The phase before the first is complete.
    passes = edited("arrivals", (arrive, ""), ("mov.b32 %r2, 0;", "mov.b32 %r2, 1;"), which=1)
    assert rules_in(passes) == set()


def test_another_warp_may_wait_and_let_the_others_go() -> None:
    one = ("WAIT:", "setp.lt.u32 %p2, %thread, 32;\n@!%p2 bra DONE;\nWAIT:")
    done = ("@!%p1 bra WAIT;", "@!%p1 bra WAIT;\nDONE:\nbar.sync 0;")
    assert rules_in(edited("read-before-wait", one, done, which=1)) == set()


def test_a_wait_after_the_read_is_too_late() -> None:
    load = "ld.shared.b32 %r5, [%r3];"
    late = edited("read-before-wait", (load, ""), ("WAIT:", f"{load}\nWAIT:"), which=1)
    assert rules_in(late) == {"read-before-wait"}


def test_a_store_elsewhere_needs_no_fence() -> None:
    assert rules_in(edited("missing-proxy-fence", ("[%r2], %thread", "[%r2+8192], %thread"))) == (
        set()
    )


def test_a_fence_that_only_some_paths_pass_is_not_missed_for_certain() -> None:
    maybe = "ld.global.b32 %r9, [%x];\nsetp.eq.s32 %p2, %r9, 0;\n@%p2 bra OVER;\n"
    some = edited(
        "missing-proxy-fence",
        ("fence.proxy.async.shared::cta;", f"{maybe}fence.proxy.async.shared::cta;\nOVER:"),
        which=1,
    )
    assert rules_in(some) == set()


def test_the_last_iteration_of_a_loop_may_leave_something() -> None:
    body = """
    mov.b32 %r1, 0;
    mov.b32 %r3, 0;
    LOOP:
    st.shared.b32 [%smem], %thread;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    @%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {%r3, %r3}], [%smem];
    cp.async.bulk.commit_group;
    add.s32 %r1, %r1, 1;
    setp.ne.s32 %p1, %r1, 4;
    @%p1 bra LOOP;
    cp.async.bulk.wait_group 0;
    """
    (finding,) = found_in(body)
    assert finding.rule == "bulk-store-source"
    wait = ("add.s32 %r1", "cp.async.bulk.wait_group.read 0;\nbar.sync 0;\nadd.s32 %r1")
    assert rules_in(body.replace(*wait)) == set()


def test_a_wait_for_all_but_one_group_lets_the_last_one_go_on() -> None:
    both = """
    mov.b32 %r3, 0;
    add.s32 %r4, %smem, 8192;
    @%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {%r3, %r3}], [%smem];
    cp.async.bulk.commit_group;
    @%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {%r3, %r3}], [%r4];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 1;
    bar.sync 0;
    st.shared.b32 [WHERE], %thread;
    cp.async.bulk.wait_group 0;
    """
    assert rules_in(both.replace("WHERE", "%smem")) == set()
    assert rules_in(both.replace("WHERE", "%r4")) == {"bulk-store-source"}


def test_a_product_that_was_not_committed_is_not_waited_for() -> None:
    body = edited("accumulator-before-wait", ("wgmma.commit_group.sync.aligned;\n", ""), which=1)
    (finding,) = found_in(body)
    assert finding.message == "the accumulator of a wgmma that is not committed is used"


def test_shared_memory_has_an_end() -> None:
    assert rules_in("st.shared.b32 [%smem+65532], %thread;") == set()
    (finding,) = found_in("st.shared.b32 [%smem+65536], %thread;")
    assert finding.message == (
        "an access ends at byte 65540 of the block's shared memory, which has 65536 bytes"
    )


BOX = """
mov.u32 %r5, %ctaid.x;
shl.b32 %r6, %r5, 6;
mov.b32 %r3, 0;
@%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {%r3, %r6}], [%smem];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
"""


def test_a_grid_that_walks_off_its_array_is_told_with_the_dimension() -> None:
    assert rules_in(BOX, grid=(16, 1, 1)) == set()
    (finding,) = found_in(BOX, grid=(32, 1, 1))
    assert finding.message == (
        "a copied box begins at index 1984 of dimension 0, which has 1024 elements: the whole box "
        "is out of bounds"
    )


def test_a_loop_that_walks_off_its_array_is_counted() -> None:
    body = """
    mov.b32 %r1, 0;
    mov.b32 %r3, 0;
    LOOP:
    @%leader cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {%r3, %r1}], [%smem];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    add.s32 %r1, %r1, 64;
    setp.ne.s32 %p1, %r1, LAST;
    @%p1 bra LOOP;
    """
    assert rules_in(body.replace("LAST", "1024")) == set()
    assert rules_in(body.replace("LAST", "1088")) == {"out-of-bounds"}


def test_an_access_behind_a_condition_is_not_certain() -> None:
    body = """
    setp.lt.u32 %p1, %thread, 64;
    mul.wide.u32 %rd1, %thread, 16;
    add.s64 %rd2, %x, %rd1;
    @%p1 ld.global.b32 %r1, [%rd2];
    ld.global.b32 %r9, [%x];
    setp.lt.u32 %p2, %r9, 64;
    @%p2 bra OVER;
    ld.global.b32 %r2, [%rd2];
    OVER:
    """
    assert rules_in(body) == set()


def test_a_plan_that_copies_into_an_output_writes_it() -> None:
    body = "ld.global.b32 %r1, [%y];"
    plan = plan_of(body)
    copied = dataclasses.replace(plan, steps=(*plan.steps, Copy(1, 0, 2, 0, 1024)))
    assert check(plan, [RESOURCES], ptx_of(body), H100)
    assert check(copied, [RESOURCES], ptx_of(body), H100) == []


def test_a_kernel_without_ptx_may_write_everything() -> None:
    assert check(plan_of("%y"), [RESOURCES], {}, H100) == []


PIPELINE = """
mov.b32 %r1, 1;
@%leader mbarrier.init.shared::cta.b64 [%smem], %r1;
bar.sync 0;
mov.b32 %r2, 8192;
mov.b32 %r4, 0;
mov.b32 %r5, 0;
mov.b32 %r6, 0;
add.s32 %r3, %smem, 1024;
LOOP:
setp.gt.u32 %p1, %r5, 17;
@%p1 bra NEXT;
shl.b32 %r7, %r6, 6;
@%leader mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%smem], %r2;
@%leader cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes
  [%r3], [%map, {%r4, %r7}], [%smem];
NEXT:
add.s32 %r8, %r6, 1;
setp.eq.s32 %p2, %r8, STEPS;
selp.b32 %r6, 0, %r8, %p2;
add.s32 %r5, %r5, 1;
setp.ne.s32 %p3, %r5, 20;
@%p3 bra LOOP;
"""
"""A loop as that of a pipeline: it copies in some iterations, and its index starts again."""


def test_a_pipeline_whose_index_starts_again_is_followed_step_by_step() -> None:
    (finding,) = [f for f in found_in(PIPELINE.replace("STEPS", "32")) if f.rule == "out-of-bounds"]
    assert "begins at index 1088 of dimension 0" in finding.message  # of 1024, in the last copy
    assert "out-of-bounds" not in rules_in(PIPELINE.replace("STEPS", "16"))
    # What is copied only perhaps is not reported.
    unknown = PIPELINE.replace("STEPS", "32").replace(
        "setp.gt.u32 %p1, %r5", "setp.gt.u32 %p1, %r9"
    )
    loaded = "ld.global.b32 %r9, [%x];" + unknown
    assert "out-of-bounds" not in rules_in(loaded)
