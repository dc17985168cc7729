"""A cluster as builds use it: what `workers/pool.Pool` does with processes, with dask's workers.

Work is sent ahead, so that workers never wait for the build and an adaptive cluster sees how much
there is (`pieces`). What a worker refuses goes to another (`roster`). A variant is compiled again
only where its work was lost on the way.
"""

from __future__ import annotations

import secrets
import signal
import time
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
    Workers,
)
from pallasc.compiler.cluster.link import Event as LinkEvent
from pallasc.compiler.cluster.payloads import Outcome, Result, Session
from pallasc.compiler.cluster.pieces import Backlog, Item, Piece
from pallasc.compiler.cluster.roster import Roster
from pallasc.compiler.cluster.shipped import shipped
from pallasc.compiler.cluster.under_way import UnderWay
from pallasc.compiler.toolchain.environment import counted_values
from pallasc.compiler.toolchain.setup import Context
from pallasc.compiler.workers import failures
from pallasc.compiler.workers.messages import Answer, Compiled, Reply, Request, Task
from pallasc.compiler.workers.pool import Event
from pallasc.compiler.workers.worker_process import PROGRAM
from pallasc.errors import PallascError, ToolError
from pallasc.specs.spec import Variant

Accept = Callable[[Task, Request, Compiled], Reply | str]
"""Verifies and publishes what a worker compiled; a text says why the worker cannot be used."""


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
    _backlog: Backlog = field(default_factory=Backlog, init=False)
    _roster: Roster = field(init=False)
    _under_way: UnderWay = field(init=False)
    _refused_by_all: list[Item] = field(default_factory=list, init=False)
    _begun: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._link = Link(self.address, self.jobs, patience_s=self.patience_s)
        self._roster = Roster(self.address.text)
        self._under_way = UnderWay(self._link)

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
                self._link.close(self._under_way.session_name)
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
        self._under_way.enter(session.to_bytes())

    def running(self) -> list[tuple[Task, float]]:
        """Return what is being compiled and for how many seconds, the longest first."""
        now_s = time.monotonic()
        begun = [
            (piece.items[0].task, now_s - piece.began_s)
            for piece in self._under_way.pieces.values()
            if piece.began_s is not None
        ]
        return sorted(begun, key=lambda item: -item[1])

    def run(self, tasks: Iterable[Task]) -> Iterator[Event]:
        """Carry out tasks; yields what `Pool.run` does.

        A variant may be said to have started more than once on the cluster, but here it is once.
        Where the scheduler is gone for good, one task fails, and the others have no answer.
        """
        self.warm(0)
        self._begun = set()
        self._backlog.clear()  # of a run that was given up
        self._backlog.add(tasks)
        self._roster.touch()
        told_s = time.monotonic()
        while self._backlog or self._under_way or self._refused_by_all:
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
        ahead = self._backlog.ahead(sum(self._roster.threads.values()))
        asked = self._roster.to_ask() if self._backlog or self._refused_by_all else ""
        if asked and self._refused_by_all:
            self._backlog.put_back([self._refused_by_all.pop(0)])
        while self._backlog and (asked or len(self._under_way.pieces) < ahead):
            items = []
            for item in self._backlog.take():
                try:
                    item.prepare()
                    items.append(item)
                except PallascError as error:
                    yield "done", item.task, Answer(item.task, None, error, "")
            workers = [asked] if asked else self._roster.allowed(items)
            if workers is not None and not workers:
                self._refused_by_all += items
            elif items:
                parcels.append(self._under_way.add(Piece(items, workers, asks=asked)))
                asked = ""
        if parcels:
            self._link.send(parcels)

    # ---- hearing

    def _take(self, event: LinkEvent) -> Iterator[Event]:
        """Take in what happened on the cluster."""
        if isinstance(event, Workers):
            self._count_workers(event)
            return
        if isinstance(event, Closed):
            yield from self._stop(event.error)
            return
        if isinstance(event, Began):
            yield from self._begin(event.key)
            return
        piece = self._under_way.pieces.pop(event.key, None)
        if piece is None:
            return
        if isinstance(event, Arrived):
            yield from self._arrive(piece, event.data)
        elif isinstance(event, Broken):
            yield from self._break(piece, event)
        elif isinstance(event, Lost):
            self._backlog.put_back(piece.items)
        self._backlog.put_back(self._under_way.held_for(piece))

    def _begin(self, key: str) -> Iterator[Event]:
        piece = self._under_way.pieces.get(key)
        if piece is None:
            return
        # What has begun before was begun by a worker that has died since.
        error = None if piece.began_s is None else piece.note_death()
        if error is not None:
            self._under_way.cancel([key])
            del self._under_way.pieces[key]
            yield "done", piece.items[0].task, Answer(piece.items[0].task, None, error, "")
            return
        piece.began_s = time.monotonic()
        self._backlog.put_back(self._under_way.held_for(piece))  # the worker has the session now
        yield from self._started_once(piece)

    def _started_once(self, piece: Piece) -> Iterator[Event]:
        for item in piece.items:
            if item.task.label not in self._begun:
                self._begun.add(item.task.label)
                yield "started", item.task, None

    def _arrive(self, piece: Piece, data: object) -> Iterator[Event]:
        """Take in what a worker returned."""
        try:
            result = Result.from_bytes(data)
        except ValueError as error:
            yield from self._break(piece, Broken("", False, f"a worker's result: {error}"))
            return
        worker = result.worker
        if result.lacks:
            death = None if piece.began_s is None else piece.note_death()
            if death is not None:
                yield "done", piece.items[0].task, Answer(piece.items[0].task, None, death, "")
            else:
                self._under_way.bring_session(piece, worker)
        elif result.refused:
            self._roster.refuse(worker, "; ".join(result.refused))
            self._backlog.put_back(piece.items)
        elif len(result.outcomes) != len(piece.items):
            yield from self._break(piece, Broken("", False, "a worker's result: too short"))
        else:
            if self._roster.accept(worker):
                self._ask_all_again()
            yield from self._started_once(piece)
            for item, outcome in zip(piece.items, result.outcomes, strict=True):
                self._backlog.pace(outcome.seconds)
                yield from self._settle(item, outcome, worker)

    def _settle(self, item: Item, outcome: Outcome, worker: str) -> Iterator[Event]:
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
                self._roster.touch()
                self._backlog.put_back([item])
                return
            reply = accepted
        place, stray = outcome.place, outcome.stray_bytes
        yield "done", task, Answer(task, reply, error, outcome.output, place, stray_bytes=stray)

    def _break(self, piece: Piece, event: Broken) -> Iterator[Event]:
        """Try again what dask gave up, a few times, and one by one."""
        alone = len(piece.items) == 1
        for item in piece.items:
            error = item.give_up(
                event.text, alone=alone, by_death=event.is_death, address=self.address.text
            )
            if error is None:
                self._backlog.put_back([item])
            else:
                yield "done", item.task, Answer(item.task, None, error, "")

    # ---- workers

    def _count_workers(self, event: Workers) -> None:
        """Note which workers there are; have done elsewhere what waits for one that is gone."""
        if self._roster.count(event.threads):
            self._ask_all_again()
        self.jobs = sum(event.threads.values()) or self.jobs
        self._backlog.put_back(self._under_way.take_from(event.threads))

    def _ask_all_again(self) -> None:
        """Send once more what all workers had refused: one may take it now."""
        items, self._refused_by_all = self._refused_by_all, []
        self._backlog.put_back(items)

    def _without_workers(self) -> Iterator[Event]:
        """Give up what all workers have refused; say so where there are none at all."""
        if text := self._roster.told_nobody():
            self.tell(text)
        if not self._roster.is_given_up() or self._under_way.asks():
            return
        items, self._refused_by_all = self._refused_by_all, []
        for item in items:
            error = self._roster.refusal(item)
            yield "done", item.task, Answer(item.task, None, error, "")

    def _stop(self, error: ToolError) -> Iterator[Event]:
        """Settle one task with an error that concerns all; those that are left are not answered."""
        items = [*self._under_way.clear(), *self._backlog.clear(), *self._refused_by_all]
        self._refused_by_all = []
        if items:
            task = min((item.task for item in items), key=lambda task: task.label)
            yield "done", task, Answer(task, None, error, "")
