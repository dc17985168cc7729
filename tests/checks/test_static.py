"""The static level: each rule on the examples of its page, on seeded bugs, and on sound kernels."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pallasc.checks.findings import Finding, LevelResult
from pallasc.checks.static.check import check, notes_of
from pallasc.checks.static.level import run
from pallasc.checks.static.machine_code import local_accesses
from pallasc.checks.static.resources import occupancy
from pallasc.checks.static.rules import RULES
from pallasc.checks.subject import Options, Subject
from pallasc.compiler.lowering.resources import parse_report
from pallasc.compiler.toolchain.toolchain import find_disassembler, find_toolchain
from pallasc.specs.artifacts.artifact import KernelResources
from pallasc.specs.artifacts.plan import (
    Binding,
    Buffer,
    Bytes,
    Copy,
    Launch,
    LaunchPlan,
    Pointer,
    TensorMap,
)
from pallasc.specs.gpus import MODELS, Target

PAGE = Path(__file__).resolve().parents[2] / "docs" / "check-rules.md"
H100 = MODELS["h100-sxm"]
HEAD = """\
.version 8.7
.target sm_90a
.address_size 64
.visible .entry kernel(
.param .align 64 .b8 kernel_param_0[128],
.param .u64 kernel_param_1,
.param .u64 kernel_param_2
)
.maxntid 128, 1, 1
{
.reg .pred %p<9>;
.reg .pred %leader;
.reg .pred %elected;
.reg .b32 %r<99>;
.reg .b32 %thread;
.reg .b32 %smem;
.reg .b64 %rd<99>;
.reg .b64 %map;
.reg .b64 %x;
.reg .b64 %y;
.shared .align 16 .b8 __dynamic_shmem__0;
mov.u32 %thread, %tid.x;
elect.sync %r98|%elected, -1;
shr.u32 %r97, %thread, 5;
setp.eq.and.b32 %leader, %r97, 0, %elected;
mov.b64 %rd98, __dynamic_shmem__0;
cvt.u32.u64 %smem, %rd98;
mov.b64 %rd97, kernel_param_0;
cvta.param.u64 %map, %rd97;
ld.param.b64 %x, [kernel_param_1];
ld.param.b64 %y, [kernel_param_2];
"""
MAP = TensorMap(
    buffer=0, offset=0, dtype="bfloat16", dims=(64, 1024), strides=(128,), box=(64, 64),
    element_strides=(1, 1),
)  # fmt: skip
RESOURCES = KernelResources("kernel", "0" * 64, "1" * 64, "mosaic", 40, 0, 0, 0, 0, 65536, 1)
FIRST_LINE = HEAD.count("\n") + 1


def plan_of(body: str, tensor: TensorMap = MAP, **launched: Any) -> LaunchPlan:
    """Return a plan that launches a kernel; it has the output `y` where the body uses it."""
    launch = Launch(
        "kernel", "0" * 64, (1, 1, 1), None, (128, 1, 1), 65536, False,
        (Bytes(128, "", ((0, tensor),)), Pointer(1, 0), Pointer(2, 0)),
    )  # fmt: skip
    launch = dataclasses.replace(launch, **launched)
    buffers = (Buffer("input", 131072), Buffer("input", 1024), Buffer("output", 1024))
    outputs = (Binding("y", "f32", (256,), 2),) if "%y" in body else ()
    inputs = (Binding("a", "bf16", (1024, 64), 0), Binding("x", "f32", (256,), 1))
    return LaunchPlan(buffers, inputs, outputs, (launch,), [0, 1], [0])


def ptx_of(body: str) -> dict[tuple[str, str], str]:
    """Return the PTX of a kernel with a body, by its cubin and name."""
    return {("0" * 64, "kernel"): f"{HEAD}{body.strip()}\nret;\n}}\n"}


def found_in(body: str, target: Target = H100, **launched: Any) -> list[Finding]:
    """Return what the level finds in a kernel with a body."""
    return check(plan_of(body, **launched), [RESOURCES], ptx_of(body), target)


def rules_in(body: str, **launched: Any) -> set[str]:
    """Return the rules that a kernel with a body breaks."""
    return {finding.rule for finding in found_in(body, **launched)}


def examples() -> dict[str, list[tuple[str, str]]]:
    """Return the examples of the page by rule: language and text, the wrong one first."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        section.partition("\n")[0]: re.findall(r"```(ptx|json)\n(.*?)```", section, re.DOTALL)
        for section in sections
    }


EXAMPLES = examples()


def test_every_rule_has_a_section_and_two_examples() -> None:
    assert list(EXAMPLES) == [rule.name for rule in RULES]
    assert {rule for rule, found in EXAMPLES.items() if len(found) != 2} == set()


@pytest.mark.parametrize("rule", [rule for rule in EXAMPLES if rule != "spills"])
def test_the_wrong_example_breaks_its_rule_alone_and_the_right_one_none(rule: str) -> None:
    (language, wrong), (_, right) = EXAMPLES[rule]
    if language == "json":
        broken, sound = (
            dataclasses.replace(MAP, **{k: tuple(v) for k, v in json.loads(text).items()})
            for text in (wrong, right)
        )
        assert rules_in("", tensor=broken) == {rule}
        assert rules_in("", tensor=sound) == set()
    else:
        assert rules_in(wrong) == {rule}
        assert rules_in(right) == set()


def test_a_finding_names_the_instruction_and_who_takes_part() -> None:
    (_, wrong), _ = EXAMPLES["transaction-bytes"]
    (finding,) = found_in(wrong)
    expect = next(n for n, line in enumerate(wrong.splitlines()) if "expect_tx" in line)
    assert finding.message == (
        "4096 bytes are announced to the barrier that the copy of 8192 bytes signals."
    )
    assert finding.severity == "error"
    assert finding.kernel == "kernel"
    assert finding.ptx_line == FIRST_LINE + expect
    assert finding.instruction.startswith("mbarrier.arrive.expect_tx.release.cta")
    (place,) = finding.places
    assert place.text.startswith("copies a box of 64 × 64 bfloat16: 8192 bytes: cp.async.bulk")
    assert place.ptx_line > finding.ptx_line


def result_of(body: str) -> LevelResult:
    """Return the result of the level for a kernel with a body."""
    artifact: Any = SimpleNamespace(
        plan=plan_of(body),
        kernels=(RESOURCES,),
        target=dataclasses.asdict(H100),
        blob=lambda key: ptx_of(body)["0" * 64, "kernel"].encode(),
    )
    return run(Subject("kernel@h100-sxm", artifact), Options())


def test_a_result_tells_how_the_launch_fills_the_device() -> None:
    result = result_of("st.global.b32 [%y], %thread;")
    assert (result.status, result.findings) == ("passed", ())
    (note,) = result.notes
    assert note.startswith("3 blocks per multiprocessor (limit: shared memory), 1 wave")
    assert result_of(EXAMPLES["arrivals"][0][1]).fails
    assert not result_of(EXAMPLES["bank-conflict"][0][1]).fails


def test_ptx_that_is_not_understood_is_not_checked() -> None:
    result = result_of("mov.u32 %r1, %nonsense;")
    assert result.status == "not checked"
    assert "%nonsense" in result.reason


def test_without_ptx_the_plan_is_checked_and_the_rest_is_not() -> None:
    wrong = dataclasses.replace(MAP, dims=(64, 2048))
    bare = dataclasses.replace(RESOURCES, ptx=None)
    results = []
    for tensor in (MAP, wrong):
        artifact: Any = SimpleNamespace(
            plan=plan_of("", tensor),
            kernels=(bare,),
            target=dataclasses.asdict(H100),
            blob=None,
        )
        results.append(run(Subject("kernel@h100-sxm", artifact), Options()))
    assert [result.status for result in results] == ["not checked", "found"]
    assert results[0].reason == "its kernels come without PTX; bundles hold it with --keep-ptx"
    assert results[0].notes[0].startswith("3 blocks per multiprocessor")
    assert [finding.rule for finding in results[1].findings] == ["tensor-map"]


# ---- what is not decided is not reported


def edited(rule: str, *changes: tuple[str, str], which: int = 0) -> str:
    """Return an example of a rule with parts replaced, each of which is there."""
    text = EXAMPLES[rule][which][1]
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


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
    assert "expects 384 arrivals, but only 128 ever occur" in finding.message


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
    assert finding.message.endswith("it was not committed.")


def test_shared_memory_has_an_end() -> None:
    assert rules_in("st.shared.b32 [%smem+65532], %thread;") == set()
    (finding,) = found_in("st.shared.b32 [%smem+65536], %thread;")
    assert finding.message == (
        "it reaches byte 65540 of a block's shared memory, which has 65536 bytes."
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
        "a box begins at 1984 of dimension 0 of its array, which has 1024 there: all of it lies "
        "outside."
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


@pytest.mark.parametrize(
    ("shift", "access", "degree"),
    [(2, "b32", 1), (3, "b32", 2), (4, "b32", 4), (7, "b32", 32), (3, "b64", 1), (4, "v4.b32", 1),
     (5, "v4.b32", 2), (6, "v4.b32", 4), (4, "b64", 2)],
)  # fmt: skip
def test_threads_that_meet_in_a_bank_are_counted(shift: int, access: str, degree: int) -> None:
    target = {"b64": "%rd3", "v4.b32": "{%r3, %r4, %r5, %r6}"}.get(access, "%r3")
    body = f"""
    shl.b32 %r1, %thread, {shift};
    add.s32 %r2, %smem, %r1;
    ld.shared.{access} {target}, [%r2];
    """
    messages = [finding.message for finding in found_in(body)]
    expected = f"{degree} threads of a warp meet in one bank of shared memory."
    assert messages == ([expected] if degree >= 4 else [])


def assembled(body: str, folder: Path) -> tuple[KernelResources, bytes]:
    """Assemble a kernel with a body and 32 registers; return what it takes and its cubin."""
    (text,) = ptx_of(body).values()
    text = text.replace(".maxntid 128, 1, 1", ".maxntid 128, 1, 1 .minnctapersm 16")
    source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(text)
    ran = subprocess.run(
        [find_toolchain().ptxas, "-v", "-lineinfo", "-arch=sm_90a", source, "-o", cubin],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (spills,) = parse_report(ran.stdout + ran.stderr).values()
    resources = dataclasses.replace(
        RESOURCES, spill_store_bytes=spills.store_bytes, spill_load_bytes=spills.load_bytes
    )
    return resources, cubin.read_bytes()


def test_spills_are_a_note_with_both_numbers_and_the_lines_of_the_machine_code(
    tmp_path: Path,
) -> None:
    (_, wrong), (_, right) = EXAMPLES["spills"]
    resources, cubin = assembled(wrong, tmp_path)
    (finding,) = check(plan_of(wrong), [resources], ptx_of(wrong), H100, lambda digest: cubin)
    assert (finding.rule, finding.severity) == ("spills", "note")
    stored, loaded = resources.spill_store_bytes, resources.spill_load_bytes
    assert finding.message == (
        f"each thread spills: it stores {stored} bytes to local memory and loads {loaded}."
    )
    lines = ptx_of(wrong)["0" * 64, "kernel"].splitlines()
    assert "volatile.global" in lines[finding.ptx_line - 1]
    assert 2 <= len(finding.places) <= 4
    assert all("volatile.global" in lines[place.ptx_line - 1] for place in finding.places)
    assert re.match(r"\d+ (stores?|loads?)\b.* of local memory: ", finding.places[0].text)
    resources, cubin = assembled(right, tmp_path)
    assert check(plan_of(right), [resources], ptx_of(right), H100, lambda digest: cubin) == []


def test_spills_of_a_cubin_without_lines_are_told_without_them(tmp_path: Path) -> None:
    (_, wrong), _ = EXAMPLES["spills"]
    resources, cubin = assembled(wrong, tmp_path)
    cubin = cubin.replace(b".nv_debug_line_sass", b".nv_debug_line_gone")
    (finding,) = check(plan_of(wrong), [resources], ptx_of(wrong), H100, lambda digest: cubin)
    assert (finding.ptx_line, finding.places) == (0, ())
    assert "lines cannot be read from its machine code" in finding.message
    unknown = dataclasses.replace(resources, spill_store_bytes=None, spill_load_bytes=None)
    assert check(plan_of(wrong), [unknown], ptx_of(wrong), H100) == []


def test_local_memory_is_found_where_the_disassembler_finds_it(tmp_path: Path) -> None:
    disassembler = find_disassembler()
    if disassembler is None:
        pytest.skip("nvdisasm is not installed")
    (_, wrong), _ = EXAMPLES["spills"]
    _, cubin = assembled(wrong, tmp_path)
    shown = subprocess.run(
        [disassembler, "-c", "-gp", tmp_path / "kernel.cubin"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    line, counts = 0, {}
    for text in shown.splitlines():
        if (place := re.search(r'File "\.nv_debug_ptx_txt[^"]*", line (\d+)', text)) is not None:
            line = int(place[1])
        if (access := re.search(r"\b(STL|LDL)\b", text)) is not None:
            counts.setdefault(line, [0, 0])[access[1] == "LDL"] += 1
    found = local_accesses(cubin, "kernel")
    assert found is not None
    assert {each.ptx_line: [each.stores, each.loads] for each in found} == counts
    assert counts


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
    assert "a box begins at 1088 of dimension 0" in finding.message  # of 1024, in the last copy
    assert "out-of-bounds" not in rules_in(PIPELINE.replace("STEPS", "16"))
    # What is copied only perhaps is not reported.
    unknown = PIPELINE.replace("STEPS", "32").replace(
        "setp.gt.u32 %p1, %r5", "setp.gt.u32 %p1, %r9"
    )
    loaded = "ld.global.b32 %r9, [%x];" + unknown
    assert "out-of-bounds" not in rules_in(loaded)


def test_a_block_that_asks_for_too_much_shared_memory() -> None:
    large = dataclasses.replace(RESOURCES, dynamic_smem_bytes=300_000)
    (finding,) = check(plan_of(""), [large], ptx_of(""), H100)
    assert finding.rule == "memory-limit"
    assert "300000 bytes" in finding.message
    assert "232448" in finding.message


def test_a_block_that_takes_more_registers_than_there_are() -> None:
    large = dataclasses.replace(RESOURCES, registers=168)
    (finding,) = check(plan_of("", block=(512, 1, 1)), [large], ptx_of(""), H100)
    assert finding.rule == "memory-limit"
    assert "512 threads with 168 registers each takes 86016" in finding.message
    assert check(plan_of("", block=(384, 1, 1)), [large], ptx_of(""), H100) == []


@pytest.mark.parametrize(
    ("registers", "threads", "smem", "grid", "text"),
    [
        (40, 128, 65536, 132, "3 blocks per multiprocessor (limit: shared memory), 1 wave, it "
         "fills 33%"),
        (168, 384, 0, 264, "1 block per multiprocessor (limit: registers), 2 waves, the last fills "
         "100%"),
        (32, 1024, 0, 300, "2 blocks per multiprocessor (limit: registers), 2 waves, the last "
         "fills 14%"),
        (16, 32, 0, 132 * 32, "32 blocks per multiprocessor (limit: blocks), 1 wave, it fills "
         "100%"),
        (16, 32, 0, 1, "32 blocks per multiprocessor (limit: blocks), 1 wave, it fills under 1%"),
    ],
)  # fmt: skip
def test_occupancy_and_waves(registers: int, threads: int, smem: int, grid: int, text: str) -> None:
    kernel = dataclasses.replace(RESOURCES, registers=registers)
    plan = plan_of("", grid=(grid, 1, 1), block=(threads, 1, 1), dynamic_smem_bytes=smem)
    assert notes_of(plan, [kernel], H100) == (text,)
    filled = occupancy(kernel, plan.launches[0], H100)
    assert filled is not None
    assert np.isclose(filled.waves, grid / (filled.blocks * 132))


def test_kernels_that_share_a_name_are_told_apart() -> None:
    digest = "2" * 64
    outside = ptx_of("ld.global.b32 %r1, [%x+4096];")["0" * 64, "kernel"]
    ptx = {**ptx_of(""), (digest, "kernel"): outside}
    resources = [RESOURCES, dataclasses.replace(RESOURCES, cubin=digest)]
    assert check(plan_of(""), resources, ptx, H100) == []
    (finding,) = check(plan_of("", cubin=digest), resources, ptx, H100)
    assert finding.rule == "out-of-bounds"
