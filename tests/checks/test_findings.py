"""Results of levels as JSON; one bug is one finding, of several threads and levels; its lines."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pallasc.checks.findings import (
    CALLED,
    Finding,
    LevelResult,
    Place,
    distinct_findings,
    from_findings,
    merged,
    not_checked,
    result_from_json,
    to_json,
)
from pallasc.checks.levels import Subject
from pallasc.checks.locate import with_lines, with_source_lines
from pallasc.compiler.lowering import LineTable, Part
from pallasc.errors import CompileError, Location, PallascError, ToolError

FOUND = from_findings(
    "artifact",
    (
        Finding(
            rule="race",
            message="two writes",
            location=Location("/specs/k.py", 3, 4),
            places=(Place("the other", Location("/lib/m.py", 9)), Place("nowhere")),
        ),
    ),
)
RESULTS = [
    from_findings("artifact", ()),
    replace(from_findings("artifact", ()), seconds=1.5, notes=("for m=4",)),
    not_checked("interpreter", "it needs the source"),
    not_checked("interpreter", "it took too long", stopped=True),
    FOUND,
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_survives_json(result: LevelResult) -> None:
    assert result_from_json(json.loads(json.dumps(to_json(result)))) == result


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"status": "found"},
        {"status": "not checked"},
        {"reason": "passed for a reason"},
        {"findings": [{}]},
        {"findings": None},
        {"seconds": "1"},
        {"stopped": 0},
        {"notes": [1]},
        {"level": None},
    ],
)
def test_what_is_no_result_is_refused(change: dict[str, Any]) -> None:
    data = {**json.loads(json.dumps(to_json(RESULTS[0]))), **change}
    with pytest.raises(ValueError, match=r"."):
        result_from_json(data)


READ, WRITE, WAIT, CALL = (Location("/k.py", line, 5) for line in (10, 20, 30, 40))


def race(second: Location | None, first: Location | None, **changes: Any) -> Finding:
    settings: dict[str, Any] = {
        "rule": "race",
        "message": "a read of 4 bytes races with a write",
        "location": second,
        "places": (Place("the first", first),),
        **changes,
    }
    return Finding(**settings)


def test_a_race_that_is_seen_from_both_sides_is_one_finding() -> None:
    other = race(
        WRITE,
        READ,
        message="a write of 16 bytes races with a read",
        places=(Place(CALLED, CALL), Place("the first", READ), Place("a wait", WAIT)),
    )
    (finding,) = merged([race(READ, WRITE), other, race(READ, WRITE)])
    assert finding.message == "a read of 4 bytes races with a write; 2 more like it"
    assert finding.location == READ
    assert [place.location for place in finding.places] == [WRITE, CALL, WAIT]


def test_a_race_is_told_where_something_should_wait_and_not_where_a_copy_starts() -> None:
    copy = race(WRITE, READ, instruction="@%p1 cp.async.bulk.tensor.1d [%r1], PTX line 7")
    load = race(READ, WRITE, instruction="ld.shared.f32 %f1, [%r1], PTX line 9")
    for findings in ([copy, load], [load, copy]):
        (finding,) = merged(findings)
        assert (finding.location, finding.instruction) == (READ, load.instruction)
    assert merged([copy]) == (copy,)


def test_what_differs_in_a_line_a_rule_or_a_severity_stays() -> None:
    findings = [
        race(READ, WRITE),
        race(READ, WAIT),
        race(READ, WRITE, rule="missing-proxy-fence"),
        race(READ, WRITE, severity="note"),
    ]
    assert merged(findings) == tuple(findings)


def test_a_race_that_several_levels_find_is_told_once_where_lines_are_marked() -> None:
    deadlock = Finding(rule="deadlock", message="all wait", location=WAIT)
    levels = [
        from_findings("interpreter", (race(READ, WRITE), deadlock)),
        from_findings("artifact", (race(WRITE, READ), race(READ, WAIT), deadlock)),
    ]
    told = [*distinct_findings(levels)]
    assert told == [race(READ, WRITE), deadlock, race(READ, WAIT), deadlock]


STACK = [Location("k.py", line) for line in (9, 6, 3, 1)]
"""Of each PTX line: the line itself, two calls that lead to it, and the kernel's."""


LOOP = Location("k.py", 7)
MEMORY = (Part("scratch", "tile", "f32[128]", 512, 0), Part("barrier", "full", "[2]", 16, 1024))
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
        ([{}], "compiling again gave different code"),
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
    limits: Any = SimpleNamespace(jobs=1, timeout_s=5.0)
    subjects = [(result, Subject("k", artifact, variant)), (result, Subject("k", artifact))]
    (located, is_complete), (without_source, _) = with_source_lines(subjects, store, limits)
    assert located.notes == (f"no source lines: {why}",)
    assert not is_complete
    assert without_source.notes == ()
