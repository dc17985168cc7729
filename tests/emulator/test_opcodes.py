"""Every supported form of instruction is executed, with each of its alternatives."""

from __future__ import annotations

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
"""Mnemonics that are not supported, and their descriptions."""


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


@pytest.mark.parametrize(("opcode", "what"), REFUSED, ids=[opcode for opcode, _ in REFUSED])
def test_what_is_listed_as_refused_is_refused_by_name(opcode: str, what: str) -> None:
    assert what
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
