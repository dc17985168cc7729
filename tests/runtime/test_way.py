"""The files that the first call of a kernel goes through, in their order.

A *room* is a file of `runtime/`, counted where a call enters it first. Four are not counted, since
every other asks them: `arrays`, `candidates` and `variants`, which hold the values that a call is
about, and `devices`, through which every call of the driver goes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import made

from pallasc.runtime import kernel as entrance
from pallasc.runtime.device.devices import active, get_device

ROOT = Path(entrance.__file__).resolve().parent

STAGES = [
    "kernel",
    *("calls/match", "matching/selection"),
    *("calls/launch", "calls/program", "device/parameters"),
]
FAST_PATH = {
    *("calls/fast_path", "calls/fast_path_table", "calls/generated"),
    "calls/native_path",
}

# Every stage reads what arrays and variants are, and every call of the driver is checked there.
VALUES = {"matching/arrays", "matching/candidates", "matching/variants", "device/devices"}

# What a route and a program hold: a table of plans, and the comparisons of addresses.
HELD = {"calls/plan_table", "calls/addresses"}


def _entered(function: Any, *arguments: Any) -> list[str]:
    """Return the files of the runtime that a call enters, each where it is entered first."""
    codes: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes[frame.f_code.co_filename] = None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    files = [Path(name).resolve() for name in codes]
    return [str(file.relative_to(ROOT).with_suffix("")) for file in files if ROOT in file.parents]


def test_a_first_call_goes_through_one_file_after_the_other(
    runtime: Any, framework: Any, adds: Any, python_only: None
) -> None:
    a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
    with active(get_device(0)):
        first = [file for file in _entered(adds, a, b) if file not in VALUES | HELD]
        assert first == STAGES
        assert len(first) <= 6
        # What makes later calls fast takes longer than all else, so a first call does without.
        assert {*_entered(adds, a, b)} - VALUES - HELD - {*STAGES} == FAST_PATH


def test_a_later_call_with_known_addresses_enters_no_file(
    runtime: Any, framework: Any, adds: Any, python_only: None
) -> None:
    a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
    with active(get_device(0)):
        out = adds(a, b)
        adds(a, b)
        assert _entered(lambda: adds.into(a, b, out=out)) == []


def test_a_first_call_in_a_stream_of_the_caller_enters_one_file_more(
    runtime: Any, framework: Any, adds: Any
) -> None:
    a, b = framework.tensor("f32[4, 64]"), framework.tensor("f32[4, 64]")
    out = framework.tensor("f32[4, 64]")
    stream = made.stream()
    with active(get_device(0)):
        entered = {*_entered(lambda: adds.into(a, b, out=out, stream=stream))}
    assert entered - VALUES - HELD - {*STAGES} == {"device/streams"}
