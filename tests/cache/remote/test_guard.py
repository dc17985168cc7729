"""The rule for what a remote may cost, with time passed in and objects that do as they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future

import pytest

from pallasc.cache.remote.failure import Failure, RemoteError, of_status, translated
from pallasc.cache.remote.guard import BUILD, COMMAND, Guard, Limits, after
from pallasc.cache.remote.objects import Got, Item, OnBytes
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.remote.threads import Threads


class Scripted:
    """Objects whose requests fail as a list says, and then succeed."""

    has_versions = has_listing = has_ranges = True

    def __init__(self, *failures: Failure) -> None:
        self.failures = list(failures)
        self.requests = 0

    def _next(self) -> None:
        self.requests += 1
        if self.failures:
            raise RemoteError("GET x: it failed", self.failures.pop(0))

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        self._next()
        on_bytes(b"data")
        return Got(b"data", "1")

    def get_part(self, name: str, start: int, size: int, *, on_bytes: OnBytes) -> bytes:
        self._next()
        return b"x" * size

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        self._next()

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        self._next()
        return True

    def list(self, prefix: str) -> Iterator[Item]:
        self._next()
        yield Item("x", 1, 0.0)

    def delete(self, name: str) -> None:
        self._next()


def _guard(objects: Scripted, limits: Limits = BUILD) -> tuple[Guard, list[float]]:
    slept: list[float] = []
    guard = Guard(objects, RemoteStats(url="s3://bucket"), limits=limits, sleep=slept.append)
    return guard, slept


@pytest.mark.parametrize(
    ("failures", "requests", "slept", "trips"),
    [
        ([], 1, [], False),
        ([Failure.BROKEN], 2, [], False),
        ([Failure.BROKEN] * 2, 2, [], True),
        ([Failure.BUSY], 2, [0.5], False),
        ([Failure.BUSY] * 2, 2, [0.5], True),
        ([Failure.TORN], 2, [], False),
        ([Failure.TORN] * 2, 2, [], False),
        ([Failure.MISSING], 1, [], False),
        ([Failure.NO_RANGES], 1, [], False),
        ([Failure.TOO_LARGE], 1, [], False),
        ([Failure.REFUSED], 1, [], True),
        ([Failure.UNREACHABLE], 1, [], True),
        ([Failure.SLOW], 1, [], True),
        ([Failure.SETTINGS], 1, [], True),
        ([Failure.UNSUPPORTED], 1, [], True),
    ],
)
def test_what_follows_from_a_failure_of_reading(
    failures: list[Failure], requests: int, slept: list[float], trips: bool
) -> None:
    objects = Scripted(*failures)
    guard, waits = _guard(objects)
    if len(failures) < requests:
        assert guard.get("x", limit_bytes=9).data == b"data"
    else:
        with pytest.raises(RemoteError):
            guard.get("x", limit_bytes=9)
    assert (objects.requests, guard.stats.requests) == (requests, requests)
    assert waits == slept
    assert (guard.failed is not None) == trips


@pytest.mark.parametrize(
    ("failure", "trips"),
    [(Failure.MISSING, True), (Failure.TOO_LARGE, False), (Failure.TORN, False)],
)
def test_what_follows_from_a_failure_of_writing(failure: Failure, trips: bool) -> None:
    for write in (
        lambda guard: guard.put("x", b""),
        lambda guard: guard.put_if("x", b"", None),
    ):
        guard, _ = _guard(Scripted(failure, failure))
        with pytest.raises(RemoteError):
            write(guard)
        assert (guard.failed is not None) == trips


def test_after_a_trip_nothing_is_asked_and_the_first_reason_stays() -> None:
    objects = Scripted(Failure.REFUSED)
    guard, _ = _guard(objects)
    for _ in range(3):
        with pytest.raises(RemoteError, match="GET x: it failed"):
            guard.get("x", limit_bytes=9)
    guard.trip(RemoteError("another", Failure.SLOW))
    assert (objects.requests, guard.stats.tripped) == (1, "GET x: it failed")


def test_eight_wrong_objects_are_too_many() -> None:
    guard, _ = _guard(Scripted())
    for number in range(BUILD.wrong):
        assert guard.failed is None
        guard.wrong(f"pack {number}: damaged")
    assert guard.failed is not None
    assert "8 objects are damaged or missing" in guard.stats.tripped
    assert guard.stats.refusals == 8


def test_a_command_tries_three_times_and_never_runs_out_of_time() -> None:
    objects = Scripted(Failure.BUSY, Failure.BUSY)
    guard, slept = _guard(objects, COMMAND)
    assert guard.get("x", limit_bytes=9).data == b"data"
    assert slept == [1.0, 2.0]
    _waiting(guard, 1e6)
    assert guard.left_s() > 1e6


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.25
        return self.now_s


def _waiting(guard: Guard, seconds: float) -> None:
    """Have a build wait for so long."""
    stats = guard.stats
    stats.waited_s, stats.lost_s = stats.waited_s + seconds, stats.lost_s + seconds


def test_waiting_is_over_after_two_seconds_for_nothing() -> None:
    stats = RemoteStats(url="s3://bucket")
    guard = Guard(Scripted(), stats, clock=Clock())
    never: Future[None] = Future()
    assert list(guard.each([never])) == []
    assert stats.lost_s == stats.waited_s == pytest.approx(2.0, abs=0.26)
    assert guard.failed is not None
    assert guard.failed.failure is Failure.SLOW


def test_each_megabyte_that_helped_or_was_taken_is_worth_a_second() -> None:
    guard, _ = _guard(Scripted())
    guard.expect(1000)
    for _ in range(50):
        _waiting(guard, 1.5)
        guard.prove(1_000_000)
        guard.put("x", b"0" * 500_000)
        assert guard.left_s() == pytest.approx(1.8)
    assert guard.stats.waited_s == pytest.approx(75)


def test_what_came_fast_pays_for_no_later_silence() -> None:
    guard, _ = _guard(Scripted())
    guard.expect(1000)
    _waiting(guard, 0.5)
    guard.prove(100_000_000)
    _waiting(guard, 1.0)
    assert guard.left_s() == pytest.approx(0.8)


class Body(Scripted):
    """Objects of a megabyte each."""

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        for _ in range(10):
            on_bytes(bytes(100_000))
        return Got(b"", "1")


@pytest.mark.parametrize(("variants", "most_s"), [(1, 0.0), (40, 0.01), (400, 0.1), (10_000, 2.5)])
def test_what_is_not_known_to_help_is_worth_little(variants: int, most_s: float) -> None:
    guard, _ = _guard(Body())
    guard.expect(variants)
    _waiting(guard, 50.0)
    for _ in range(100):
        guard.get("x", limit_bytes=10**6)
    assert 50.0 - guard.stats.lost_s == pytest.approx(most_s, abs=0.001)


def test_a_build_of_few_variants_waits_no_longer_than_compiling_takes() -> None:
    guard, _ = _guard(Scripted())
    guard.expect(3)
    _waiting(guard, 1.0)
    guard.prove(100_000_000)
    assert guard.left_s() == pytest.approx(0.8 + 0.3)


def test_reading_what_arrived_is_no_loss() -> None:
    stats = RemoteStats(url="s3://bucket")
    guard = Guard(Scripted(), stats, clock=Clock())
    never: Future[None] = Future()
    with guard.at_work():
        threading.Timer(0.01, never.set_result, [None]).start()
        assert guard.first([never]) is never
    assert (stats.lost_s, guard.failed) == (0, None)
    assert stats.waited_s > 0


def test_what_a_build_has_lost_before_counts() -> None:
    assert after(0.5).wait_s == pytest.approx(1.3)
    assert after(7.0).wait_s == 0


def test_what_is_done_already_costs_no_waiting() -> None:
    guard, _ = _guard(Scripted())
    _waiting(guard, 100.0)
    done: Future[int] = Future()
    done.set_result(3)
    assert guard.result(done) == 3
    assert guard.failed is None


def test_a_thread_that_hangs_is_left_behind() -> None:
    release = threading.Event()
    guard, _ = _guard(Scripted(), Limits(wait_s=0.1))
    hanging = guard.submit(release.wait)
    with pytest.raises(RemoteError, match=r"^s3://bucket: 0 bytes were moved in \d+\.\d s of"):
        guard.result(hanging)
    guard.close()
    release.set()


def test_threads_run_at_once_and_give_results_and_errors() -> None:
    before, threads = set(threading.enumerate()), Threads(4)
    meeting = threading.Barrier(4, timeout=300)
    assert {f.result(300) >= 0 for f in [threads.submit(meeting.wait) for _ in range(4)]} == {True}

    def fail() -> None:
        raise ValueError("why")

    assert str(threads.submit(fail).exception(300)) == "why"
    threads.close()
    until = time.monotonic() + 300
    while any(t.name.startswith("pallasc-remote") for t in {*threading.enumerate()} - before):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (401, Failure.REFUSED),
        (403, Failure.REFUSED),
        (404, Failure.MISSING),
        (408, Failure.SLOW),
        (413, Failure.TOO_LARGE),
        (429, Failure.BUSY),
        (500, Failure.BROKEN),
        (501, Failure.UNSUPPORTED),
        (503, Failure.BUSY),
        (418, Failure.BROKEN),
    ],
)
def test_statuses(status: int, failure: Failure) -> None:
    assert of_status(status) is failure


@pytest.mark.parametrize(
    ("text", "failure", "shown"),
    [
        ("status code: 403 Forbidden: <Code>AccessDenied</Code> k=SECRET", Failure.REFUSED,
         "PUT x: the server answers 403 Forbidden (AccessDenied)"),
        ("status: 599, SECRET", Failure.BROKEN, "PUT x: the server answers 599"),
        ("invalid peer certificate: Expired SECRET", Failure.UNREACHABLE,
         "PUT x: the server's certificate is not valid (Expired)"),
        ("InvalidCertificate(Other(OtherError(CaUsedAsEndEntity)))", Failure.UNREACHABLE,
         "PUT x: the server's certificate is not valid (CaUsedAsEndEntity)"),
        ("kind: Connect, dns error: SECRET", Failure.UNREACHABLE,
         "PUT x: the host's name cannot be resolved"),
        ("SECRET", Failure.BROKEN, "PUT x: the request failed"),
        ("<Code>SECRET&</Code> status code: 400", Failure.BROKEN,
         "PUT x: the server answers 400 Bad Request"),
    ],
)  # fmt: skip
def test_a_library_s_text_is_not_quoted(text: str, failure: Failure, shown: str) -> None:
    error = translated(text, "PUT x")
    assert (error.failure, error.message) == (failure, shown)
    assert error.hint
    assert error.exit_code == 4


def test_every_failure_has_a_next_step() -> None:
    for failure in Failure:
        assert RemoteError("x", failure).hint


def test_the_line_of_a_summary() -> None:
    stats = RemoteStats(url="s3://b/x", requests=7, hits=12, bytes_read=3_200_000)
    stats.waited_s, stats.saved_s = 0.42, 61.0
    assert str(stats) == (
        "remote s3://b/x: 12 hits, 3.2 MB read, 7 requests, waited 0.4 s, 61.0 s of compiling saved"
    )
