"""The connection to a scheduler: a thread with dask's client, in a loop of its own.

The build hands work over and gets events from a queue, so that nothing of dask ever blocks it: not
a scheduler that is gone, nor a network that is cut. What was lost with a connection is told as
lost, and the connection is made again for as long as patience lasts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from pallasc.compiler.cluster.address import Address
from pallasc.compiler.cluster.on_worker import carry_out, forget
from pallasc.errors import ToolError

if TYPE_CHECKING:
    from distributed import Client

PATIENCE_S = 60.0
"""How long a scheduler may be gone."""
_CONNECT_S = 5.0
_LOOK_S = 0.1
_WORKERS_S = 2.0
"""How often the workers are counted."""
_CLOSE_S = 2.0
_MOST_GATHERED = 64
_LONGEST_ERROR = 500
_HINT = "Start one with: dask scheduler; or compile here, without --executor."
_HINT_TLS = (
    "Give it and this machine certificates of one authority: distributed.comm.tls.ca-file, "
    ".client.cert and .client.key of dask's configuration."
)
_LOGGERS = ("distributed", "tornado.application", "asyncio")


class Parcel(NamedTuple):
    """Work for the cluster.

    Attributes:
        key: what dask calls it.
        work: `payloads.Work` as bytes.
        session: the session, b"" where the worker should have it.
        workers: the addresses of the workers that may do it, None for all.
        strictly: whether no others may, even if those are gone.
    """

    key: str
    work: bytes
    session: bytes = b""
    workers: Sequence[str] | None = None
    strictly: bool = False


class Began(NamedTuple):
    """A worker has begun to compile."""

    key: str


class Arrived(NamedTuple):
    """What a worker returned."""

    key: str
    data: object


class Lost(NamedTuple):
    """Work was lost with a connection, or cancelled."""

    key: str


class Broken(NamedTuple):
    """dask gave work up.

    Attributes:
        key: the work.
        is_death: whether workers died over and over while they did it.
        text: why.
    """

    key: str
    is_death: bool
    text: str


class Workers(NamedTuple):
    """The threads of each worker, by its address."""

    threads: Mapping[str, int]


class Closed(NamedTuple):
    """There is no connection, and nobody waits for one any more."""

    error: ToolError


Event = Began | Arrived | Lost | Broken | Workers | Closed


class Link:
    """A connection to a scheduler.

    Args:
        address: the scheduler.
        threads: of the worker, for a cluster in this process.
        patience_s: how long the scheduler may be gone.

    Attributes:
        events: what happens; whoever reads it does the work.
        topic: where workers say what they begin.
    """

    def __init__(self, address: Address, threads: int, *, patience_s: float = PATIENCE_S) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.topic = f"pallasc-{secrets.token_hex(8)}"
        self._address, self._threads, self._patience_s = address, threads, patience_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Parcel] = []
        self._cancelled: list[str] = []
        self._lock = threading.Lock()
        self._ending: str | None = None
        self._client: Any = None
        self._futures: dict[str, Any] = {}
        self._ready: list[Any] = []
        self._gathering: asyncio.Task[None] | None = None
        self._errors: list[asyncio.Task[None]] = []
        self._connected = False
        self._seen_s = time.monotonic()
        self._counted_s = -_WORKERS_S
        self._thread = threading.Thread(target=self._run, name="pallasc-cluster", daemon=True)

    # ---- for the build's thread

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Have work done."""
        with self._lock:
            self._waiting += parcels
        self._wake()

    def cancel(self, keys: Sequence[str]) -> None:
        """Have work stopped; no event of it comes any more."""
        with self._lock:
            self._cancelled += keys
        self._wake()

    def close(self, session: str) -> None:
        """Stop all work, have workers forget a session, and end the connection."""
        self._ending = session
        self._wake()
        if self._thread.is_alive():
            self._thread.join(3 * _CLOSE_S)

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._turn.set)

    # ---- in the thread of its own

    def _run(self) -> None:
        try:
            with _quiet():
                asyncio.run(self._main())
        except Exception as error:  # noqa: BLE001 - the build must not wait for a dead thread
            text = f"{type(error).__name__}: {error}"
            self.events.put(Closed(ToolError(f"the connection to {self._address.text}: {text}")))

    async def _main(self) -> None:
        self._turn = asyncio.Event()
        self._loop = asyncio.get_running_loop()  # from now on `_wake` uses both
        async with AsyncExitStack() as stack:
            url = self._address.url
            if not url:
                from pallasc.compiler.cluster.local import local_cluster

                url = await stack.enter_async_context(local_cluster(self._threads))
            while self._ending is None:
                client = await self._connect(url)
                if client is None:
                    return
                try:
                    await self._serve(client)
                finally:
                    await self._leave(client)

    async def _connect(self, url: str) -> Client | None:
        """Return a client, None where it is time to give up."""
        from distributed import Client

        if url.startswith("tls:") and (fault := _without_certificates()):
            self.events.put(Closed(self._unreachable(fault, 0)))
            return None
        while self._ending is None:
            try:
                timeout_s = min(_CONNECT_S, self._patience_s)
                client = Client(url, asynchronous=True, timeout=timeout_s, set_as_default=False)
                try:
                    # Once a port has accepted, dask would wait for its greeting without a limit.
                    return await asyncio.wait_for(client, self._patience_s)
                except TimeoutError:
                    with contextlib.suppress(Exception):
                        await client.close(timeout=1)
                    raise
            except OSError as error:
                gone_s = time.monotonic() - self._seen_s
                # A time-out is of a scheduler that is there, and too busy to answer in time.
                is_there = self._connected or isinstance(error, TimeoutError)
                if not is_there or gone_s > self._patience_s:
                    self.events.put(Closed(self._unreachable(error, gone_s)))
                    return None
                await asyncio.sleep(0.5)
            except (ValueError, TypeError, ImportError) as error:  # such as TLS without keys
                self.events.put(Closed(self._unreachable(error, 0)))
                return None
        return None

    def _unreachable(self, error: Exception | str, gone_s: float) -> ToolError:
        if self._connected:
            return ToolError(
                f"the scheduler {self._address.text} has been gone for {gone_s:.0f} s.",
                hint="Start it again and build once more: what was finished is in the store.",
            )
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        return ToolError(
            f"there is no scheduler that answers at {self._address.text}: {why}",
            hint=_HINT_TLS if self._address.url.startswith("tls:") else _HINT,
        )

    async def _serve(self, client: Client) -> None:
        """Carry work and results until the client is closed."""
        self._client, was = client, ""
        while self._ending is None and client.status != "closed":
            now_s = time.monotonic()
            if client.status == "running":
                self._connected, self._seen_s = True, now_s
                if was != "running":
                    client.subscribe_topic(self.topic, self._told)
                self._carry(client)
                if now_s >= self._counted_s + _WORKERS_S:
                    self._counted_s = now_s
                    await self._count(client)
            elif now_s - self._seen_s > self._patience_s:
                return
            was = client.status
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._turn.wait(), _LOOK_S)
            self._turn.clear()

    async def _leave(self, client: Client) -> None:
        futures, self._futures = self._futures, {}
        if self._gathering is not None:
            self._gathering.cancel()
        if self._ending is not None and client.status == "running":
            with contextlib.suppress(Exception):
                cancelling = client.cancel(list(futures.values()), force=True)
                await asyncio.wait_for(cancelling, _CLOSE_S)
            if self._ending:
                with contextlib.suppress(Exception):
                    forgetting = client.run(forget, self._ending, on_error="ignore")
                    await asyncio.wait_for(forgetting, _CLOSE_S)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(timeout=_CLOSE_S), 2 * _CLOSE_S)
        self._client, self._ready, self._gathering = None, [], None
        for key in futures:
            self.events.put(Lost(key))

    async def _count(self, client: Client) -> None:
        with contextlib.suppress(OSError):
            threads = await asyncio.wait_for(client.ncores(), _WORKERS_S)
            self.events.put(Workers(dict(threads)))

    def _carry(self, client: Client) -> None:
        """Cancel and submit what the build has handed over."""
        with self._lock:
            parcels, self._waiting = self._waiting, []
            cancelled, self._cancelled = self._cancelled, []
        dropped = [self._futures.pop(key) for key in cancelled if key in self._futures]
        for future in dropped:
            future.release()
        left = set(cancelled)
        for parcel in parcels:
            if parcel.key in left:
                continue
            future = client.submit(
                carry_out,
                parcel.work,
                parcel.session,
                key=parcel.key,
                pure=False,
                workers=None if parcel.workers is None else list(parcel.workers),
                allow_other_workers=parcel.workers is not None and not parcel.strictly,
            )
            self._futures[parcel.key] = future
            future.add_done_callback(self._done_elsewhere)

    def _told(self, event: tuple[float, Any]) -> None:
        """Take in what a worker has said."""
        said = event[1]
        key = said.get("began") if isinstance(said, Mapping) else None
        if isinstance(key, str) and key in self._futures:
            self.events.put(Began(key))

    def _done_elsewhere(self, future: Any) -> None:
        """Take in that work is over; called in a thread of dask's."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._done, future)

    def _done(self, future: Any) -> None:
        key = future.key
        if key not in self._futures:
            return
        if future.status == "finished":
            self._ready.append(future)
            if self._gathering is None or self._gathering.done():
                self._gathering = asyncio.ensure_future(self._gather())
            return
        del self._futures[key]
        if future.status == "error":
            self._errors.append(asyncio.ensure_future(self._tell_error(future)))
        else:
            self.events.put(Lost(key))

    async def _tell_error(self, future: Any) -> None:
        error = await future.exception()
        is_death = type(error).__name__ == "KilledWorker"
        self.events.put(Broken(future.key, is_death, _text_of(error)))

    async def _gather(self) -> None:
        """Fetch results, as many at a time as there are."""
        most = _MOST_GATHERED
        while self._ready and self._client is not None:
            futures, self._ready = self._ready[:most], self._ready[most:]
            by_key = {future.key: future for future in futures}
            data: Mapping[str, object] = {}
            broken = ""
            try:
                data = await self._client.gather(by_key, errors="skip")
            except OSError:
                if self._client is not None and self._client.status == "running":
                    self._ready += futures  # a worker, or the way to it, has failed
                    await asyncio.sleep(_LOOK_S)
                    continue
            except Exception as error:  # noqa: BLE001 - whatever dask makes of what was sent
                if len(futures) > 1:
                    self._ready, most = futures + self._ready, 1
                    continue
                broken = _text_of(error)
            for key, future in by_key.items():
                if self._futures.pop(key, None) is None:
                    continue
                value = data.get(key)
                if broken:
                    self.events.put(Broken(key, False, broken))
                else:
                    self.events.put(Lost(key) if value is None else Arrived(key, value))
                future.release()


def _without_certificates() -> str:
    """Return why dask's configuration has no certificates for a client, "" if it has."""
    from distributed.security import Security

    try:
        has_all = Security().get_connection_args("client")["ssl_context"] is not None
    except (OSError, ValueError) as error:
        return f"its certificates cannot be read: {error}"
    return "" if has_all else "no certificates are set for it"


def _text_of(error: BaseException | None) -> str:
    """Return the type of an error and the first line of what it says."""
    text = next(iter(str(error).splitlines()), "")[:_LONGEST_ERROR]
    return f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep dask's log to itself: what it warns of is told as events."""
    from distributed.versions import VersionMismatchWarning  # sets the levels of its loggers

    # What has to be equal, the workers compare part by part.
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
    names = [*_LOGGERS, *(n for n in logging.root.manager.loggerDict if n.startswith(_LOGGERS))]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
