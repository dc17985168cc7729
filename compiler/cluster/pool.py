"""A cluster as builds use it: what `workers/pool.Pool` does with processes, with dask's workers.

Work is sent ahead, so that workers never wait for the build and an adaptive cluster sees how much
there is; variants that take a moment travel alone, shorter ones together. What a worker refuses
goes to another. A variant is compiled again only where its work was lost on the way.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty
from types import TracebackType

from pallasc.compiler.cluster.address import Address
from pallasc.compiler.cluster.link import (
    PATIENCE_S,
    Arrived,
    Began,
    Broken,
    Closed,
    Link,
    Lost,
    Parcel,
    Workers,
)
from pallasc.compiler.cluster.link import Event as LinkEvent
from pallasc.compiler.cluster.payloads import Outcome, Result, Session, Work, name_of
from pallasc.compiler.cluster.shipped import shipped
from pallasc.compiler.toolchain.context import Context
from pallasc.compiler.toolchain.environment import counted_values
from pallasc.compiler.workers import failures
from pallasc.compiler.workers.messages import Compiled, Reply, Request
from pallasc.compiler.workers.pool import Event
from pallasc.compiler.workers.tasks import Answer, Group, Task
from pallasc.compiler.workers.worker_process import PROGRAM
from pallasc.errors import CompileError, PallascError, ToolError
from pallasc.specs.spec import Variant

_AHEAD, _LEAST_AHEAD, _MOST_AHEAD = 4, 16, 1000
"""How many pieces of work are under way: for each thread and beside them at first, and twice as
many as were done later, so that their pace is known before much is sent."""
_PIECE_S = 0.25
"""How long a piece of work should take; a variant that takes longer travels alone."""
_MOST_TOGETHER = 64
_MOST_BROKEN = 3
"""How often a worker may fail at a variant by itself."""
_MOST_DEATHS = 3
"""How often workers may die over a variant."""
_NONE_LEFT_S = 5.0
"""How long to wait for other workers when all have refused."""
_NOBODY_S = 15.0
"""How long to wait in silence for the first worker."""

Accept = Callable[[Task, Request, Compiled], Reply | str]
"""Verifies and publishes what a worker compiled; a text says why the worker cannot be used."""


@dataclass(slots=True)
class _Item:
    """A task on its way.

    Attributes:
        task: the task.
        request: its request, None until it is sent.
        refused: the workers that have refused it, with the reason.
        broken: why dask gave it up, each time.
        deaths: how often a worker has died that had begun it.
    """

    task: Task
    request: Request | None = None
    refused: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    deaths: int = 0

    @property
    def goes_alone(self) -> bool:
        """Tell whether something has gone wrong with it, which must not happen to others."""
        return bool(self.refused or self.broken or self.deaths)

    def prepare(self) -> Request:
        """Return the request.

        Raises:
            PallascError: it cannot be made.
        """
        if self.request is None:
            self.request = self.task.make_request()
        return self.request


@dataclass(slots=True)
class _Piece:
    """Work that was sent.

    Attributes:
        items: what it consists of.
        workers: the workers that it was restricted to, None for all.
        brings: the worker that it takes the session to, "" for none.
        began_s: when a worker began, None before.
    """

    items: Sequence[_Item]
    workers: Sequence[str] | None = None
    brings: str = ""
    began_s: float | None = None


@dataclass(slots=True)
class ClusterPool:
    """The workers of a dask cluster; use it as a context manager.

    Args:
        address: the scheduler.
        jobs: how many processes compile in a local cluster; elsewhere, the cluster's threads.
        environment: of compiling processes here; what reaches the compiler is sent.
        context: the request that every worker gets first here; not sent.
        ptxas: the assembler that the user named, "" for the installed one.
        timeout_s: how long a variant may take.
        memory_bytes: what a compiling process may hold, 0 for no limit, None for its share of the
            worker's machine.
        tick_s: how often `run` yields a tick.
        program: the module that compiling processes run.
        patience_s: how long the scheduler may be gone.
        accept: verifies and publishes what was compiled.
        tell: says something to the user.

    Attributes:
        sent: digests of the files that are sent, by path.
    """

    address: Address
    jobs: int
    environment: Mapping[str, str]
    context: Request | None = None
    ptxas: str = field(default="", kw_only=True)
    timeout_s: float | None = field(default=None, kw_only=True)
    memory_bytes: int | None = field(default=None, kw_only=True)
    tick_s: float = field(default=1.0, kw_only=True)
    program: str = field(default=PROGRAM, kw_only=True)
    patience_s: float = field(default=PATIENCE_S, kw_only=True)
    accept: Accept = field(default=lambda task, request, reply: reply, kw_only=True)
    tell: Callable[[str], None] = field(default=lambda text: None, kw_only=True)
    sent: Mapping[str, str] = field(default_factory=dict, init=False)
    _link: Link = field(init=False)
    _started: bool = field(default=False, init=False)
    _session: bytes = field(default=b"", init=False)
    _session_name: str = field(default="", init=False)
    _waiting: dict[Group, deque[_Item]] = field(default_factory=dict, init=False)
    _pieces: dict[str, _Piece] = field(default_factory=dict, init=False)
    _held: dict[str, list[_Item]] = field(default_factory=dict, init=False)
    _refused_by_all: list[_Item] = field(default_factory=list, init=False)
    _threads: Mapping[str, int] = field(default_factory=dict, init=False)
    _refused: dict[str, str] = field(default_factory=dict, init=False)
    _seconds: float | None = field(default=None, init=False)
    _begun: set[int] = field(default_factory=set, init=False)
    _done: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)
    _alone_s: float = field(default_factory=time.monotonic, init=False)
    _told: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._link = Link(self.address, self.jobs, patience_s=self.patience_s)

    def __enter__(self) -> ClusterPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._started:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._link.close(self._session_name)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def warm(self, count: int) -> None:
        """Connect while the caller still prepares."""
        if not self._started:
            self._started = True
            self._link.start()

    def describe(
        self,
        context: Context,
        versions: Mapping[str, str],
        variants: Iterable[Variant],
        without: Sequence[str] = (),
    ) -> None:
        """Say what the variants of the next `run` are compiled with, and from.

        Args:
            context: the toolchain that workers must have.
            versions: of its parts, for messages.
            variants: the variants, whose sources are sent.
            without: folders that are not sent.

        Raises:
            ToolError: there is too much to send.
        """
        sources = shipped(variants, without=without)
        self.sent = sources.files
        session = Session(
            build=secrets.token_hex(16),
            identity=context.identity,
            variables=context.variables,
            versions=versions,
            environment=counted_values(self.environment),
            ptxas=self.ptxas,
            timeout_s=self.timeout_s,
            memory_bytes=self.memory_bytes,
            program=self.program,
            folders=tuple(sources.folders),
            files=sources.files,
            links=sources.links,
            path=tuple(sources.path),
            blobs=sources.blobs,
        )
        self._session = session.to_bytes()
        self._session_name = name_of(self._session)

    def running(self) -> list[tuple[Task, float]]:
        """Return what is being compiled and for how many seconds, the longest first."""
        now_s = time.monotonic()
        begun = [
            (piece.items[0].task, now_s - piece.began_s)
            for piece in self._pieces.values()
            if piece.began_s is not None
        ]
        return sorted(begun, key=lambda item: -item[1])

    def run(self, tasks: Iterable[Task]) -> Iterator[Event]:
        """Carry out tasks; yields what `Pool.run` does.

        A variant may be said to have started more than once on the cluster, but here it is once.
        """
        self.warm(0)
        self._waiting, self._begun = {}, set()
        for task in tasks:
            self._waiting.setdefault(task.group, deque()).append(_Item(task))
        told_s = self._alone_s = time.monotonic()
        while self._waiting or self._pieces or self._held or self._refused_by_all:
            yield from self._without_workers()
            yield from self._send()
            left_s = max(0.0, told_s + self.tick_s - time.monotonic())
            for event in self._events(left_s):
                yield from self._take(event)
            if time.monotonic() >= told_s + self.tick_s:
                told_s = time.monotonic()
                yield "tick", None, None

    def _events(self, timeout_s: float) -> Iterator[LinkEvent]:
        """Yield what has happened, and wait for the first event."""
        try:
            yield self._link.events.get(timeout=timeout_s)
            while True:
                yield self._link.events.get_nowait()
        except Empty:
            return

    # ---- sending

    def _send(self) -> Iterator[Event]:
        """Send work ahead."""
        parcels = []
        ahead = self._ahead()
        while self._waiting and len(self._pieces) < ahead:
            items = []
            for item in self._next_items():
                try:
                    item.prepare()
                    items.append(item)
                except PallascError as error:
                    yield "done", item.task, Answer(item.task, None, error, "")
            workers = self._allowed(items)
            if workers is not None and not workers:
                self._refused_by_all += items
            elif items:
                parcels.append(self._parcel(items, workers=workers))
        if parcels:
            self._link.send(parcels)

    def _ahead(self) -> int:
        """Return how many pieces of work may be under way."""
        least = _AHEAD * sum(self._threads.values()) + _LEAST_AHEAD
        return max(least, min(2 * self._done, _MOST_AHEAD))

    def _next_items(self) -> list[_Item]:
        """Remove and return what is sent together."""
        group = next(iter(self._waiting))
        waiting = self._waiting[group]
        items = [waiting.popleft()]
        most = 1
        if self._seconds is not None and not items[0].goes_alone:
            most = max(1, min(_MOST_TOGETHER, int(_PIECE_S / max(self._seconds, 1e-6))))
        while waiting and len(items) < most and not waiting[0].goes_alone:
            items.append(waiting.popleft())
        if not waiting:
            del self._waiting[group]
        return items

    def _allowed(self, items: Sequence[_Item]) -> list[str] | None:
        """Return the workers that may do work, None for all."""
        refused = {*self._refused, *(worker for item in items for worker in item.refused)}
        if not refused:
            return None
        return [worker for worker in self._threads if worker not in refused]

    def _parcel(
        self,
        items: Sequence[_Item],
        *,
        workers: Sequence[str] | None = None,
        session: bytes = b"",
        brings: str = "",
    ) -> Parcel:
        self._count += 1
        key = f"{self._link.topic}-{self._count}"
        arch, folders, declared = items[0].task.group
        work = Work(
            session=self._session_name,
            arch=arch,
            folders=folders,
            declared=dict(declared),
            requests=tuple(item.prepare().to_json() for item in items),
            topic=self._link.topic,
            key=key,
        )
        self._pieces[key] = _Piece(items, workers, brings)
        return Parcel(key, work.to_bytes(), session, workers, strictly=not brings)

    def _put_back(self, items: Sequence[_Item]) -> None:
        """Have work done again, before all other work of its group."""
        for item in reversed(items):
            self._waiting.setdefault(item.task.group, deque()).appendleft(item)

    # ---- hearing

    def _take(self, event: LinkEvent) -> Iterator[Event]:
        """Take in what happened on the cluster."""
        if isinstance(event, Workers):
            self._count_workers(event)
            return
        if isinstance(event, Closed):
            yield from self._fail_all(event.error)
            return
        if isinstance(event, Began):
            yield from self._begin(event.key)
            return
        piece = self._pieces.pop(event.key, None)
        if piece is None:
            return
        if isinstance(event, Arrived):
            yield from self._arrive(piece, event.data)
        elif isinstance(event, Broken):
            yield from self._break(piece, event)
        elif isinstance(event, Lost):
            self._put_back(piece.items)
        if piece.brings:
            self._put_back(self._held.pop(piece.brings, []))

    def _begin(self, key: str) -> Iterator[Event]:
        piece = self._pieces.get(key)
        if piece is None:
            return
        # What has begun before was begun by a worker that has died since.
        error = None if piece.began_s is None else self._note_death(piece)
        if error is not None:
            self._link.cancel([key])
            del self._pieces[key]
            yield "done", piece.items[0].task, Answer(piece.items[0].task, None, error, "")
            return
        piece.began_s = time.monotonic()
        if piece.brings:  # the worker has the session now
            self._put_back(self._held.pop(piece.brings, []))
            piece.brings = ""
        yield from self._started_once(piece)

    def _started_once(self, piece: _Piece) -> Iterator[Event]:
        for item in piece.items:
            if item.task.label not in self._begun:
                self._begun.add(item.task.label)
                yield "started", item.task, None

    def _arrive(self, piece: _Piece, data: object) -> Iterator[Event]:
        """Take in what a worker returned."""
        try:
            result = Result.from_bytes(data)
        except ValueError as error:
            yield from self._break(piece, Broken("", False, f"a worker's result: {error}"))
            return
        worker = result.worker
        if result.lacks:
            death = None if piece.began_s is None else self._note_death(piece)
            if death is not None:
                yield "done", piece.items[0].task, Answer(piece.items[0].task, None, death, "")
            elif worker in self._held:  # the session is under way
                self._held[worker] += piece.items
            else:
                self._held[worker] = []
                parcel = self._parcel(
                    piece.items, workers=[worker], session=self._session, brings=worker
                )
                self._link.send([parcel])
        elif result.refused:
            self._refused[worker] = "; ".join(result.refused)
            self._alone_s = time.monotonic()
            self._put_back(piece.items)
        elif len(result.outcomes) != len(piece.items):
            yield from self._break(piece, Broken("", False, "a worker's result: too short"))
        else:
            yield from self._started_once(piece)
            for item, outcome in zip(piece.items, result.outcomes, strict=True):
                self._pace(outcome.seconds)
                yield from self._settle(item, outcome, worker)

    def _settle(self, item: _Item, outcome: Outcome, worker: str) -> Iterator[Event]:
        """Settle a task, unless another worker has to do it."""
        task, reply, error = item.task, None, outcome.error
        if outcome.reply is not None:
            try:
                reply = item.prepare().read_reply(outcome.reply)
            except ValueError:
                error = failures.garbled(task.doing)
        elif error is None:
            error = failures.garbled(task.doing)
        if isinstance(reply, Compiled):
            accepted = self.accept(task, item.prepare(), reply)
            if isinstance(accepted, str):
                item.refused[worker] = accepted
                self._alone_s = time.monotonic()
                self._put_back([item])
                return
            reply = accepted
        place, stray = outcome.place, outcome.stray_bytes
        yield "done", task, Answer(task, reply, error, outcome.output, place, stray_bytes=stray)

    def _note_death(self, piece: _Piece) -> CompileError | None:
        """Note that a worker died over work; return the error if that was once too often."""
        for item in piece.items:
            item.deaths += 1
        if len(piece.items) > 1 or piece.items[0].deaths < _MOST_DEATHS:
            return None
        return self._deadly(f"{piece.items[0].deaths} times")

    @staticmethod
    def _deadly(text: str) -> CompileError:
        return CompileError(
            f"the cluster's workers died over and over while it was compiled there: {text}",
            hint="If they are short of memory, give each compiling process less with --memory.",
            kind="died",
        )

    def _break(self, piece: _Piece, event: Broken) -> Iterator[Event]:
        """Try again what dask gave up, a few times, and one by one."""
        for item in piece.items:
            if len(piece.items) == 1:
                item.broken.append(event.text)
            if event.is_death and len(piece.items) == 1:
                error: PallascError = self._deadly(event.text)
            elif len(item.broken) >= _MOST_BROKEN:
                error = ToolError(
                    f"the workers of {self.address.text} fail at it: {event.text}",
                    hint="They need what compiles here: the same pallasc with its extras cuda13 "
                    "and dask, in the same versions.",
                )
            else:
                if len(piece.items) > 1:
                    item.broken.append(event.text)
                self._put_back([item])
                continue
            yield "done", item.task, Answer(item.task, None, error, "")

    def _pace(self, seconds: float) -> None:
        """Note how long a variant took."""
        self._done += 1
        self._seconds = seconds if self._seconds is None else 0.8 * self._seconds + 0.2 * seconds

    # ---- workers

    def _count_workers(self, event: Workers) -> None:
        """Note which workers there are; have done elsewhere what waits for one that is gone."""
        if event.threads.keys() != self._threads.keys():
            self._alone_s = time.monotonic()
            items, self._refused_by_all = self._refused_by_all, []
            self._put_back(items)
        self._threads = event.threads
        self.jobs = sum(event.threads.values()) or self.jobs
        gone = [
            key
            for key, piece in self._pieces.items()
            if piece.workers is not None and not {*piece.workers} & {*event.threads}
        ]
        if gone:
            self._link.cancel(gone)
        for key in gone:
            piece = self._pieces.pop(key)
            self._put_back(piece.items)
            self._put_back(self._held.pop(piece.brings, []))

    def _without_workers(self) -> Iterator[Event]:
        """Give up what all workers have refused; say so where there are none at all."""
        waited_s = time.monotonic() - self._alone_s
        if not self._threads:
            if waited_s > _NOBODY_S and not self._told:
                self._told = True
                self.tell(f"{self.address.text} has no workers yet: waiting for the first one")
            return
        if waited_s < _NONE_LEFT_S:
            return
        items, self._refused_by_all = self._refused_by_all, []
        for item in items:
            error = self._refusal({**self._refused, **item.refused})
            yield "done", item.task, Answer(item.task, None, error, "")

    def _refusal(self, refused: Mapping[str, str]) -> ToolError:
        by_reason: dict[str, list[str]] = {}
        for worker, reason in refused.items():
            by_reason.setdefault(reason, []).append(worker)
        why = "; ".join(
            f"{workers[0]}{f' and {len(workers) - 1} more' if len(workers) > 1 else ''}: {reason}"
            for reason, workers in by_reason.items()
        )
        return ToolError(
            f"no worker of {self.address.text} compiles it as it would be here: {why}.",
            hint="Install on the workers what is installed here, or compile here, without "
            "--executor.",
        )

    def _fail_all(self, error: ToolError) -> Iterator[Event]:
        """Settle all that is left with an error."""
        items = [item for piece in self._pieces.values() for item in piece.items]
        items += [item for held in self._held.values() for item in held]
        items += [item for waiting in self._waiting.values() for item in waiting]
        items += self._refused_by_all
        self._pieces, self._held, self._waiting, self._refused_by_all = {}, {}, {}, []
        for item in items:
            own = ToolError(error.message, hint=error.hint)
            yield "done", item.task, Answer(item.task, None, own, "")
