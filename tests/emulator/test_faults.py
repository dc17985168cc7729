"""What the hardware does not allow is a fault with its instruction, its warp and a rule."""

from __future__ import annotations

import pytest
from small_kernels import run

from pallasc.emulator.machine.machine import Policy
from pallasc.emulator.machine.memory import Fault

S = ".shared .align 128 .b8 s[1024];"
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], {columns};"
CASES = [
    (
        "misaligned",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [s+8];",
        "lane 0 is misalig",
    ),
    ("misaligned", "ld.shared.b32 %r1, [s+2];", "misaligned address"),
    ("out-of-bounds", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [s+65536], {%t};", "is outside"),
    ("out-of-bounds", "ld.shared.b32 %r1, [s+65536];", "an access of 4 bytes"),
    ("tensor-allocation", ALLOC.format(columns=48), "48 columns: the number must be a power"),
    (
        "tensor-allocation",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;",
        "matches no allocation",
    ),
    (
        "out-of-bounds",
        ALLOC.format(columns=32) + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [32];",
        "reaches column 32",
    ),
    ("out-of-bounds", "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [600];", "reaches column 600"),
    (
        "out-of-bounds",
        ALLOC.format(columns=32) + "tcgen05.st.sync.aligned.32x32b.x1.b32 [64], {%t};"
        "tcgen05.wait::st.sync.aligned;",
        "reaches column 64",
    ),
    (
        "invalid-operand",
        ALLOC.format(columns=32) + "mov.b64 %rd1, -1; tcgen05.cp.cta_group::1.128x256b [0], %rd1;",
        "is not a shared memory descriptor",
    ),
    ("not-uniform", "barrier.sync %t, 32;", "the number of the barrier differs"),
    ("barrier-number", "barrier.sync 16, 32;", "there is no barrier 16"),
    ("barrier-count", "barrier.sync 1, 40;", "a barrier for 40 threads, which is not"),
    ("cluster-wait", "barrier.cluster.wait;", "without an arrive"),
    ("no-mbarrier", "mbarrier.arrive.shared::cta.b64 _, [s];", "no mbarrier is initialized"),
    ("mbarrier-count", "mbarrier.init.shared::cta.b64 [s], 0;", "cannot expect 0 arrivals"),
    ("lane-mask", "bar.warp.sync 3;", "a mask that leaves the lane out"),
    ("trap", "trap;", "executes trap"),
]


@pytest.mark.parametrize(("rule", "lines", "words"), CASES)
def test_a_fault_has_its_rule_its_instruction_and_its_warp(
    rule: str, lines: str, words: str
) -> None:
    with pytest.raises(Fault, match=words) as caught:
        run(lines, variables=S, policy=Policy(eagerness=1))
    fault = caught.value
    assert fault.rule == rule
    assert str(fault.actor) == "warp 0 of block (0, 0, 0)"
    assert fault.instruction is not None
    assert fault.instruction.opcode in lines
