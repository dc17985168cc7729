"""What `pallasc tune run` prints of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallasc.cli.launching.chip import device_json
from pallasc.cli.terminal.output import count

if TYPE_CHECKING:
    from pallasc.cli.tune.measuring import Report
    from pallasc.specs.loading.tune_results import Contest, PointResults

_NO_WINNER = 1


def exit_code(report: Report) -> int:
    """Return 1 where the points of a key all failed, else 0."""
    return 0 if all(own.winner for own in _contests(report)) else _NO_WINNER


def summary_text(report: Report) -> str:
    """Return the totals, where the results lie, and what to do with them."""
    contests = _contests(report)
    failed = sum(bool(point.failed) for own in contests for point in own.points.values())
    points = sum(len(match.entries) for match in report.matches)
    without = sum(own.winner is None for own in contests)
    parts = [count(len(contests), "key"), count(points, "point")]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{count(without, 'key')} without a valid point"] if without else []
    total = f"{', '.join(parts)} on {report.device}: {report.results.file}"
    if report.changed:
        return total
    again = "; --retry-failed tries the failed points again" if failed else ""
    return f"{total}\nEvery key was done before, and the results are unchanged{again}."


def summary_json(report: Report) -> dict[str, object]:
    """Return what `--json` prints."""
    return {
        "file": report.results.file,
        "device": device_json(report.device),
        "job": report.results.start.job,
        "resumed": report.resumed,
        "changed": report.changed,
        "keys": [_contest_json(own) for own in _contests(report)],
    }


def _contests(report: Report) -> list[Contest]:
    return [report.results.contests[match.contest_key] for match in report.matches]


def _contest_json(contest: Contest) -> dict[str, object]:
    winner = None if contest.winner is None else contest.points[contest.winner]
    return {
        "kernel": contest.kernel,
        "key": list(contest.key),
        "at": contest.at,
        "winner": contest.winner,
        "why": contest.done,
        "us": None if winner is None else winner.median_us,
        "rounds": len(contest.rounds),
        "spent_s": contest.spent_s,
        "points": [_point_json(point) for point in contest.points.values()],
    }


def _point_json(point: PointResults) -> dict[str, object]:
    return {
        "id": point.id,
        "params": point.params,
        "artifact": point.artifact,
        "us": point.median_us if point.times_us else None,
        "rounds": len(point.times_us),
        "failed": point.failed or None,
        "failed_before": point.failed_before,
        "dropped": point.dropped or None,
    }
