"""Results of levels as JSON, and moved between folders."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pallasc.checks.findings import (
    Finding,
    LevelResult,
    Place,
    from_findings,
    not_checked,
    result_from_json,
    to_json,
)
from pallasc.errors import Location

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


@pytest.mark.parametrize(
    ("result", "fails"),
    [*zip(RESULTS, (False, False, False, True, True), strict=True)],
)
def test_only_findings_and_stopped_checks_fail(result: LevelResult, fails: bool) -> None:
    assert result.fails is fails
