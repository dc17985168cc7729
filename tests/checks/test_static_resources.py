"""The static level on resources: bank conflicts, spills, limits, occupancy."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from static_kernels import (
    EXAMPLES,
    H100,
    RESOURCES,
    found_in,
    plan_of,
    ptx_of,
)

from pallasc.checks.static.check import check, notes_of
from pallasc.checks.static.machine_code import local_accesses
from pallasc.checks.static.resources import occupancy
from pallasc.compiler.lowering.resources import parse_report
from pallasc.compiler.toolchain.toolchain import find_disassembler, find_toolchain
from pallasc.specs.artifacts.artifact import KernelResources


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
    expected = f"{degree}-way bank conflict in shared memory"
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
        f"each thread spills registers: {stored} bytes stored to local memory, {loaded} bytes "
        "loaded"
    )
    lines = ptx_of(wrong)["0" * 64, "kernel"].splitlines()
    assert "volatile.global" in lines[finding.ptx_line - 1]
    assert 2 <= len(finding.places) <= 4
    assert all("volatile.global" in lines[place.ptx_line - 1] for place in finding.places)
    assert re.match(r"\d+ (stores? to|loads? from)\b.* local memory: ", finding.places[0].text)
    resources, cubin = assembled(right, tmp_path)
    assert check(plan_of(right), [resources], ptx_of(right), H100, lambda digest: cubin) == []


def test_spills_of_a_cubin_without_lines_are_told_without_them(tmp_path: Path) -> None:
    (_, wrong), _ = EXAMPLES["spills"]
    resources, cubin = assembled(wrong, tmp_path)
    cubin = cubin.replace(b".nv_debug_line_sass", b".nv_debug_line_gone")
    (finding,) = check(plan_of(wrong), [resources], ptx_of(wrong), H100, lambda digest: cubin)
    assert (finding.ptx_line, finding.places) == (0, ())
    assert finding.message.endswith("; the lines are unknown")
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
    assert "512 threads with 168 registers each needs 86016" in finding.message
    assert check(plan_of("", block=(384, 1, 1)), [large], ptx_of(""), H100) == []


@pytest.mark.parametrize(
    ("registers", "threads", "smem", "grid", "text"),
    [
        (40, 128, 65536, 132, "3 blocks per multiprocessor (limited by shared memory), 1 wave, "
         "33% full"),
        (168, 384, 0, 264, "1 block per multiprocessor (limited by registers), 2 waves, the last "
         "100% full"),
        (32, 1024, 0, 300, "2 blocks per multiprocessor (limited by registers), 2 waves, the last "
         "14% full"),
        (16, 32, 0, 132 * 32, "32 blocks per multiprocessor (limited by blocks), 1 wave, 100% "
         "full"),
        (16, 32, 0, 1, "32 blocks per multiprocessor (limited by blocks), 1 wave, under 1% full"),
    ],
)  # fmt: skip
def test_occupancy_and_waves(registers: int, threads: int, smem: int, grid: int, text: str) -> None:
    kernel = dataclasses.replace(RESOURCES, registers=registers)
    plan = plan_of("", grid=(grid, 1, 1), block=(threads, 1, 1), dynamic_smem_bytes=smem)
    assert notes_of(plan, [kernel], H100) == (text,)
    filled = occupancy(kernel, plan.launches[0], H100)
    assert filled is not None
    assert np.isclose(filled.waves, grid / (filled.blocks * 132))
