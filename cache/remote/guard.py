"""How much a remote store may cost a build, and when it is left alone.

One rule for reading and writing: all waiting of a build may take 2 s, and 1 s more for each MB that
arrived and was right, or was taken. What arrives is not known to be right before it is whole: it
counts up to 4 MB. And no build waits more than 0.1 s for each variant that it looks for or sends, a
part of what compiling takes. What else happens:

    refused (401, 403), unreachable, certificate      no further request in this build
    too busy (429, 503)                               once more after half a second, else as above
    broken (500, reset)                               once more at once, else as above
    torn or wrong content                             once more; then this object is not used, and
                                                      after eight such objects, as above
    404                                               an empty remote, or an object that is gone

The library does not show `Retry-After`; a server that asks for a longer pause answers the second
request as the first, and is then left alone. Giving up is one warning and never a failed build.
A command about the remote has no such limit, tries three times, and fails with the error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple, TypeVar

from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.objects import Got, Item, Objects
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.remote.threads import Threads

_MB = 1e6
_LOOK_S = 0.05
"""How often a wait looks whether more has arrived."""
_ONCE_MORE = (Failure.BUSY, Failure.BROKEN, Failure.TORN)
_OF_WHAT_IS_WRITTEN = (Failure.TORN, Failure.TOO_LARGE)
_OF_WHAT_IS_READ = (*_OF_WHAT_IS_WRITTEN, Failure.MISSING, Failure.NO_RANGES)
"""What another object need not fail of."""
T = TypeVar("T")


class Limits(NamedTuple):
    """How patient to be.

    Attributes:
        wait_s: how long a build waits in all, None for ever; less than the 2 s that are promised,
            as opening the remote and giving it up take time, too.
        s_per_mb: how much longer for each MB that arrived and was right, or was taken.
        unproven_mb: how many MB that are not known to be right count as if they were.
        s_per_variant: the most that the MB may add, for each variant that is looked for or sent.
        attempts: of one request.
        pause_s: between attempts where the server is busy.
        wrong: how many torn or wrong objects are too many.
    """

    wait_s: float | None = 1.8
    s_per_mb: float = 1.0
    unproven_mb: float = 4.0
    s_per_variant: float = 0.1
    attempts: int = 2
    pause_s: float = 0.5
    wrong: int = 8


BUILD = Limits()
COMMAND = Limits(wait_s=None, attempts=3, pause_s=1.0, wrong=1000)


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
        self._proven_bytes = 0
        self._variants = 0

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
        """Return how much longer may be waited."""
        if self.limits.wait_s is None:
            return 1e9
        unproven = min((self.stats.bytes_read - self._proven_bytes) / _MB, self.limits.unproven_mb)
        moved = (self._proven_bytes + self.stats.bytes_written) / _MB + max(0.0, unproven)
        earned = min(moved * self.limits.s_per_mb, self._variants * self.limits.s_per_variant)
        return self.limits.wait_s + earned - self.stats.waited_s

    def expect(self, variants: int) -> None:
        """Note that so many more variants are looked for or sent: it may take longer."""
        with self._lock:
            self._variants += variants

    def prove(self, size: int) -> None:
        """Note that so many of the bytes that arrived are right."""
        with self._lock:
            self._proven_bytes += size

    def result(self, future: Future[T]) -> T:
        """Wait for a future.

        Raises:
            RemoteError: what it failed of, or waiting took too long.
        """
        for done in self.each([future]):
            return done.result()
        raise self._given_up()

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
                            f"{self.stats.url}: {self.stats.waited_s:.1f} s were waited for "
                            f"{self.stats.moved_bytes / _MB:.1f} MB",
                            Failure.SLOW,
                            hint="Look at the network, or build without --remote.",
                        )
                    )
                    return
                began = self._clock()
                done = wait(open_, min(left, _LOOK_S), return_when=FIRST_COMPLETED).done
                self.stats.waited_s += self._clock() - began
            open_ -= done
            yield from done

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

    def get(self, name: str, *, limit_bytes: int) -> Got:
        """Return a whole object."""
        return self._try(
            lambda: self.objects.get(name, limit_bytes=limit_bytes, on_bytes=self._arrived)
        )

    def get_part(self, name: str, start: int, size: int) -> bytes:
        """Return a part of an object."""
        return self._try(lambda: self.objects.get_part(name, start, size, on_bytes=self._arrived))

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        """Write an object, in the place of an older one."""
        self._try(lambda: self.objects.put(name, data, needs=needs), _OF_WHAT_IS_WRITTEN)
        self.stats.add(bytes_written=len(data))

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version."""
        done = self._try(lambda: self.objects.put_if(name, data, version), _OF_WHAT_IS_WRITTEN)
        self.stats.add(bytes_written=len(data))
        return done

    def list(self, prefix: str) -> list[Item]:
        """Return all objects whose name begins with `prefix`."""
        return self._try(lambda: list(self.objects.list(prefix)))

    def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""
        self._try(lambda: self.objects.delete(name))

    def _arrived(self, size: int) -> None:
        self.stats.add(bytes_read=size)

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
