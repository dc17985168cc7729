"""Where costs come from: locks, reports, and what is neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pallasc.compiler.shards.costs import NO_COSTS, Costs, find_costs
from pallasc.errors import SpecError
from pallasc.specs.lock import Entry, Lock, write_lock

ENTRY = Entry("a" * 64, "b" * 64, "c" * 64)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lock(path: str, **costs: float) -> Path:
    names = ["a", "b", "c", "d"]
    write_lock(Path(path), Lock({}, dict.fromkeys(names, ENTRY), costs))
    return Path(path)


def report(path: str, *rows: object) -> Path:
    Path(path).write_text(json.dumps({"schema": 1, "variants": rows}))
    return Path(path)


def test_without_a_file_there_are_no_costs() -> None:
    assert find_costs() is NO_COSTS
    assert (NO_COSTS.digest, NO_COSTS.milliseconds) == ("", {})


def test_the_lock_of_the_folder_is_taken_unless_another_is_named() -> None:
    lock("pallasc.lock", a=1, b=2, c=3, d=4)
    lock("other.lock", a=5, b=2, c=3, d=4)
    costs = find_costs()
    assert costs.milliseconds == {"a": 1000, "b": 2000, "c": 3000, "d": 4000}
    assert costs.source == "pallasc.lock"
    assert find_costs(lock=Path("other.lock")).milliseconds["a"] == 5000
    assert find_costs(file=Path("other.lock")).milliseconds["a"] == 5000
    assert len({find_costs().digest, find_costs(Path("other.lock")).digest}) == 2


def test_a_variant_of_the_lock_without_a_cost_counts_as_the_usual_one() -> None:
    lock("pallasc.lock", a=1, b=2, c=9)
    assert find_costs().milliseconds["d"] == 2000


def test_a_lock_without_costs_gives_each_shard_as_many() -> None:
    lock("pallasc.lock")
    assert set(find_costs().milliseconds.values()) == {1000}


def test_a_report_of_a_build_has_the_time_of_each_variant() -> None:
    file = report(
        "report.json",
        {"id": "compiled", "status": "compiled", "seconds": 1.25, "saved_s": 0.0},
        {"id": "hit", "status": "hit", "seconds": 0.001, "saved_s": 3.5},
        {"id": "failed", "status": "failed", "seconds": 0.7, "saved_s": 0},
        {"id": "skipped", "status": "skipped", "seconds": 0.0, "saved_s": 0.0},
        {"id": "lowered", "status": "lowered", "seconds": 0.3, "saved_s": 0.0},
        {"id": "odd", "status": "compiled", "seconds": "soon"},
        {"id": 1, "status": "compiled", "seconds": 1},
        "text",
    )
    costs = find_costs(file)
    assert costs.milliseconds == {"compiled": 1250, "failed": 700, "hit": 3500}
    assert costs.source == "report.json"


def test_a_report_of_checks_has_what_the_levels_took() -> None:
    results = [{"level": "interpreter", "seconds": 0.25}, {"level": "artifact", "seconds": 2}]
    file = report("checks.json", {"id": "a", "results": results}, {"id": "b", "results": []})
    assert find_costs(file).milliseconds == {"a": 2250}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"variants": [', "neither a lock file nor a report"),
        ("{}", "has no variant with a time."),
        ('{"variants": [{"id": "a", "seconds": 0, "status": "compiled"}]}', "has no variant with"),
        ('{"variants": 3}', "has no variant with a time."),
        ("schema: 1\ntoolchain: {}\nvariants: {}\n", "has no variant with a time."),
        ("PK\x03\x04", "costs.json is neither a lock file nor a report"),
        ("<xml/>", "costs.json is neither a lock file nor a report"),
        ('{"a":' * 100_000, "neither a lock file nor a report"),
    ],
)
def test_what_has_no_times_is_a_mistake(text: str, message: str) -> None:
    Path("costs.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        find_costs(Path("costs.json"))


def test_a_file_that_is_named_must_exist() -> None:
    for named in ({"file": Path("none")}, {"lock": Path("none.lock")}):
        with pytest.raises(SpecError, match="there is no"):
            find_costs(**named)


def test_times_are_whole_milliseconds_and_the_digest_is_theirs() -> None:
    assert Costs({"a": 1.0004}).digest == Costs({"a": 1.0}).digest != Costs({"a": 1.001}).digest
