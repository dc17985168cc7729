"""The static level: each rule on the examples of its page, and what its results say."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
from static_kernels import (
    EXAMPLES,
    FIRST_LINE,
    H100,
    MAP,
    RESOURCES,
    found_in,
    plan_of,
    ptx_of,
    rules_in,
)

from pallasc.checks.findings import LevelResult
from pallasc.checks.static.check import check
from pallasc.checks.static.level import run
from pallasc.checks.static.rules import RULES
from pallasc.checks.subject import Options, Subject


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


@pytest.mark.parametrize(
    "rule", [rule for rule, (wrong, _) in EXAMPLES.items() if wrong[0] == "ptx"]
)
def test_a_message_begins_in_lower_case_and_has_no_full_stop(rule: str) -> None:
    texts = [each.message for each in found_in(EXAMPLES[rule][0][1])]
    assert [text for text in texts if text.endswith(".") or text[0].isupper()] == []


def test_a_finding_names_the_instruction_and_who_takes_part() -> None:
    (_, wrong), _ = EXAMPLES["transaction-bytes"]
    (finding,) = found_in(wrong)
    expect = next(n for n, line in enumerate(wrong.splitlines()) if "expect_tx" in line)
    assert finding.message == (
        "4096 bytes are announced to a barrier (expect_tx), but the copy that signals it moves "
        "8192 bytes"
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
    assert note.startswith("3 blocks per multiprocessor (limited by shared memory), 1 wave")
    assert result_of(EXAMPLES["arrivals"][0][1]).fails
    assert not result_of(EXAMPLES["bank-conflict"][0][1]).fails


def test_ptx_that_is_not_understood_is_not_checked() -> None:
    assert result_of("mov.u32 %r1, %nonsense;").status == "passed"  # nobody uses it
    result = result_of("mov.u32 %r1, %nonsense;\nst.global.b32 [%r1], %thread;")
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
    assert results[0].reason.startswith("it holds no PTX; pallasc bundle create --keep-ptx")
    foreign: Any = SimpleNamespace(
        plan=plan_of("", MAP),
        kernels=(dataclasses.replace(bare, origin="xla"),),
        target=dataclasses.asdict(H100),
        blob=None,
    )
    result = run(Subject("kernel@h100-sxm", foreign), Options())
    assert result.reason == "it has no Mosaic GPU kernel, and XLA's kernels come without PTX"
    assert results[0].notes[0].startswith("3 blocks per multiprocessor")
    assert [finding.rule for finding in results[1].findings] == ["tensor-map"]


def test_kernels_that_share_a_name_are_told_apart() -> None:
    digest = "2" * 64
    outside = ptx_of("ld.global.b32 %r1, [%x+4096];")["0" * 64, "kernel"]
    ptx = {**ptx_of(""), (digest, "kernel"): outside}
    resources = [RESOURCES, dataclasses.replace(RESOURCES, cubin=digest)]
    assert check(plan_of(""), resources, ptx, H100) == []
    (finding,) = check(plan_of("", cubin=digest), resources, ptx, H100)
    assert finding.rule == "out-of-bounds"
