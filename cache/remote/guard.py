"""How much a remote store may cost a build, and when it is left alone.

One rule for reading and writing: a build loses at most 2 s. All its waiting is lost, less 1 s for
each MB of artifacts that are here, right and wanted, or of what was sent and taken; this is at most
0.1 s for each variant, a part of what compiling takes. Nothing is paid in advance: what came fast
pays for no later silence. So a remote that gives more than 1 MB/s of what helps is not left alone,
however much it is, and one that trickles, stands still or sends what does not help is, after 2 s.
All other bytes (none of an index is known to be right before it is whole) pay a quarter of that,
and no more than 0.25 ms for each variant. What else happens:

    refused (401, 403), unreachable, certificate      no further request in this build
    too busy (429, 503)                               once more after half a second, else as above
    broken (500, reset)                               once more at once, else as above
    torn or wrong content                             once more; then this object is not used, and
                                                      after eight such objects, as above
    404                                               an empty remote, or an object that is gone

The library shows no headers of such answers, so `Retry-After` is not known: a server that asks for
a longer pause answers the second request as the first, and is then left alone. Giving up is one
warning and never a failed build. A command about the remote has no such limit, tries three times,
and fails with the error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.objects import Got, Item, Objects, OnBytes
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.remote.threads import Threads
from pallasc.cache.sizes import size

_MB = 1e6
_LEAST_S = 0.2
_LOOK_S = 0.05
"""How often a wait looks whether more has arrived."""
_ONCE_MORE = (Failure.BUSY, Failure.BROKEN, Failure.TORN)
_OF_WHAT_IS_WRITTEN = (Failure.TORN, Failure.TOO_LARGE)
_OF_WHAT_IS_READ = (*_OF_WHAT_IS_WRITTEN, Failure.MISSING, Failure.NO_RANGES)
"""What another object need not fail of."""
T = TypeVar("T")
Watch = Callable[[], OnBytes]
"""Is called anew for each attempt, since each gives the bytes from the first one on."""


class Limits(NamedTuple):
    """How patient to be.

    Attributes:
        wait_s: how much waiting may be lost, None for any; less than the 2 s that are promised, as
            opening the remote and giving it up take time, too.
        s_per_mb: what each MB pays that helped, or was taken.
        s_per_variant: the most that all MB pay, for each variant that is looked for or sent.
        s_per_unproven_mb: what each MB pays that is not known to help.
        s_per_hoped_variant: the most that these pay, for each variant.
        attempts: of one request.
        pause_s: between attempts where the server is busy.
        wrong: how many torn or wrong objects are too many.
    """

    wait_s: float | None = 1.8
    s_per_mb: float = 1.0
    s_per_variant: float = 0.1
    s_per_unproven_mb: float = 0.25
    s_per_hoped_variant: float = 0.00025
    attempts: int = 2
    pause_s: float = 0.5
    wrong: int = 8


BUILD = Limits()
COMMAND = Limits(wait_s=None, attempts=3, pause_s=1.0, wrong=1000)


def after(lost_s: float) -> Limits:
    """Return the limits of a build that has lost so many seconds already."""
    return BUILD._replace(wait_s=max(0.0, (BUILD.wait_s or 0.0) - lost_s))


def is_spent(lost_s: float) -> bool:
    """Tell whether a build that has lost so many seconds has too few left for another request."""
    return (BUILD.wait_s or 0.0) - lost_s < _LEAST_S


class Guard:
    """Objects of a remote, counted, repeated where that helps, and left alone where it does not.

    Requests are made in threads (`submit`); waiting is done by the one that needs the answer.

    Args:
        objects: the remote's.
        stats: what is counted.
        limits: how patient to be.
        clock: returns seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        objects: Objects,
        stats: RemoteStats,
        *,
        limits: Limits = BUILD,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.objects = objects
        self.stats = stats
        self.limits = limits
        self.failed: RemoteError | None = None
        """Why the remote is left alone."""
        self._clock, self._sleep = clock, sleep
        self._threads = Threads()
        self._lock = threading.Lock()
        self._wrong = 0
        self._variants = 0
        self._paid_s = self._hoped_s = 0.0
        self._at_work = 0

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function in a thread that may be left behind."""
        return self._threads.submit(function)

    def close(self) -> None:
        """End the threads; those that hang are left behind."""
        self._threads.close()

    def trip(self, error: RemoteError) -> None:
        """Leave the remote alone from now on; the first reason counts."""
        with self._lock:
            if self.failed is None:
                self.failed = error
                self.stats.tripped = error.message

    def left_s(self) -> float:
        """Return how much longer may be waited if nothing comes."""
        return 1e9 if self.limits.wait_s is None else self.limits.wait_s - self.stats.lost_s

    def expect(self, variants: int) -> None:
        """Note that so many more variants are looked for or sent: it may take longer."""
        with self._lock:
            self._variants += variants

    def prove(self, size: int) -> None:
        """Note that so many bytes that arrived helped, or that so many were taken."""
        with self._lock:
            self._pay(size / _MB * self.limits.s_per_mb)

    def _pay(self, seconds: float) -> float:
        """Pay for waiting that is over, and return how much; the lock is held."""
        left = self._variants * self.limits.s_per_variant - self._paid_s
        paid = max(0.0, min(seconds, self.stats.lost_s, left))
        self._paid_s += paid
        self.stats.lost_s -= paid
        return paid

    def result(self, future: Future[T]) -> T:
        """Wait for a future.

        Raises:
            RemoteError: what it failed of, or waiting took too long.
        """
        if (done := self.first([future])) is None:
            raise self._given_up()
        return done.result()

    def first(self, futures: Iterable[Future[T]]) -> Future[T] | None:
        """Return one that is done, None when time is over."""
        return next(self.each(futures), None)

    def each(self, futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
        """Yield futures as they are done; those that are not when time is over are left out."""
        open_ = set(futures)
        while open_:
            done = {future for future in open_ if future.done()}
            while not done:
                left = self.left_s()
                if left <= 0:
                    self.trip(
                        RemoteError(
                            f"{self.stats.url}: {size(self.stats.moved_bytes)} were moved in "
                            f"{self.stats.waited_s:.1f} s of waiting, of which "
                            f"{self.stats.lost_s:.1f} s were lost",
                            Failure.SLOW,
                            hint="Look at the network, or build without --remote.",
                        )
                    )
                    return
                began = self._clock()
                done = wait(open_, min(left, _LOOK_S), return_when=FIRST_COMPLETED).done
                self._note_wait(self._clock() - began)
            open_ -= done
            yield from done

    def _note_wait(self, seconds: float) -> None:
        with self._lock:
            self.stats.waited_s += seconds
            if not self._at_work:
                self.stats.lost_s += seconds

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Lose nothing meanwhile: the build waits for this process, which reads what arrived."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1

    def wrong(self, reason: str) -> None:
        """Count an object or entry that is not what it should be."""
        self.stats.refuse(reason)
        with self._lock:
            self._wrong += 1
        if self._wrong >= self.limits.wrong:
            self.trip(
                RemoteError(
                    f"{self.stats.url}: {self._wrong} objects are damaged or missing; the last: "
                    f"{reason}",
                    Failure.TORN,
                    hint="`pallasc cache remote-stats --verify` tells what is there.",
                )
            )

    def get(self, name: str, *, limit_bytes: int, watch: Watch | None = None) -> Got:
        """Return a whole object; `watch` makes what is called with its bytes as they arrive."""
        return self._try(
            lambda: self.objects.get(name, limit_bytes=limit_bytes, on_bytes=self._arriving(watch))
        )

    def get_part(self, name: str, start: int, size: int, *, watch: Watch | None = None) -> bytes:
        """Return a part of an object; `watch` as for `get`."""
        return self._try(
            lambda: self.objects.get_part(name, start, size, on_bytes=self._arriving(watch))
        )

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        """Write an object, in the place of an older one."""
        self._try(lambda: self.objects.put(name, data, needs=needs), _OF_WHAT_IS_WRITTEN)
        self._taken(data)

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version."""
        done = self._try(lambda: self.objects.put_if(name, data, version), _OF_WHAT_IS_WRITTEN)
        self._taken(data)
        return done

    def list(self, prefix: str) -> list[Item]:
        """Return all objects whose name begins with `prefix`."""
        return self._try(lambda: list(self.objects.list(prefix)))

    def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""
        self._try(lambda: self.objects.delete(name))

    def _taken(self, data: bytes) -> None:
        self.stats.add(bytes_written=len(data))
        self.prove(len(data))

    def _arriving(self, watch: Watch | None) -> OnBytes:
        """Return what is called with the bytes of one answer, in their order."""
        onward = watch() if watch else None

        def arrived(data: bytes) -> None:
            self.stats.add(bytes_read=len(data))
            with self._lock:
                left = self._variants * self.limits.s_per_hoped_variant - self._hoped_s
                worth = len(data) / _MB * self.limits.s_per_unproven_mb
                self._hoped_s += self._pay(max(0.0, min(worth, left)))
            if onward:
                onward(data)

        return arrived

    def _try(
        self, request: Callable[[], T], of_the_object: Sequence[Failure] = _OF_WHAT_IS_READ
    ) -> T:
        """Make a request, and once more where that may help.

        Args:
            request: makes it.
            of_the_object: failures after which other objects may still be asked for.

        Raises:
            RemoteError: it failed; what follows from it is decided here already.
        """
        attempt = 0
        while True:
            if self.failed is not None:
                raise self._given_up()
            attempt += 1
            self.stats.add(requests=1)
            try:
                return self._made(request)
            except RemoteError as error:
                if error.failure not in _ONCE_MORE or attempt >= self.limits.attempts:
                    if error.failure not in of_the_object:
                        self.trip(error)
                    raise
                failure = error.failure
            if failure is Failure.BUSY:
                self._sleep(min(self.limits.pause_s * attempt, max(0.0, self.left_s())))

    def _given_up(self) -> RemoteError:
        error = self.failed
        if error is None:
            return RemoteError(f"{self.stats.url}: it is not asked any more", Failure.SLOW)
        return RemoteError(error.message, error.failure, hint=error.hint)

    def _made(self, request: Callable[[], T]) -> T:
        """Make a request; in the main thread, so that an interrupt need not wait for its end."""
        if threading.current_thread() is not threading.main_thread():
            return request()
        return self.submit(request).result()
