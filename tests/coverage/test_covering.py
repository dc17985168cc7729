"""Properties to look for are found if they are present, and reported if they are absent."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
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


def _found(ptx: str, **others: Any) -> Any:
    return SimpleNamespace(ptx=ptx, plan=SimpleNamespace(steps=()), others=others)


def test_looks_search_the_text_and_compare_counts(imported: Callable[[str], Any]) -> None:
    covering = imported("covering")
    assert covering.ptx(r"wgmma\.mma").wrong(_found("wgmma.mma_async")) == ""
    assert covering.ptx(r"wgmma\.mma").wrong(_found("mma.sync")) == r"missing: PTX wgmma\.mma"
    assert covering.no_ptx("bar").wrong(_found("ret;")) == ""
    assert covering.no_ptx("bar").wrong(_found("bar.sync")) == "missing: PTX without bar"
    found = _found("bar.sync", other=_found("bar.sync bar.sync"), same=_found("bar.sync"))
    assert covering.fewer("bar", than="other").wrong(found) == ""
    assert covering.fewer("bar", than="same").wrong(found) == "missing: fewer bar in PTX than same"


def test_everywhere_is_everything_that_pallasc_compiles_for(imported: Callable[[str], Any]) -> None:
    architectures = imported("architectures")
    assert set(architectures.EVERYWHERE) == set(DEFAULT_MODELS)
    assert {*architectures.BEFORE_HOPPER, *architectures.SINCE_HOPPER} == set(DEFAULT_MODELS)


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
    assert held == "wrong: PTX stride, and was to be a fault"
    broken = covering.faulty(covering.compared("other", bool, to="other"), does="it fails")
    assert outcomes.verdict(broken, _found("ret;")).startswith("wrong: other other: KeyError")
