"""What is looked for is found where it is, and missed where it is not."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.specs.gpus import DEFAULT_MODELS

FOLDER = str(Path(__file__).parent)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a module of this folder as its kernels do."""
    monkeypatch.setattr(sys, "path", [FOLDER, *sys.path])
    return importlib.import_module


@pytest.fixture
def covering(imported: Callable[[str], Any]) -> Iterator[Any]:
    """Import covering.py, and leave its cases as they were."""
    covering = imported("covering")
    held = dict(covering.CASES)
    yield covering
    covering.CASES.clear()
    covering.CASES.update(held)


def _found(ptx: str, **others: Any) -> Any:
    return SimpleNamespace(ptx=ptx, plan=SimpleNamespace(steps=()), others=others)


def test_a_pattern_is_looked_for_in_the_text(covering: Any) -> None:
    assert covering.ptx(r"wgmma\.mma").wrong(_found("wgmma.mma_async")) == ""
    assert covering.ptx(r"wgmma\.mma").wrong(_found("mma.sync")) == r"the PTX has no wgmma\.mma"
    assert covering.no_ptx("bar").wrong(_found("ret;")) == ""
    assert covering.no_ptx("bar").wrong(_found("bar.sync")) == "the PTX has bar"


def test_a_text_is_looked_for_in_what_was_printed(covering: Any) -> None:
    found = SimpleNamespace(printed="The kernel jaxpr for body:\n{ lambda ; }")
    assert covering.printed("The kernel jaxpr for").wrong(found) == ""
    assert covering.printed("The module").wrong(found) == "nothing printed says The module"


def test_counts_are_compared_with_those_of_another_case(covering: Any) -> None:
    found = _found("bar.sync", other=_found("bar.sync bar.sync"), same=_found("bar.sync"))
    assert covering.fewer("bar", than="other").wrong(found) == ""
    wrong = covering.fewer("bar", than="same").wrong(found)
    assert wrong == "the PTX has bar 1 times, same 1 times"


def test_a_look_applies_to_what_it_names(covering: Any) -> None:
    everywhere = covering.ptx("x")
    assert everywhere.applies("sm_80", "0.10")
    only = covering.ptx("x", on="sm_90a sm_100a", jax="0.12")
    assert only.applies("sm_100a", "0.12")
    assert not only.applies("sm_80", "0.12")
    assert not only.applies("sm_90a", "0.10")


def test_patterns_read_well_in_a_table(covering: Any) -> None:
    says = covering.ptx(r"cp\.async\.wait_group\s+\d+|\[x\]").says
    assert says == "PTX `cp.async.wait_group N/[x]`"
    assert covering.no_ptx(r"@!?%p\d+\s+bra", says="bra").says == "PTX without `bra`"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"try_cancel\S*multicast::cluster", "try_cancel…multicast::cluster"),
        (r"global\S*\.max", "global….max"),
        (r"(red|atom)\.\S*sys\S*?add", "(red/atom).…sys…add"),
        (r"st\.async\..*mbarrier", "st.async.…mbarrier"),
        (r"\.2d.*?\.cta_group::2", ".2d….cta_group::2"),
    ],
)
def test_what_may_stand_between_is_an_ellipsis_in_a_table(
    pattern: str, text: str, covering: Any
) -> None:
    assert covering.ptx(pattern).says == f"PTX `{text}`"


def test_two_cases_of_one_name_are_refused(covering: Any) -> None:
    def case() -> None: ...

    covering.covers("plgpu.x")(case)
    covering.CASES["case"] = SimpleNamespace(file="other.py")
    with pytest.raises(ValueError, match="both have a case case"):
        covering.covers("plgpu.x")(case)


def test_a_gap_may_be_of_one_architecture(covering: Any) -> None:
    def case() -> None: ...

    gaps = {"0.10": "all", "0.12 sm_80": "one", "sm_120a": "both"}
    covering.covers("plgpu.x", gaps=gaps)(case)
    declared = covering.CASES["case"]
    assert declared.gap("0.10", "sm_90a") == "all"
    assert declared.gap("0.12", "sm_80") == "one"
    assert declared.gap("0.12", "sm_90a") is None
    assert declared.gap("0.12", "sm_120a") == "both"
    assert declared.gap("0.10", "sm_120a") == "all"


def test_everywhere_is_everything_that_pallasc_compiles_for(
    imported: Callable[[str], Any],
) -> None:
    architectures = imported("architectures")
    assert set(architectures.EVERYWHERE) == set(DEFAULT_MODELS)
    assert {*architectures.BEFORE_HOPPER, *architectures.SINCE_HOPPER} == set(DEFAULT_MODELS)


def test_a_sample_has_one_architecture_of_each_and_meets_all(
    imported: Callable[[str], Any],
) -> None:
    declared = imported("declared")
    by_case = {f"case {number}": ["a", "b", "c", "d"] for number in range(6)} | {"one": ["e"]}
    sample = declared.sample(by_case)
    assert sample.pop("one") == {"e"}
    assert list(map(len, sample.values())) == [1] * 6
    assert [found == {"a"} for found in sample.values()] == [False, True] * 3
    assert set().union(*sample.values()) == {"a", "b", "c", "d"}


def test_a_gap_is_told_in_the_words_that_begin_a_message_or_follow_its_place(
    imported: Callable[[str], Any],
) -> None:
    told = imported("outcomes").told
    said = "ptxas refuses the PTX: line 52: Modifier 'x' on 'fence'\nline 60: the same"
    assert told("compiler", "Modifier 'x' on", said) == "gap: Modifier 'x' on"
    assert told("compiler", "ptxas refuses", said) == "gap: ptxas refuses"
    assert told("compiler", "fence", said) == f"wrong: the compiler says: {said}"
    assert told("compiler", "line 60", said) == f"wrong: the compiler says: {said}"
    assert told("compiler", "Modifier … on 'fence'", said) == "gap: Modifier … on 'fence'"
    assert told("compiler", "ptxas … the same", said) == f"wrong: the compiler says: {said}"
    assert told("compiler", "Modifier", "") == "wrong: the compiler was to say: Modifier"
    assert told("compiler", None, "") == "ok"


def test_a_fault_is_a_look_that_fails_as_declared(imported: Callable[[str], Any]) -> None:
    covering, outcomes = imported("covering"), imported("outcomes")
    look = covering.faulty(covering.ptx("stride"), does="the stride is lost")
    assert outcomes.verdict(look, _found("ret;")) == "fault: the stride is lost"
    held = outcomes.verdict(look, _found("stride"))
    assert held == "wrong: PTX `stride`, and was to be a fault"
    broken = covering.faulty(covering.compared("other", bool, to="other"), does="it fails")
    assert outcomes.verdict(broken, _found("ret;")).startswith("wrong: other `other`: KeyError")


def test_what_is_wrong_hides_a_fault(imported: Callable[[str], Any]) -> None:
    outcomes = imported("outcomes")
    assert outcomes.worst(["fault: one", "wrong: other"]) == ["wrong: other"]
    assert outcomes.worst(["fault: one"]) == ["fault: one"]


def test_what_the_interpreter_says_may_be_of_one_version(covering: Any) -> None:
    def case() -> None: ...

    covering.covers("plgpu.x", uninterpreted="no")(case)
    assert covering.CASES["case"].unnumbered("0.12") == "no"
    covering.covers("plgpu.x", uninterpreted={"0.10": "no"}, gaps={"0.12": "x"})(case)
    declared = covering.CASES["case"]
    assert [declared.unnumbered(version) for version in ("0.10", "0.12")] == ["no", None]
    assert [declared.is_interpreted(version) for version in ("0.10", "0.12")] == [True, False]


def test_a_kernel_that_runs_without_a_reference_is_not_as_declared(
    covering: Any, imported: Callable[[str], Any]
) -> None:
    def case() -> None: ...

    covering.covers("plgpu.x", uninterpreted={"0.10": "no"})(case)
    numbers, declared = imported("outcomes").numbers, covering.CASES["case"]
    said = "it runs, and there is no reference to compare it with"
    assert numbers(declared, "0.12", said) == f"wrong: the interpreter says: {said}"
    assert numbers(declared, "0.10", "ValueError: no") == "gap: no"
    assert numbers(declared, "0.12", "") == "ok"


def test_what_a_callback_raised_is_told_without_the_stacks_before_it(
    imported: Callable[[str], Any],
) -> None:
    said = imported("interpret")._message
    stacks = "INTERNAL: CpuCallback error calling callback: Traceback:\n  File one\n"
    error = RuntimeError(f"{stacks}ValueError: one\n\nTraceback:\nTypeError: two\n  of them\n")
    assert said(error) == "TypeError: two\n  of them"
    assert said(RuntimeError("CpuCallback error")) == "RuntimeError: CpuCallback error"
    assert said(ValueError("alone")) == "ValueError: alone"
