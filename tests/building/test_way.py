"""The way that a variant takes through a build when nothing has changed.

A *room* is a file of `compiler/`. A *return* is a call into a room that was entered before and has
been left since: a way without any goes through each file once, from the first to the last. What
`specs/` and `cache/` do for a room belongs to it, as does starting Python: the way begins with
`_look_up`, after the toolchain was identified, and ends with the settled result.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pallasc import compiler
from pallasc.compiler.builds import build as builds
from pallasc.compiler.builds.options import Options

ROOT = Path(compiler.__file__).resolve().parent

# In the order in which a variant enters them. `identity` and `sources` are entered where its last
# compilation imported a package of the user's, or read a file.
ROOMS = [
    *("builds/build", "inputs/lookup", "inputs/sources"),
    *("toolchain/modules", "toolchain/identity"),
]
CURIOUS = """
from pathlib import Path

import numpy
import helper

try:
    import not_there
except ImportError:
    pass

FACTOR = int((Path(__file__).parent / "factor.txt").read_text())


def run(x):
    return helper.times(x, FACTOR)
"""


class Way:
    """The rooms that calls go through, each time one is entered."""

    def __init__(self) -> None:
        self.entered: list[str] = []

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call, as a function for `sys.setprofile`."""
        path = Path(frame.f_code.co_filename).resolve()
        if event == "call" and ROOT in path.parents:
            room = str(path.relative_to(ROOT).with_suffix(""))
            if self.entered[-1:] != [room]:
                self.entered.append(room)

    @property
    def rooms(self) -> list[str]:
        """The rooms, in the order in which they were entered first."""
        return [*dict.fromkeys(self.entered)]

    @property
    def returns(self) -> int:
        """How often a room was entered again."""
        return len(self.entered) - len(self.rooms)


def _way_of(project: Any, variants: list[Any], monkeypatch: pytest.MonkeyPatch) -> Way:
    """Build variants that are in the store; return the way through the look-up."""
    way, look_up = Way(), builds._Build._look_up

    def watched(*arguments: Any, **options: Any) -> None:
        before = sys.getprofile()
        sys.setprofile(way.note)
        try:
            look_up(*arguments, **options)
        finally:
            sys.setprofile(before)

    with monkeypatch.context() as patch:
        patch.setattr(builds._Build, "_look_up", watched)
        report = builds.build(variants, store=project.store, options=Options(jobs=1))
    assert {result.status for result in report.results} == {"hit"}
    return way


def test_the_longest_way_of_a_hit_has_five_rooms_and_six_returns(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("kernel.py", CURIOUS)
    project.write("helper.py", "def times(x, factor): return x * factor\n")
    project.write("factor.txt", "2")
    project.spec({"name": "twice", "entry": "kernel.py:run"})
    assert project.build().exit_code == 0
    way = _way_of(project, project.variants(), monkeypatch)
    assert way.rooms == ROOMS
    assert way.returns <= 6


def test_a_variant_that_shares_its_sources_goes_through_two_rooms(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("kernel.py", "def run(x): return x * 2\n")
    project.spec({"name": "twice", "entry": "kernel.py:run"})
    assert project.build().exit_code == 0
    variants = project.variants()
    alone = _way_of(project, variants, monkeypatch)
    assert alone.rooms == [room for room in ROOMS if room != "toolchain/identity"]
    # Sources are checked once in a build, however many variants read them.
    both = _way_of(project, variants * 2, monkeypatch)
    second = both.entered[len(alone.entered) :]
    assert set(second) == {"builds/build", "inputs/lookup"}
    assert len(second) <= 5
