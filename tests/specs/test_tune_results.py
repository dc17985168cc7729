"""Results of `pallasc tune run`: what is read, what is dropped, what is refused by name."""

from pathlib import Path

import msgspec
import pytest

from pallasc.errors import CorruptError, PallascError, SpecError
from pallasc.specs.tuning import Measured
from pallasc.tuning.results import Start, contest_key, line_of, parse_results, read_results

START = Start(
    "5a" * 32, "NVIDIA H100 80GB HBM3", "h100-sxm", "sm_90", "580.95.05", "2026-11-23", {}
)
SUBJECT = {"kernel": "matmul", "key": [1024, "bf16"]}
IDS = ("matmul[tile=64]@h100-sxm", "matmul[tile=128]@h100-sxm")


def point(number: int, **changed: object) -> dict[str, object]:
    own = {"params": {"tile": 64 << number}, "target": "h100-sxm", "artifact": f"{number}" * 64}
    rest = {"id": IDS[number], "state": "ok", "why": "", **own, **changed}
    return {"kind": "point", **SUBJECT, **rest}


def times(number: int, *us: float, **more: object) -> dict[str, object]:
    named = dict(zip(IDS, us, strict=False))
    return {"kind": "times", **SUBJECT, "round": number, "times_us": named, "spent_s": 0.5, **more}


BOTH = [msgspec.to_builtins(START), point(0), point(1)]
DROPPED = {"kind": "dropped", **SUBJECT, "id": IDS[1], "by": IDS[0], "why": "slower: 9 of 9"}
DONE = {"kind": "done", **SUBJECT, "winner": IDS[0], "why": "faster than the rest"}


def content(*records: dict[str, object]) -> bytes:
    return b"".join(map(line_of, records))


def test_points_have_their_times_by_round(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rounds = [
        times(1, 10.0, 14.0, clock_mhz=1755, temperature_c=51),
        times(2, 12.0, 15.0, clock_mhz=1755, throttled=["power"]),
        times(3, 11.0),
    ]
    file.write_bytes(content(*BOTH, *rounds, DROPPED, DONE))
    results = read_results(file)
    contest = results.contests[contest_key("matmul", [1024, "bf16"], {})]
    fast, slow = (contest.points[name] for name in IDS)
    assert (fast.times_us, slow.times_us) == ({1: 10.0, 2: 12.0, 3: 11.0}, {1: 14.0, 2: 15.0})
    assert contest.ratios(IDS[0], IDS[1]) == [10 / 14, 12 / 15]
    assert (contest.winner, contest.done) == (IDS[0], DONE["why"])
    assert slow.dropped == DROPPED["why"]
    assert contest.rounds[1].throttled == ["power"]
    name, driver = START.device, START.driver
    expected = Measured(11.0, 9.09, 3, name, driver, 1755, "2026-11-23")
    assert contest.measured(fast) == expected
    assert not results.torn
    whole, last = file.read_bytes(), line_of(times(4, 10.0, 14.0))
    for kept in (1, -1):
        cut = parse_results(whole + last[:kept], "r.jsonl")
        assert len(cut.contests[contest_key("matmul", [1024, "bf16"], {})].rounds) == 3
        assert cut.whole_bytes == len(whole)
        assert "r.jsonl:9: the last line was cut" in cut.torn


def test_a_point_that_fails_later_has_no_valid_times_and_what_it_had_beaten_takes_part() -> None:
    failed = point(0, state="failed", why="an illegal address")
    results = parse_results(content(*BOTH, times(1, 10.0, 14.0), DROPPED, failed), "r")
    (contest,) = results.contests.values()
    assert contest.leaders == [IDS[0]]
    assert [own.id for own in contest.valid] == [IDS[1]]
    assert [own.failed for own in contest.failed] == ["an illegal address"]
    assert (contest.points[IDS[1]].dropped, contest.points[IDS[1]].dropped_by) == ("", "")


FLIPPED = content(*BOTH, times(1, 10.0, 14.0), DONE).replace(b"14.0", b"13.0")


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"", SpecError, "not a file of results"),
        (b'{"kind":"point","check":"0"}\n', SpecError, "not a file of results"),
        (line_of(START)[:-1], SpecError, "not a file of results"),
        (
            content({**msgspec.to_builtins(START), "schema": 0}),
            SpecError,
            "r:1: the results have schema 0",
        ),
        (FLIPPED, CorruptError, "r:4: the line does not match its check"),
        (
            content(*BOTH, times(1, 1), times(1, 1)),
            CorruptError,
            "r:5: round 1 comes after round 1",
        ),
        (content(BOTH[0], times(1, 1.0)), CorruptError, "r:2: .*tile=64.* is missing"),
        (
            content(*BOTH, {"kind": "done", **SUBJECT}),
            CorruptError,
            "missing required field `winner`",
        ),
        (
            content(*BOTH, {**msgspec.to_builtins(START), "job": "00" * 32}),
            CorruptError,
            "r:4: the run that starts here is of another job or GPU",
        ),
    ],
)
def test_what_is_not_as_written_is_refused(
    data: bytes, kind: type[PallascError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        parse_results(data, "r")
