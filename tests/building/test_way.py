"""The files of the compiler that a look-up goes through when nothing has changed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pallasc import compiler
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import Options
from pallasc.compiler.inputs.lookup import Lookup

ROOT = Path(compiler.__file__).resolve().parent

STAGES = ["inputs/request", "inputs/lookup", "inputs/changes", "toolchain/modules"]


def _files(function: Any, *arguments: Any) -> list[str]:
    """Return the file of the compiler behind each run of calls that stay in one file."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.resolve().parents:
            file = str(path.resolve().relative_to(ROOT).with_suffix(""))
            if files[-1:] != [file]:
                files.append(file)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return files


@pytest.fixture
def built(project: Any) -> Any:
    """Return a project whose only variant is in the store."""
    project.write("kernel.py", "def run(x): return x * 2\n")
    project.spec({"name": "twice", "entry": "kernel.py:run"})
    assert project.build().exit_code == 0
    return project


def test_a_look_up_goes_through_four_files_and_hardly_back(built: Any) -> None:
    (variant,) = built.variants()
    lookup = Lookup(built.context(), built.store)

    def look() -> None:
        assert lookup.find(lookup.requests.of(variant)).artifact is not None

    first = _files(look)
    assert [*dict.fromkeys(first)] == STAGES
    assert len(first) <= 10
    # Sources are checked once in a build, however many variants read them.
    second = _files(look)
    assert [*dict.fromkeys(second)] == STAGES[:2]
    assert len(second) <= 4


def test_a_build_that_finds_everything_enters_nothing_that_compiles(built: Any) -> None:
    variants = built.variants()
    reports = []
    options = Options(jobs=1)

    def again() -> None:
        reports.append(build(variants, store=built.store, options=options))

    entered = {*_files(again)}
    assert [result.status for result in reports[0].results] == ["hit"]
    # The toolchain is found and identified once, before the first variant is looked up.
    after = {file for file in entered if not file.startswith("toolchain/")}
    assert after == {*STAGES[:3], "builds/build", "builds/state", "builds/hidden_inputs"}
