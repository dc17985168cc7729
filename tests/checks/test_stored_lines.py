"""Lines of findings: stored with the result, looked for again where a file changed."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.checks.findings import Finding, Place, from_findings
from pallasc.checks.locate import Locator, with_lines
from pallasc.compiler.lowering import LineTable, Part
from pallasc.errors import CompileError, Location, PallascError, ToolError

STACK = [Location("k.py", line) for line in (9, 6, 3, 1)]
"""Of each PTX line: the line itself, two calls that lead to it, and the kernel's."""


LOOP = Location("k.py", 7)
MEMORY = (
    Part("scratch", "tile", "f32[128]", 512, 0),
    Part("barrier", "full", "[2]", 16, 1024),
)
TABLES = {("c", "k"): LineTable((tuple(STACK),), (1,) * 5, MEMORY, ((LOOP,),))}


def located(*places: Place, rule: str = "deadlock", message: str = "") -> Finding:
    """Return a finding with its lines."""
    finding = Finding(rule=rule, message=message, kernel="k", cubin="c", places=places)
    return with_lines(finding, TABLES)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("bytes 0x400 to 0x47f of shared memory", "tile f32[128]"),
        ("bytes 0x5fc to 0x5ff of shared memory of block (0, 0, 0)", "tile f32[128]"),
        ("bytes 0x600 to 0x6ff of shared memory", "past the end of tile f32[128]"),
        ("parity 0 of the mbarrier at shared address 0x808", "full[1]"),
        ("bytes 0x0 to 0x3 of shared memory", ""),
        ("bytes 0x400 to 0x47f of out", ""),
    ],
)
def test_arrays_and_barriers_in_shared_memory_are_named(text: str, names: str) -> None:
    found = located(Place(text, ptx_line=4), rule="race", message=f"{text}, here")
    wanted = f"{text} ({names})" if names else text
    assert (found.places[0].text, found.message) == (wanted, f"{wanted}, here")


WHY = "the process that finds the lines of k took longer than 5 s (--timeout) and was stopped"


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        ([CompileError(f"{WHY}\nIts output: none")], WHY),
        ([{}], "compiling once more gave different code"),
        (ToolError("there is no compiler."), "there is no compiler"),
    ],
)
def test_lines_that_cannot_be_had_are_told_once(
    outcome: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_lines(*_: Any, **__: Any) -> Any:
        if isinstance(outcome, PallascError):
            raise outcome
        return outcome

    monkeypatch.setattr("pallasc.compiler.workers.pool.find_lines", find_lines)
    monkeypatch.setattr("pallasc.compiler.toolchain.setup.prepare", nullcontext)
    store: Any = None
    findings = tuple(Finding(rule="race", message=f"{n}", ptx_line=n) for n in (3, 4))
    result = from_findings("artifact", findings)
    variant: Any = SimpleNamespace(id="k", base_dir="/")
    artifact: Any = SimpleNamespace(kernels=())
    locator = Locator(store, 5.0, 1)
    (located,) = locator.located([(result, artifact, variant)])
    assert located.notes == (f"no source lines: {why}",)
    assert not locator.has_lines(variant)
    without_source = locator.located([(result, artifact, None)])
    assert without_source[0].notes == ()
