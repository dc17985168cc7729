"""Every supported form of instruction is executed, with each of its alternatives."""

import random
import re

import opcode_cases_copies  # noqa: F401  (registers cases)
import opcode_cases_lanes  # noqa: F401
import opcode_cases_matrices  # noqa: F401
import opcode_cases_memory  # noqa: F401
import pytest
from opcode_cases import case_of
from opcode_patterns import Pattern
from small_kernels import run

from pallasc.emulator.instructions.registry import BUILDERS, FORMS, form_of
from pallasc.errors import UnsupportedError

OPERANDS = ("%r1, %r2", "L")

REFUSED = (
    "alloca",  # stack memory
    "bar.red",
    "brx.idx",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster",
    "cp.async.mbarrier.arrive.shared.b64",
    "istypep.texref",  # textures
    "match.any.sync.b32",
    "mbarrier.arrive_drop.shared.b64",
    "mbarrier.test_wait.shared.b64",  # for a state
    "red.global.add.v2.f32",
    "st.bulk.weak.shared::cta",
    "tcgen05.shift.cta_group::1.down",
    "tensormap.replace.tile.global_address.global.b1024.b64",
    "vadd.u32.u32.u32",  # video
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16",
    # Forms of matrix instructions that look like others.
    "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
    "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32",
    "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
    "ldmatrix.sync.aligned.m16n8.x1.trans.shared.b8",
    "ldmatrix.sync.aligned.m8n8.x3.shared.b16",
    "ldmatrix.sync.aligned.m8n8.x4.shared::cluster.b16",
    "tcgen05.cp.cta_group::1.64x128b",
    "tcgen05.cp.cta_group::1.128x256b.b8x16.b6x16_p32",
    "tcgen05.ld.aligned.32x32b.x1.b32",
    "tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32",
    "tcgen05.ld.red.sync.aligned.16x32bx2.x2.min.s32",
    "tcgen05.mma.ws.cta_group::2.kind::f16",
    "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::fill",
    "tcgen05.mma.cta_group::1.kind::f16.ashift",
    "tcgen05.mma.cta_group::1.kind::mxf8f6f4",
    "tcgen05.mma.cta_group::1.kind::f16.block_scale",
    "wgmma.mma_async.sync.aligned.m64n64k16.f16.bf16.bf16",
    "wgmma.mma_async.sync.aligned.m64n64k32.f32.f16.f16",
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16",
)


def test_patterns_are_taken_apart() -> None:
    pattern = Pattern("a[.b].(c|d[.e])")
    drawn = {pattern.draw(random.Random(seed)) for seed in range(99)}
    assert drawn == {"a.c", "a.d", "a.d.e", "a.b.c", "a.b.d", "a.b.d.e"}
    assert len(pattern.alternatives) == 6
    assert pattern.chosen("a.d.e") == {(0, 0), (1, 1), (2, 1)}
    assert pattern.chosen("a.b.c") == {(0, 1), (1, 0)}
    assert pattern.chosen("a.e") == set()


@pytest.mark.parametrize("form", FORMS, ids=[form[:60] for form in FORMS])
def test_each_alternative_of_a_form_gives_what_the_manual_says(form: str) -> None:
    pattern, generator = Pattern(form), random.Random(1)
    left = pattern.alternatives
    tried: set[str] = set()
    for _ in range(3000):
        opcode = pattern.draw(generator)
        chosen = pattern.chosen(opcode)
        if opcode in tried or not (chosen & left or not tried):
            continue
        tried.add(opcode)
        assert form_of(opcode) is not None
        case = case_of(opcode)
        if case is not None:
            try:
                case.check()
            except Exception as error:
                error.add_note(f"{opcode} in {case.lines}")
                raise
            left -= chosen
    assert not left, f"{len(left)} alternatives of {form} have no case; {sorted(tried)}"


@pytest.mark.parametrize(
    "opcode",
    [
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
        "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
        "stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16",
        "mma.sync.aligned.m16n8k32.row.col.f16.e5m2.e4m3.f16",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32",
        "mma.sync.aligned.m16n8k64.row.col.s32.u4.s4.s32",
    ],
)
def test_alternatives_that_meet_in_one_form(opcode: str) -> None:
    case = case_of(opcode)
    assert case is not None
    case.check()


@pytest.mark.parametrize("opcode", REFUSED)
def test_what_is_not_supported_is_refused_by_name(opcode: str) -> None:
    assert form_of(opcode) is None
    with pytest.raises(UnsupportedError, match=re.escape(opcode)):
        run(f"{opcode} {OPERANDS[opcode.startswith('br')]};\nL:\n")


@pytest.mark.parametrize("form", FORMS, ids=[form[:60] for form in FORMS])
def test_a_part_too_many_is_refused_by_name(form: str) -> None:
    opcode = Pattern(form).draw(random.Random(2))
    with pytest.raises(UnsupportedError, match=re.escape(f"{opcode}.quickly")):
        run(f"{opcode}.quickly {OPERANDS[opcode.startswith('br')]};\nL:\n")


def test_every_instruction_with_a_function_has_a_form_and_the_other_way_round() -> None:
    drawn = {
        Pattern(form).draw(random.Random(seed)).partition(".")[0]
        for form in FORMS
        for seed in range(20)
    }
    assert drawn == set(BUILDERS)
