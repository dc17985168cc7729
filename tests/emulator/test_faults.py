"""What the hardware does not allow is a fault with its instruction, its warp, and a rule."""

from typing import Any

import numpy as np
import pytest
from small_kernels import run

from pallasc.emulator.machine.machine import Policy
from pallasc.emulator.machine.memory import Fault

MEMORY = ".shared .align 128 .b8 s[2048]; .shared .align 8 .b64 m; .local .align 4 .b8 l[16];"
VALUES = np.arange(128, dtype=np.uint32)
PAIR = {"blocks": 2, "cluster": 2}
FIRST = "setp.eq.u32 %p8, %t, 0;"
INIT = FIRST + "@%p8 mbarrier.init.shared::cta.b64 [m], "
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [m]"
EXPECT = "@%p8 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [m], "
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], "
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, "
COPY = INIT + "1; @%p8 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("misaligned", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [s+8];",
     "lane 0 is misaligned: 0x.*8 is 8 bytes past a 16-byte", {}),
    ("misaligned", "ld.shared.b32 %r1, [s+2];", "misaligned address", {}),
    ("misaligned", "ld.global.u32 %r1, [%a0+2];", "an access of 4 bytes at the misaligned", {}),
    ("misaligned", "ld.global.v2.b32 {%r1, %r2}, [%a0+4];", "an access of 8 bytes", {}),
    ("misaligned", "atom.global.add.u32 %r1, [%a0+1], 1;", "4 bytes", {}),
    ("misaligned", INIT.replace("[m]", "[m+4]") + "1;", "invalid shared address", {}),
    ("misaligned", COPY + "[s], [%a0], 24, [m];", "multiple of 16", {}),
    ("misaligned", COPY + "[s], [%a0+8], 16, [m];", "multiple of 16", {}),
    ("out-of-bounds", COPY + "[s], [%a0+512], 16, [m];", "512 of .*, which has 512 bytes", {}),
    ("out-of-bounds", COPY + "[s+4096], [%a0], 16, [m];", "of shared memory, which has", {}),
    ("out-of-bounds", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [s+65536], {%t};",
     "lane 0, 0x.*, is outside of the", {}),
    ("out-of-bounds", "ld.shared.b32 %r1, [s+65536];", "an access of 4 bytes", {}),
    ("out-of-bounds", "ld.global.u32 %r1, [%a0+512];", "512 of .*, which has 512 bytes", {}),
    ("out-of-bounds", "st.global.v4.b32 [%a0+512], {%r1, %r1, %r1, %r1};", "16 bytes", {}),
    ("out-of-bounds", "mov.b64 %rd1, 0; ld.global.u32 %r1, [%rd1];", "is not allocated", {}),
    ("out-of-bounds", "mov.u64 %rd1, l; st.local.u32 [%rd1+4096], %r1;", "of local memory", {}),
    ("out-of-bounds", "red.shared.add.u32 [s+4096], 1;", "of shared memory", {}),
    ("out-of-bounds", f"{ALLOC} 32; {LOAD} [32];", "reaches column 32", {}),
    ("out-of-bounds", f"{LOAD} [600];", "reaches column 600", {}),
    ("out-of-bounds", ALLOC + "32; tcgen05.st.sync.aligned.32x32b.x1.b32 [64], {%t};"
     "tcgen05.wait::st.sync.aligned;", "reaches column 64", {}),
    ("tensor-allocation", f"{ALLOC} 48;", "48 columns: the number must be a power", {}),
    ("tensor-allocation", "tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;",
     "matches no allocation", {}),
    ("invalid-operand", ALLOC + "32; mov.b64 %rd1, -1; tcgen05.cp.cta_group::1.128x256b [0], %rd1;",
     "is not a shared memory descriptor", {}),
    ("not-uniform", "barrier.sync %t, 32;", "the number of the barrier differs", {}),
    ("barrier-number", "barrier.sync 16, 32;", "there is no barrier 16", {}),
    ("barrier-count", "barrier.sync 1, 40;", "a barrier for 40 threads, which is not", {}),
    ("barrier-count", "shr.u32 %r1, %t, 5; mad.lo.u32 %r1, %r1, 32, 64; bar.sync 1, %r1;",
     "96 threads at a barrier, and other warps expect 64", {"threads": 64}),
    ("cluster-wait", "barrier.cluster.wait;", "without an arrive before it", {}),
    ("no-mbarrier", f"{ARRIVE};", "no mbarrier is initialized", {}),
    ("no-mbarrier", INIT + f"1; @%p8 mbarrier.inval.shared::cta.b64 [m]; @%p8 {ARRIVE};",
     "no mbarrier is", {}),
    ("mbarrier-count", INIT + "0;", "cannot expect 0 arrivals", {}),
    ("too-many-arrivals", INIT + f"8; bar.sync 0; {ARRIVE};",
     "mbarrier in phase 0: only 8 of its 8 arrivals are left", {}),
    ("too-many-arrivals", INIT + f"128; bar.sync 0; {EXPECT} 16; {ARRIVE}, 4; {ARRIVE};",
     r"32 arrivals at an mbarrier in phase 0: all its 128 arrivals "
     r"\(num_arrivals=1 with 128 threads each\) have already happened", {}),
    ("transaction-overflow", INIT + f"1; {EXPECT} 1048576;", "1048576 bytes", {}),
    ("lane-mask", "bar.warp.sync 3;", "a mask that leaves the lane out", {}),
    ("lane-mask", "shfl.sync.idx.b32 %r1, %t, 0, 31, 0xFF;", "a mask that leaves the lane out", {}),
    ("trap", "trap;", "the kernel executes trap", {}),
    ("out-of-bounds", "mov.u32 %r1, s; mapa.shared::cluster.u32 %r2, %r1, 2;",
     "mapa names block 2 of a cluster of 2 blocks", PAIR),
    ("out-of-bounds", "multimem.st.weak.global.b32 [%a0], %t;", "is not a multicast address", {}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "lines", "words", "options"), CASES)
def test_a_fault_has_its_rule_its_instruction_and_its_warp(
    rule: str, lines: str, words: str, options: dict[str, Any]
) -> None:
    with pytest.raises(Fault, match=words) as caught:
        run(lines, VALUES, variables=MEMORY, policy=Policy(eagerness=1), **options)
    fault = caught.value
    assert fault.rule == rule
    assert str(fault.actor).startswith("warp 0 of block (0, 0, 0)") or "threads" in options
    assert fault.instruction is not None
    assert fault.instruction.opcode in lines


ASSERT = """
.extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d,
  .param .b64 e);
.global .align 1 .b8 text[8] = {98, 97, 100, 0};
"""


def test_a_failed_assertion_is_told_with_its_thread_and_words() -> None:
    with pytest.raises(Fault, match="an assertion failed in thread 37: bad") as caught:
        run(
            "setp.ne.u32 %p1, %t, 37; @%p1 bra END; mov.u64 %rd3, text; cvta.global.u64 %rd4, %rd3;"
            "{ .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;"
            "st.param.b64 [p0], %rd4; st.param.b64 [p1], %rd4; st.param.b32 [p2], 3;"
            "st.param.b64 [p3], %rd4; st.param.b64 [p4], 1;"
            "call.uni __assertfail, (p0, p1, p2, p3, p4); }\nEND:\n",
            threads=64,
            module=ASSERT,
        )
    assert caught.value.rule == "assertion"


def test_an_instruction_for_whole_warps_is_not_for_half_a_warp() -> None:
    lines = "setp.lt.u32 %p1, %t, 16; {leave} mov.u32 %r1, s;"
    lines += "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r2}}, [%r1]; bar.sync 0;"
    run(lines.format(leave=""), variables=MEMORY)
    with pytest.raises(Fault, match="16 lanes of a warp execute ldmatrix") as caught:
        run(lines.format(leave="@!%p1 ret;"), variables=MEMORY)
    assert caught.value.rule == "not-aligned"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("@%p1 {load} bar.sync 0;", r"ldmatrix\.\S+ \(PTX line 16\)"),
        ("@!%p1 bra L; {load}\nL:\n bar.sync 0;", r"bar\.sync \(PTX line 18\) and ldmatrix\S+ \("),
        ("@!%p1 bra L; {load} bra E;\nL:\n {load}\nE:\n", r"ldmatrix\S+ .* and ldmatrix\S+ \("),
    ],
)
def test_half_a_warp_at_an_instruction_for_whole_warps_is_no_deadlock(
    lines: str, told: str
) -> None:
    load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];"
    with pytest.raises(Fault, match=f"only some lanes of a warp execute {told}") as caught:
        run("mov.u32 %r1, s; setp.lt.u32 %p1, %t, 16;" + lines.format(load=load), variables=MEMORY)
    assert caught.value.rule == "not-aligned"
