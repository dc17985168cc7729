"""What is looked for is found where it is, and missed where it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def covering() -> Iterator[Any]:
    """Import covering.py as the kernels of this folder do."""
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        import covering
    finally:
        sys.path.remove(folder)
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


def test_two_cases_of_one_name_are_refused(covering: Any) -> None:
    def case() -> None: ...

    covering.covers("plgpu.x")(case)
    covering.CASES["case"] = SimpleNamespace(file="other.py")
    with pytest.raises(ValueError, match="both have a case case"):
        covering.covers("plgpu.x")(case)


def test_a_gap_may_be_of_one_architecture(covering: Any) -> None:
    def case() -> None: ...

    covering.covers("plgpu.x", gaps={"0.10": "all", "0.12 sm_80": "one"})(case)
    declared = covering.CASES["case"]
    assert declared.gap("0.10", "sm_90a") == "all"
    assert declared.gap("0.12", "sm_80") == "one"
    assert declared.gap("0.12", "sm_90a") is None
