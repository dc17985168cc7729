"""Requests to a remote store in a background thread, and how long a build waits for them.

The thread runs an event loop, so every request can be cancelled, which ends its download. A build
has a budget: it may lose `PATIENCE_S` of waiting, where each variant that arrives or is sent
returns up to `VARIANT_S` of the time lost so far, less than compiling it takes. After that, after
`MOST_FAILURES` bad objects, or after a failure of the whole remote, no further request is made.

obstore reads the body of an error answer without a limit. So the memory of this process is watched
while requests are under way, and one that makes it grow by `MOST_GROWTH_BYTES` ends the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, TypeVar

from pallasc.cache.remote.objects import OF_ONE_OBJECT, Failure, Objects, RemoteError
from pallasc.cache.remote.settings import RemoteSettings, RemoteStats
from pallasc.cache.signing import Trust, read_trust

PATIENCE_S = 1.8
VARIANT_S = 0.1
MOST_FAILURES = 8
MOST_GROWTH_BYTES = 32 * 2**20
REQUEST_S = 10.0
_TICK_S = 0.02
_WATCH_S = 0.004
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
T = TypeVar("T")


class Session:
    """Requests to one remote.

    Args:
        settings: where it is.
        environ: where credentials are looked up.
        is_build: waiting has a budget, and nothing raises for what the remote does; a command
            waits as long as its requests may take, and fails where they fail.
    """

    def __init__(
        self, settings: RemoteSettings, environ: Mapping[str, str], *, is_build: bool
    ) -> None:
        self.stats = RemoteStats(url=settings.address.text)
        self.is_build = is_build
        self.failed: RemoteError | None = None
        self.objects = Objects(
            settings.address,
            self.stats,
            environ=environ,
            timeout_s=REQUEST_S if is_build else settings.timeout_s,
            retries=1 if is_build else 2,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._grown_from: dict[asyncio.Task[Any], int] = {}
        self._began_s: float | None = None
        self._failures = 0

    def submit(self, request: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin a request in the background; its result is for `first` and `result`."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon: a file system that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._watched(request), self._loop)

    async def _watched(self, request: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(request)
        self._grown_from[task] = _resident_bytes()
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_WATCH_S)
                oldest = next(iter(self._grown_from.values()))
                if _resident_bytes() - oldest > MOST_GROWTH_BYTES:
                    text = f"{self.stats.url}: the server's answers do not end"
                    raise RemoteError(text, Failure.TOO_LARGE)
            return task.result()
        finally:
            task.cancel()
            del self._grown_from[task]

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in here as waiting for the remote."""
        if self._began_s is not None:
            yield
            return
        self._began_s = time.monotonic()
        try:
            yield
        finally:
            self._spend()
            self._began_s = None

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """Do not count the time in here."""
        self._spend()
        counted, self._began_s = self._began_s is not None, None
        try:
            yield
        finally:
            self._began_s = time.monotonic() if counted else None

    def is_over(self) -> bool:
        """Return True if no further request may be made."""
        self._spend()
        return self.failed is not None

    def _spend(self) -> None:
        if self._began_s is None:
            return
        now = time.monotonic()
        self.stats.waited_s += now - self._began_s
        self.stats.lost_s += now - self._began_s
        self._began_s = now
        if self.is_build and self.stats.lost_s > PATIENCE_S:
            text = f"{self.stats.url}: {PATIENCE_S} s of waiting brought too little"
            self.fail(RemoteError(text, Failure.SLOW))

    def earn(self, variants: int) -> None:
        """Note that variants arrived, or were sent."""
        self._spend()
        self.stats.lost_s = max(0.0, self.stats.lost_s - variants * VARIANT_S)

    def first(self, futures: Collection[Future[Any]]) -> Future[Any] | None:
        """Wait for one of these to end; None if time is over."""
        while not self.is_over():
            done, _ = wait(futures, _TICK_S, return_when=FIRST_COMPLETED)
            if done:
                return next(future for future in futures if future in done)
        return None

    def result(self, request: Coroutine[Any, Any, T]) -> T:
        """Make a request and wait for its result.

        Raises:
            RemoteError: it fails, or time is over.
        """
        future = self.submit(request)
        if self.first([future]) is None and self.failed is not None:
            raise self.failed
        try:
            return future.result()
        except CancelledError:
            raise self.failed or RemoteError(self.stats.url, Failure.SLOW) from None

    def fail(self, error: RemoteError) -> None:
        """Make no further request, and end those under way.

        Raises:
            RemoteError: this is a command.
        """
        if self.failed is None:
            self.failed = error
            self.stats.tripped = error.message
            self._cancel()
        if not self.is_build:
            raise self.failed

    def wrong(self, reason: str) -> None:
        """Note that an object is missing or damaged; a build gives up after several."""
        self.stats.refuse(reason)
        self._failures += 1
        if self.is_build and self._failures >= MOST_FAILURES:
            text = f"{self.stats.url}: {self._failures} objects are missing or damaged"
            self.fail(RemoteError(text, Failure.TORN))

    def failed_with(self, error: RemoteError) -> None:
        """Note the failure of a request: of one object, or of the remote.

        Raises:
            RemoteError: this is a command, and the remote failed.
        """
        if error.failure in OF_ONE_OBJECT:
            self.wrong(error.message)
        else:
            self.fail(error)

    def _cancel(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_cancel_all, self._loop)

    def close(self) -> None:
        """End all requests and the thread."""
        if self._loop is None or self._thread is None:
            return
        self._cancel()
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.05, self._loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._loop.close()
        self._loop = None


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


@contextlib.contextmanager
def command_session(settings: RemoteSettings, environ: Mapping[str, str]) -> Iterator[Session]:
    """Give a session to a command, which waits for its requests and fails with their errors."""
    session = Session(settings, environ, is_build=False)
    try:
        with session.waiting():
            yield session
    finally:
        session.close()


def trust_of(settings: RemoteSettings, environ: Mapping[str, str]) -> Trust | None:
    """Return the keys that must sign manifests, None where no signature is required of remotes.

    Raises:
        SpecError, ToolError: one is required, and a key cannot be used.
    """
    return read_trust(environ, required=True) if settings.signed else None
