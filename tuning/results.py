"""Results of `pallasc tune run`: lines of JSON, each with a checksum, in the order of the run.

Schema 1, ASCII, append-only; each line is canonical JSON (`specs/canonical.py`) and is synced to
the disk before the next measurement:

    results = start { start | point | times | dropped | done }
    line    = object with "kind" and "check" LF
    start   = {schema: 1, job: digest, device: text, model: text | null, arch: text, driver: text,
               date: "2026-11-23", settings: object}
    point   = subject {id, params: object, target: text, artifact: digest, state: "ok" | "failed",
               why: text}
    times   = subject {round: n, times_us: {id: us}, spent_s: seconds,
               [clock_mhz: n], [temperature_c: n], [throttled: [text]]}
    dropped = subject {id, by: id, why: text}
    done    = subject {winner: id | null, why: text}
    subject = {kernel: text, key: [scalar], [at: {parameter: scalar}]}

* `check` is the first 16 hexadecimal digits of the SHA-256 of the line's canonical JSON without
  `check`
* each run writes a start before its other lines. All starts of a file have the same job, device,
  and schema. The driver and date of a contest come from the last start before its last round
* a **contest** compares the points of a key on one GPU. `key` has the exact values of `tune.by`;
  `at` has the values of the matrix's other parameters, if there are any
* if several point lines have one id, the last one counts: a point may fail in a later round. If it
  does, the points that were dropped in comparisons with it (`by`) take part again
* rounds of a contest are numbered from 1 without gaps; `times_us` has all remaining points
* `driver` is NVIDIA's version, `580.95.05`, empty if unknown
* a last line without a line feed is incomplete: it does not count, and causes a warning

Schema 1 is the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pallasc.errors import CorruptError, Location, SpecError
from pallasc.specs.canonical import Scalar, canonical_json, canonical_text, plain
from pallasc.specs.tuning import Measured
from pallasc.specs.user_files import read_regular

RESULTS_SCHEMA = 1
_MOST_BYTES = 1 << 30
_CHECK_DIGITS = 16

# ---- records; see the grammar


class Start(Struct, frozen=True, tag_field="kind", tag="start"):
    """The job, the GPU, and the date of a run."""

    job: str
    device: str
    model: str | None
    arch: str
    driver: str
    date: str
    settings: dict[str, Any]
    schema: int = RESULTS_SCHEMA


class _Subject(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag=str.lower):
    kernel: str
    key: tuple[Scalar, ...]
    at: dict[str, Scalar] = {}


class Point(_Subject, frozen=True, kw_only=True):
    """The state of a point."""

    id: str
    params: dict[str, Scalar]
    target: str
    artifact: str
    state: Literal["ok", "failed"]
    why: str


class Times(_Subject, frozen=True, kw_only=True):
    """A round: the times of the remaining points, and the conditions if known."""

    round: int
    times_us: dict[str, float]
    spent_s: float
    clock_mhz: int | None = None
    temperature_c: int | None = None
    throttled: Sequence[str] = ()


class Dropped(_Subject, frozen=True, kw_only=True):
    """A point that leaves its contest, the point it was compared with, and the reason."""

    id: str
    by: str
    why: str


class Done(_Subject, frozen=True, kw_only=True):
    """The end of a contest; `winner` is None if no point is valid."""

    winner: str | None
    why: str


Record = Start | Point | Times | Dropped | Done

# ---- results, made from records


class PointResults(Struct):
    """The results of a point of a contest.

    Attributes:
        id: the variant's id.
        params: its parameters.
        target: the model that it was compiled for.
        artifact: digest of the launched artifact.
        failed: why the point failed, "" if it did not; a failed point's earlier times do not count.
        dropped: why the point was dropped, "" if it was not.
        dropped_by: the id of the point that it was compared with when it was dropped.
        times_us: its times in microseconds, by round.
    """

    id: str
    params: dict[str, Scalar]
    target: str
    artifact: str
    failed: str = ""
    dropped: str = ""
    dropped_by: str = ""
    times_us: dict[int, float] = {}

    @property
    def median_us(self) -> float:
        """The median of its times; the point must have times."""
        return statistics.median(self.times_us.values())


ContestKey = tuple[str, str]
"""The kernel, and the canonical JSON of `key` and `at`."""


class Contest(Struct):
    """A comparison of the points of a key.

    Attributes:
        kernel: name of the kernel.
        key: the exact values of `tune.by`.
        at: values of the matrix parameters that are not in `by`.
        points: the points by id, in the order of the file.
        leaders: for each dropped point, the point that it was compared with, in order of dropping.
        rounds: its complete rounds.
        spent_s: time spent on measurements.
        winner: the id of the best point; None if no point is valid, or before the end.
        done: why the contest ended, "" before its end.
        start: start of the run that measured the last round, None before the first round.
    """

    kernel: str
    key: tuple[Scalar, ...]
    at: dict[str, Scalar] = {}
    points: dict[str, PointResults] = {}
    leaders: list[str] = []
    rounds: list[Times] = []
    spent_s: float = 0.0
    winner: str | None = None
    done: str = ""
    start: Start | None = None

    def __iter__(self) -> Iterator[PointResults]:
        return iter(self.points.values())

    @property
    def valid(self) -> list[PointResults]:
        """The points that have times and did not fail."""
        return [point for point in self if point.times_us and not point.failed]

    @property
    def failed(self) -> list[PointResults]:
        """The points that failed."""
        return [point for point in self if point.failed]

    def ratios(self, one: str, other: str) -> list[float]:
        """Return the time of `one` over the time of `other`, in each round that measured both."""
        a, b = self.points[one].times_us, self.points[other].times_us
        return [a[number] / b[number] for number in sorted(a.keys() & b.keys())]

    def measured(self, point: PointResults) -> Measured:
        """Return the figures of a point with times, in the form of a table row.

        The driver and the date come from the run that measured the last round, even if a later run
        ended the contest.
        """
        if self.start is None:
            raise ValueError(f"{point.id} has no times")
        times = sorted(point.times_us.values())
        quartiles = statistics.quantiles(times, n=4, method="inclusive") if times[1:] else times * 3
        clocks = [self.rounds[number - 1].clock_mhz for number in point.times_us]
        known = [clock for clock in clocks if clock is not None]
        return Measured(
            us=round(point.median_us, 3),
            spread_percent=round(100 * (quartiles[2] - quartiles[0]) / point.median_us, 2),
            rounds=len(times),
            device=self.start.device,
            driver=self.start.driver,
            clock_mhz=int(statistics.median(known)) if known else None,
            date=self.start.date,
        )

    def add(self, record: Record, start: Start) -> None:
        """Update the contest with a record of a run.

        Raises:
            LookupError, ValueError: the record contradicts earlier ones.
        """
        match record:
            case Point():
                self._add_point(record)
            case Times():
                self._add_round(record, start)
            case Dropped():
                point, other = self.points[record.id], self.points[record.by]
                point.dropped, point.dropped_by = record.why, other.id
                self.leaders.append(other.id)
            case Done():
                self.winner, self.done = record.winner, record.why

    def _add_point(self, record: Point) -> None:
        new = PointResults(record.id, record.params, record.target, record.artifact)
        point = self.points.setdefault(record.id, new)
        point.failed = record.why if record.state == "failed" else ""
        for other in self if point.failed else ():
            if other.dropped_by == point.id:
                other.dropped = other.dropped_by = ""

    def _add_round(self, record: Times, start: Start) -> None:
        if record.round != len(self.rounds) + 1:
            raise ValueError(f"round {record.round} comes after round {len(self.rounds)}")
        for name, us in record.times_us.items():
            self.points[name].times_us[record.round] = us
        self.rounds.append(record)
        self.spent_s, self.start = record.spent_s, start


def contest_key(kernel: str, key: Sequence[Scalar], at: Mapping[str, Scalar]) -> ContestKey:
    """Return the key of a contest; the values 1 and true give different keys."""
    return kernel, canonical_text([key, dict(at)])


class Results(Struct):
    """The contents of a file of results.

    Attributes:
        file: the file's path for messages.
        start: start of the last run.
        contests: the contests, in the order of the file.
        torn: warning that the last line is incomplete and was dropped, "" if it is complete.
        whole_bytes: length of the file without an incomplete last line.
    """

    file: str
    start: Start
    contests: dict[ContestKey, Contest] = {}
    torn: str = ""
    whole_bytes: int = 0

    def add(self, record: Record) -> None:
        """Update the results with a record.

        Raises:
            LookupError, ValueError: the record contradicts earlier ones.
        """
        if isinstance(record, Start):
            first = self.start
            if (record.job, record.device, record.arch) != (first.job, first.device, first.arch):
                raise ValueError("the run that starts here is of another job or GPU than the first")
            self.start = record
        else:
            key = contest_key(record.kernel, record.key, record.at)
            new = Contest(record.kernel, record.key, record.at)
            self.contests.setdefault(key, new).add(record, self.start)


# ---- reading


def line_of(record: Record) -> bytes:
    """Return the line of a record: canonical JSON with its check, and a line feed."""
    data = msgspec.to_builtins(record)
    return canonical_json({**data, "check": _check_of(data)}) + b"\n"


def _check_of(record: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical_json(record)).hexdigest()[:_CHECK_DIGITS]


def read_results(path: Path) -> Results:
    """Read a file of results.

    Raises:
        SpecError: the file cannot be read, has other contents, or has another schema.
        CorruptError: a line does not match its check or the grammar, or the file has the results of
            two jobs or two GPUs.
    """
    return parse_results(read_regular(str(path), most_bytes=_MOST_BYTES), str(path))


def parse_results(data: bytes, shown: str) -> Results:
    """Parse a file of results; see `read_results`."""
    *lines, tail = data.split(b"\n")
    results: Results | None = None
    for number, line in enumerate(lines, 1):
        try:
            if results is None:
                results = Results(shown, _first(line, shown))
            results.add(_record(line))
        except (LookupError, ValueError, msgspec.MsgspecError) as error:
            what = f"{error} is missing" if isinstance(error, LookupError) else error
            raise CorruptError(
                f"{what}.",
                location=Location(shown, number),
                hint="Restore the file, or remove this line and those after it, and measure again.",
            ) from error
    if results is None:
        raise _not_results(shown)
    results.whole_bytes = len(data) - len(tail)
    if tail:
        results.torn = (
            f"{shown}:{len(lines) + 1}: the last line was cut after {len(tail)} bytes; it is "
            "dropped."
        )
    return results


def _first(line: bytes, shown: str) -> Start:
    try:
        start = msgspec.json.decode(line, type=Start)
    except msgspec.MsgspecError:
        raise _not_results(shown) from None
    if start.schema != RESULTS_SCHEMA:
        raise SpecError(
            f"the results have schema {start.schema}, and this pallasc reads {RESULTS_SCHEMA}.",
            location=Location(shown, 1),
            hint="Measure again with pallasc tune run, or use the pallasc that wrote them.",
        )
    return start


def _record(line: bytes) -> Record:
    data = msgspec.json.decode(line, type=dict[str, Any])
    if data.pop("check", "") != _check_of(data):
        raise ValueError("the line does not match its check: the file was changed or damaged")
    record: Record = msgspec.convert(data, Record)
    return record


def _not_results(shown: str) -> SpecError:
    return SpecError(
        f"{shown}: this is not a file of results of pallasc tune run.",
        hint="Give the file that pallasc tune run JOB -o FILE wrote.",
    )


# ---- writing

_LIKE_BEFORE = ("cold", "repeats")
"""Settings that change the meaning of a time: rounds with other settings cannot be compared."""


class ResultsFile:
    """A file of results that a run appends to.

    Attributes:
        results: the contents of the file, updated with each written record.
        resumed: True if the file had results before this run.
        changed: True if this run has written to the file.
    """

    def __init__(self, descriptor: int, path: Path, start: Start) -> None:
        self._descriptor = descriptor
        self._path = path
        self._start: Start | None = start
        self.resumed = os.fstat(descriptor).st_size > 0
        self.changed = False
        if self.resumed:
            self.results = read_results(path)
            check_start(self.results.start, start, str(path))
        else:
            self.results = Results(str(path), start)
        if self.results.torn or not self.resumed:
            self._write(b"")

    def add(self, record: Record) -> None:
        """Write a record and add it to the results.

        Raises:
            SpecError: the file cannot be written.
        """
        self._write(line_of(record))
        self.results.add(record)

    def _write(self, line: bytes) -> None:
        """Append a line; the first call also removes an incomplete line and writes the start."""
        with _refusing(self._path):
            if self._start is not None:
                line = line_of(self._start) + line
                os.ftruncate(self._descriptor, self.results.whole_bytes)
            with open(self._descriptor, "ab", closefd=False) as file:
                file.write(line)
            os.fsync(self._descriptor)
        self.changed = True
        if self._start is not None:
            self.results.add(self._start)
            self._start = None


@contextmanager
def open_results(path: Path, start: Start) -> Iterator[ResultsFile]:
    """Open the file that a run writes: a new one, or the file of a run of the same job and GPU.

    An incomplete last line is removed. The next start is written with the first new record, so a
    complete file does not change.

    Raises:
        SpecError: the file has other contents (it is not changed), another run is writing it, or it
            cannot be written.
        CorruptError: the file is damaged.
    """
    with _refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        with _refusing(path):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield ResultsFile(descriptor, path, start)
    finally:
        os.close(descriptor)


def check_start(found: Start, wanted: Start, shown: str) -> None:
    """Check that a run may continue a file: same job, same GPU, same settings of measurements.

    Raises:
        SpecError: one of these differs.
    """
    both = found, wanted
    facts = {
        "of another job": [f"{start.job[:12]}…" for start in both],
        "of another GPU": [f"{start.device} ({start.arch})" for start in both],
        **{f"with another --{n}": [plain(s.settings.get(n)) for s in both] for n in _LIKE_BEFORE},
    }
    for what, (before, now) in facts.items():
        if before != now:
            raise SpecError(
                f"{shown} has results {what}: {before}, and this is {now}.",
                hint="Give -o another path; nothing was changed.",
            )


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise SpecError(
            f"another pallasc tune run is writing {path}.", hint="Wait for it, or give -o a path."
        ) from None
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror}."
        raise SpecError(message, hint="Give -o another path.") from error
