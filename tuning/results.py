"""Results of `pallasc tune run`: lines of JSON, each with a check, in the order of the run.

Schema 1, ASCII, append-only; each line is canonical JSON (`specs/canonical.py`) and is synced to
the disk before the next measurement:

    results = start { start | point | times | dropped | done | retry | end }
    line    = object with "kind" and "check" LF
    start   = {schema: 1, job: digest, device: text, model: text | null, arch: text, driver: text,
               date: "2026-11-23", settings: object}
    point   = subject {id, params: object, target: text, artifact: digest, state: "ok" | "failed",
               why: text, [outvoted: true]}
    times   = subject {round: n, times_us: {id: us}, spent_s: seconds,
               [clock_mhz: n], [temperature_c: n], [throttled: [text]]}
    dropped = subject {id, by: id, why: text}
    done    = subject {winner: id | null, why: text}
    retry   = subject {ids: [id]}
    end     = {why: text}
    subject = {kernel: text, key: [scalar], [at: {parameter: scalar}]}

* `check` is the first 16 hexadecimal digits of the SHA-256 of the line's canonical JSON without it
* a start is the first line, and the first of each resumption: same job, device, and schema. The
  driver and the date of a contest come from the last start before its last round
* a **contest** compares the points of a key on one GPU. `key` has the exact values of `tune.by`;
  `at` has the values of the matrix's other parameters, if there are any
* if several point lines have one id, the last one counts: a launched point may fail in a later
  round. Then the points that were dropped by comparison with it, `by`, take part again
* `outvoted` marks a point whose results differ from most points of its key
* a retry reopens a contest, done or not: its points, all of which failed, are launched again, and
  their earlier times count. Their earlier failures stay in the file
* rounds of a contest ascend from 1 without a gap; a line has the times of all remaining points
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.errors import CorruptError, Location, SpecError
from pallasc.specs.canonical import (
    as_flag,
    as_list,
    as_object,
    as_text,
    as_whole,
    canonical_json,
    fault,
    parse_json,
)
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Measured, as_number, as_scalar
from pallasc.specs.user_files import read_regular

RESULTS_SCHEMA = 1
_MOST_BYTES = 1 << 30
_CHECK_DIGITS = 16


@dataclass(slots=True)
class PointResults:
    """The results of a point of a contest.

    Attributes:
        id: the variant's id.
        params: its parameters.
        target: the model that it was compiled for.
        artifact: digest of the launched artifact.
        failed: why it has no valid times, "" if it has; a failed point's earlier times do not
            count.
        dropped: why it was not measured to the end, "" if it was.
        dropped_by: the id of the point that it was compared with.
        times_us: its time in each of its rounds, in microseconds.
        outvoted: True if it failed because its results differ from most points.
        again: True if it is to be launched again, and was not yet.
        failed_before: the reason of each failure before a retry.
    """

    id: str
    params: dict[str, Scalar]
    target: str
    artifact: str
    failed: str = ""
    dropped: str = ""
    dropped_by: str = ""
    times_us: dict[int, float] = field(default_factory=dict)
    outvoted: bool = False
    again: bool = False
    failed_before: list[str] = field(default_factory=list)

    @property
    def median_us(self) -> float:
        """The median time; there must be one."""
        return statistics.median(self.times_us.values())


@dataclass(frozen=True, slots=True)
class Round:
    """The conditions of a round, None or () if unknown, and the `check` of its line."""

    check: str
    clock_mhz: int | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()


@dataclass(slots=True)
class Contest:
    """A comparison of the points of a key.

    Attributes:
        kernel: the kernel.
        key: the exact values of `tune.by`.
        at: values of the matrix parameters that are not in `by`.
        points: the points by id, in the order of the file.
        leaders: the points that others were compared with when they were dropped, in this order.
        rounds: conditions of each round, by its number.
        spent_s: time spent on measurements.
        retried_s: `spent_s` at the last retry of failed points.
        winner: the id of the best point; None if none is valid, or it is not done.
        done: why it ended, "" if it has not.
        start: start of the run that measured its last round, None before the first round.
    """

    kernel: str
    key: tuple[Scalar, ...]
    at: dict[str, Scalar] = field(default_factory=dict)
    points: dict[str, PointResults] = field(default_factory=dict)
    leaders: list[str] = field(default_factory=list)
    rounds: dict[int, Round] = field(default_factory=dict)
    spent_s: float = 0.0
    retried_s: float = 0.0
    winner: str | None = None
    done: str = ""
    start: Start | None = None

    @property
    def valid(self) -> list[PointResults]:
        """The points that have times and did not fail."""
        return [point for point in self.points.values() if point.times_us and not point.failed]

    def ratios(self, one: str, other: str) -> list[float]:
        """Return the time of a point relative to another, in each round that had both."""
        a, b = self.points[one].times_us, self.points[other].times_us
        return [a[number] / b[number] for number in sorted(a.keys() & b.keys())]


@dataclass(frozen=True, slots=True)
class Start:
    """The job, the GPU, and the date of a run; see the grammar."""

    job: str
    device: str
    model: str | None
    arch: str
    driver: str
    date: str
    settings: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        """Return the record for the file."""
        named = {name: getattr(self, name) for name in self.__slots__}
        return {"kind": "start", "schema": RESULTS_SCHEMA, **named}


ContestKey = tuple[str, str]
"""The kernel, and the canonical JSON of `key` and `at`."""


@dataclass(slots=True)
class Results:
    """The contents of a file of results.

    Attributes:
        file: its path for messages.
        start: start of the last run.
        contests: the contests, in the order of the file.
        ended: why the last run ended, "" if it was interrupted.
        torn: remark on an incomplete last line, which was dropped; "" for none.
        whole_bytes: length of the file without that line.
    """

    file: str
    start: Start
    contests: dict[ContestKey, Contest] = field(default_factory=dict)
    ended: str = ""
    torn: str = ""
    whole_bytes: int = 0

    @property
    def failures(self) -> list[PointResults]:
        """The points that failed."""
        return [p for each in self.contests.values() for p in each.points.values() if p.failed]

    def measured(self, contest: Contest, point: PointResults) -> Measured:
        """Return the figures of a point with times, in the form of a table row.

        The driver and the date come from the run that measured its contest, not from a run that
        found it done.
        """
        start = contest.start or self.start
        times = sorted(point.times_us.values())
        low, _, high = (
            statistics.quantiles(times, n=4, method="inclusive") if times[1:] else times * 3
        )
        rounds = [contest.rounds[number].clock_mhz for number in point.times_us]
        clocks = [clock for clock in rounds if clock is not None]
        return Measured(
            us=round(point.median_us, 3),
            spread_percent=round(100 * (high - low) / point.median_us, 2),
            rounds=len(times),
            device=start.device,
            driver=start.driver,
            clock_mhz=int(statistics.median(clocks)) if clocks else None,
            date=start.date,
        )


def line_of(record: Mapping[str, object]) -> bytes:
    """Return the line of a record: canonical JSON with its check, and a line feed."""
    return canonical_json({**record, "check": _check_of(record)}) + b"\n"


def _check_of(record: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical_json(record)).hexdigest()[:_CHECK_DIGITS]


def read_results(path: Path) -> Results:
    """Read a file of results.

    Raises:
        SpecError: it cannot be read, is something else, or has another schema.
        CorruptError: a line does not match its check or the grammar, or the file has the results of
            two jobs or two GPUs.
    """
    return parse_results(read_regular(str(path), most_bytes=_MOST_BYTES), str(path))


def parse_results(data: bytes, shown: str) -> Results:
    """Parse a file of results; see `read_results`."""
    whole, _, tail = data.rpartition(b"\n")
    lines = whole.split(b"\n") if len(tail) < len(data) else []
    results: Results | None = None
    for number, line in enumerate(lines, 1):
        with _naming(Location(shown, number)):
            record = _record(line, shown, number)
            if record["kind"] == "start":
                results = _started(_start(record), results, shown)
            elif results is not None:
                add_record(record, results)
    if results is None:
        raise _not_results(shown)
    results.whole_bytes = len(data) - len(tail)
    if tail:
        results.torn = (
            f"{shown}:{len(lines) + 1}: the last line was cut after {len(tail)} bytes; it is "
            "dropped."
        )
    return results


def contest_key(kernel: str, key: Sequence[Scalar], at: Mapping[str, Scalar]) -> ContestKey:
    """Return the key of a contest; 1 and true differ."""
    return kernel, canonical_json([list(key), dict(at)]).decode()


def _not_results(shown: str) -> SpecError:
    return SpecError(
        f"{shown}: this is not a file of results of pallasc tune run.",
        hint="Give the file that pallasc tune run JOB -o FILE wrote.",
    )


def _record(line: bytes, shown: str, number: int) -> Mapping[str, object]:
    """Parse a line and remove its check; the first line must be a start."""
    try:
        record = dict(as_object(parse_json(line)))
        kind, check = as_text(record["kind"]), as_text(record.pop("check"))
    except (CorruptError, LookupError, TypeError):
        if number == 1:
            raise _not_results(shown) from None
        raise
    if number == 1 and kind != "start":
        raise _not_results(shown)
    # Another schema may define the check differently.
    if kind == "start" and record.get("schema") != RESULTS_SCHEMA:
        raise SpecError(
            f"the results have schema {record.get('schema')!r}, and this pallasc reads "
            f"{RESULTS_SCHEMA}.",
            location=Location(shown, number),
            hint="Measure again with pallasc tune run, or use the pallasc that wrote them.",
        )
    if check != _check_of(record):
        raise ValueError("the line does not match its check: the file was changed or damaged")
    return record


@contextmanager
def _naming(place: Location) -> Iterator[None]:
    """Add the location of a line to its errors."""
    hint = "Restore the file, or remove this line and those after it, and measure again."
    try:
        yield
    except CorruptError as error:
        raise CorruptError(error.message, location=place, hint=hint) from error
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"{fault(error)}.", location=place, hint=hint) from error


def _start(record: Mapping[str, object]) -> Start:
    model = record["model"]
    return Start(
        job=as_text(record["job"]),
        device=as_text(record["device"]),
        model=None if model is None else as_text(model),
        arch=as_text(record["arch"]),
        driver=as_text(record["driver"]),
        date=as_text(record["date"]),
        settings=as_object(record["settings"]),
    )


def _started(start: Start, results: Results | None, shown: str) -> Results:
    if results is None:
        return Results(shown, start)
    first = results.start
    if (start.job, start.device, start.arch) != (first.job, first.device, first.arch):
        raise ValueError("the run that starts here is of another job or GPU than the first")
    results.start, results.ended = start, ""
    return results


def add_record(record: Mapping[str, object], results: Results) -> None:
    """Update results with the record of a line, other than a start.

    Raises:
        LookupError, TypeError, ValueError: the record is malformed or contradicts earlier ones.
    """
    kind = as_text(record["kind"])
    if kind == "end":
        results.ended = as_text(record["why"])
        return
    if kind not in ("point", "times", "dropped", "done", "retry"):
        raise ValueError(f"{kind!r} is not a kind of record")
    kernel = as_text(record["kernel"])
    key = tuple(map(as_scalar, as_list(record["key"])))
    at = {name: as_scalar(own) for name, own in as_object(record.get("at", {})).items()}
    known = results.contests.setdefault(contest_key(kernel, key, at), Contest(kernel, key, at))
    if kind == "retry":
        _retry(record, known)
    elif known.done:
        raise ValueError("the contest of this line is done already")
    elif kind == "point":
        _add_point(record, known)
    elif kind == "times":
        _add_times(record, known)
        known.start = results.start
    elif kind == "dropped":
        _drop(record, known)
    else:
        winner = record["winner"]
        known.winner = None if winner is None else _point(known, winner).id
        known.done = as_text(record["why"])


def _add_point(record: Mapping[str, object], contest: Contest) -> None:
    state, name = record["state"], as_text(record["id"])
    if state not in ("ok", "failed"):
        raise ValueError(f"{state!r} is not a state")
    point = PointResults(
        id=name,
        params={name: as_scalar(own) for name, own in as_object(record["params"]).items()},
        target=as_text(record["target"]),
        artifact=as_text(record["artifact"]),
        failed=as_text(record["why"]) if state == "failed" else "",
        outvoted=as_flag(record.get("outvoted", False)),
    )
    before = contest.points.get(name)
    if before is not None:
        if (before.params, before.artifact) != (point.params, point.artifact):
            raise ValueError(f"{name} was another point before")
        point.times_us, point.dropped = before.times_us, before.dropped
        point.dropped_by, point.failed_before = before.dropped_by, before.failed_before
    contest.points[name] = point
    for other in contest.points.values() if point.failed else ():
        if other.dropped_by == name:
            other.dropped = other.dropped_by = ""


def _add_times(record: Mapping[str, object], contest: Contest) -> None:
    number = as_whole(record["round"])
    if number != len(contest.rounds) + 1:
        raise ValueError(f"round {number} comes after round {len(contest.rounds)}")
    clock, heat = record.get("clock_mhz"), record.get("temperature_c")
    contest.rounds[number] = Round(
        check=_check_of(record),
        clock_mhz=None if clock is None else as_whole(clock),
        temperature_c=None if heat is None else as_whole(heat),
        throttled=tuple(map(as_text, as_list(record.get("throttled", [])))),
    )
    contest.spent_s = as_number(record["spent_s"])
    for name, us in as_object(record["times_us"]).items():
        _point(contest, name).times_us[number] = as_number(us)
        if us == 0:
            raise ValueError(f"{name} took no time")


def _drop(record: Mapping[str, object], contest: Contest) -> None:
    point, other = (_point(contest, record[name]) for name in ("id", "by"))
    point.dropped, point.dropped_by = as_text(record["why"]), other.id
    contest.leaders.append(other.id)


def _retry(record: Mapping[str, object], contest: Contest) -> None:
    for name in as_list(record["ids"]):
        point = _point(contest, name)
        if not point.failed:
            raise ValueError(f"{point.id} did not fail")
        point.failed_before.append(point.failed)
        point.failed, point.outvoted, point.again = "", False, True
    contest.winner, contest.done, contest.retried_s = None, "", contest.spent_s


def _point(contest: Contest, name: object) -> PointResults:
    point = contest.points.get(as_text(name))
    if point is None:
        raise ValueError(f"{str(name)[:80]!r} is not a point of this contest")
    return point


_HINT = "Give -o another path."

_LIKE_BEFORE = ("cold", "repeats", "seed")
"""Settings that change the meaning of a time: rounds with other settings cannot be compared."""


class ResultsFile:
    """A file of results that a run appends to.

    Attributes:
        results: its content, always the same as reading it would give.
        resumed: True if it already had results.
        remark: a remark on the results that it had, "" for none.
        changed: True if this run has written to it.
    """

    def __init__(
        self,
        descriptor: int,
        results: Results,
        *,
        resumed: bool,
        remark: str = "",
        start: Start | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._is_broken = False
        self._start = start
        self.results = results
        self.resumed = resumed
        self.remark = remark
        self.changed = start is None

    def add(self, record: Mapping[str, object]) -> None:
        """Write a record and add it to the results; after an error, nothing more is written.

        Raises:
            SpecError: it cannot be written.
        """
        if self._is_broken:
            return
        line = line_of(record)
        if self._start is not None:
            line = line_of(self._start.to_json()) + line
        try:
            with _refusing(self.results.file):
                _append(self._descriptor, line)
        except SpecError:
            self._is_broken = True
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(line)
        self.changed = True
        if self._start is not None:
            self.results.start, self.results.ended, self._start = self._start, "", None
        add_record(record, self.results)


@contextmanager
def open_results(path: Path, start: Start) -> Iterator[ResultsFile]:
    """Open the file that a run writes: a new one, or the file of a run of the same job and GPU.

    An incomplete last line is removed. A complete file gets its next start with the first record,
    and none if nothing is left to do.

    Raises:
        SpecError: the file has something else, and is not changed; another run is writing it; or it
            cannot be written.
        CorruptError: it is damaged.
    """
    with _refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        with _refusing(path):
            _lock(descriptor, path)
        before, remark = None, ""
        if os.fstat(descriptor).st_size:
            before = read_results(path)
            remark = check_start(before.start, start, str(path))
        if before is not None and not before.torn:
            yield ResultsFile(descriptor, before, resumed=True, remark=remark, start=start)
            return
        line = line_of(start.to_json())
        with _refusing(path):
            os.ftruncate(descriptor, before.whole_bytes if before else 0)
            _append(descriptor, line)
            _sync_folder(path)
        results = before or parse_results(line, str(path))
        results.start, results.ended = start, ""
        yield ResultsFile(descriptor, results, resumed=before is not None, remark=remark)
    finally:
        os.close(descriptor)


def check_start(found: Start, wanted: Start, shown: str) -> str:
    """Check that a run may continue in a file: same job, same GPU, comparable times.

    Returns:
        A remark on the existing results, "" for none.

    Raises:
        SpecError: the file has something else.
    """
    if found.job != wanted.job:
        raise SpecError(
            f"{shown} has results of another job: {found.job[:12]}…, and this one is "
            f"{wanted.job[:12]}….",
            hint="Give -o another path; nothing was changed.",
        )
    here, there = (f"{own.device} ({own.arch})" for own in (wanted, found))
    if here != there:
        raise SpecError(
            f"{shown} has results of another GPU: {there}, and this is {here}.",
            hint="Give -o another path for each GPU; nothing was changed.",
        )
    for name in _LIKE_BEFORE:
        before, now = (own.settings.get(name) for own in (found, wanted))
        if before != now:
            raise SpecError(
                f"{shown} has times taken {_option(name, before)}, and this run is "
                f"{_option(name, now)}: they cannot be compared.",
                hint="Give -o another path, or the options of the run before; nothing was changed.",
            )
    if found.driver != wanted.driver:
        before, now = (own.driver or "unknown" for own in (found, wanted))
        return f"{shown} has times taken with driver {before}, and this is {now}; both count."
    return ""


def _option(name: str, value: object) -> str:
    """Return an option as the user gave it: `with --repeats 8`, `without --cold`."""
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} --{name}"
    return f"without --{name}" if value is None else f"with --{name} {value}"


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SpecError(
            f"another pallasc tune run is writing {path}.", hint="Wait for it, or give -o a path."
        ) from None


def _append(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def _sync_folder(path: Path) -> None:
    """Sync the folder, so that a new file survives a crash."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _refusing(path: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}.", hint=_HINT) from error
