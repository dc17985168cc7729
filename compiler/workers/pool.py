"""The pool: worker processes that are started, fed, watched, replaced and stopped.

Workers are grouped by architecture (Mosaic compiles for one per process) and by the spec's folder
(modules of two folders would clash). A worker that dies loses only its own request.

`find_lines` and `find_ptx` compile variants again to get the user's source lines
of PTX, and the PTX of kernels that XLA adds to Mosaic's.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from selectors import BaseSelector, DefaultSelector
from types import TracebackType
from typing import Literal, TypeVar

from pallasc.cache.store import Store
from pallasc.compiler.lowering.line_tables import LineTable
from pallasc.compiler.toolchain.setup import Setup, declared_values
from pallasc.compiler.workers.messages import (
    Failed,
    FindLines,
    FindPtx,
    Group,
    Introduction,
    LinesFound,
    PtxFound,
    Reply,
    Request,
    Task,
    Warm,
)
from pallasc.compiler.workers.worker_process import (
    PROGRAM,
    Limits,
    Watch,
    Worker,
    explain_memory,
    make_folder,
    receive,
)
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

_START_S = 2.0
"""The assumed start of a worker, until it was measured: most of it is importing JAX."""


@dataclass(slots=True)
class Pace:
    """Average times of tasks and of workers' starts, in seconds."""

    tasks: int = 0
    tasks_s: float = 0.0
    starts: int = 0
    starts_s: float = 0.0

    def add_task(self, seconds: float) -> None:
        """Note how long a task took."""
        self.tasks, self.tasks_s = self.tasks + 1, self.tasks_s + seconds

    def add_start(self, seconds: float) -> None:
        """Note how long a worker took to get ready."""
        self.starts, self.starts_s = self.starts + 1, self.starts_s + seconds

    def pays(self, waiting: int, serving_s: Sequence[float]) -> bool:
        """Return True if another worker for a group is worth its start.

        It is if, by the average time of tasks so far, tasks will still wait when it is ready. Tasks
        may take longer this time, so it is also worth it as soon as no worker has become free for
        as long as a start takes: waiting has then cost as much as starting would have.

        Args:
            waiting: tasks of the group that have not begun.
            serving_s: how long each worker of the group has been at its task.
        """
        if not serving_s or not self.tasks:
            return True
        start_s = self.starts_s / self.starts if self.starts else _START_S
        waiting_s = waiting * self.tasks_s / self.tasks
        return waiting_s > len(serving_s) * start_s or min(serving_s) > start_s


@dataclass(slots=True)
class Queue:
    """The tasks that wait, by group."""

    _waiting: dict[Group, deque[Task]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, group: object) -> bool:
        return group in self._waiting

    def add(self, tasks: Iterable[Task]) -> None:
        """Append tasks to their groups."""
        for task in tasks:
            self._waiting.setdefault(task.group, deque()).append(task)

    def put_back(self, task: Task) -> None:
        """Add a task before all others of its group."""
        self._waiting.setdefault(task.group, deque()).appendleft(task)

    def take(self, group: Group) -> Task:
        """Remove and return the next task of a group."""
        tasks = self._waiting[group]
        task = tasks.popleft()
        if not tasks:
            del self._waiting[group]
        return task

    def next_group(
        self,
        idle: Collection[Group | None],
        serving: Sequence[tuple[Group | None, float]],
        pace: Pace,
    ) -> Group | None:
        """Choose the group that is served next, None if starting a worker does not pay.

        A group that an idle worker serves comes first, then the group with the most tasks for each
        of its workers.

        Args:
            idle: the groups of idle workers, None for a worker that may serve any.
            serving: the groups of busy workers, and for how many seconds each has been busy.
            pace: how long tasks and starts take.
        """
        for group in idle:
            if group is not None and group in self._waiting:
                return group
        busy: dict[Group | None, list[float]] = {}
        for group, seconds in serving:
            busy.setdefault(group, []).append(seconds)
        by_need = sorted(
            self._waiting, key=lambda g: -len(self._waiting[g]) / (1 + len(busy.get(g, ())))
        )
        for group in by_need:
            if None in idle or pace.pays(len(self._waiting[group]), busy.get(group, ())):
                return group
        return None


Event = (
    tuple[Literal["started"], Task, None]
    | tuple[Literal["done"], Task, Reply]
    | tuple[Literal["tick"], None, None]
)


@dataclass(slots=True)
class Pool:
    """At most `jobs` workers at a time; use it as a context manager.

    Args:
        jobs: how many workers run at the same time.
        environment: of the workers.
        context: the request that every worker gets first, None until it is known.
        timeout_s: how long a task may take, without the start of its worker.
        memory_bytes: what a worker and its descendants may hold.
        grace_s: how much longer than `timeout_s` a task may take whose worker keeps to it itself.
        tick_s: how often `run` yields a tick, None for never.
        program: the module that the workers run.
        lasting: whether workers stay after `run`, for tasks of a later one.
        alone: whether each task gets a new worker.
    """

    jobs: int
    environment: Mapping[str, str]
    context: Request | None = None
    timeout_s: float | None = field(default=None, kw_only=True)
    memory_bytes: int | None = field(default=None, kw_only=True)
    grace_s: float = field(default=0.0, kw_only=True)
    tick_s: float | None = field(default=1.0, kw_only=True)
    program: str = field(default=PROGRAM, kw_only=True)
    lasting: bool = field(default=False, kw_only=True)
    alone: bool = field(default=False, kw_only=True)
    _workers: list[Worker] = field(default_factory=list, init=False)
    _busy: list[Worker] = field(default_factory=list, init=False)
    _ending: list[Worker] = field(default_factory=list, init=False)
    _queue: Queue = field(default_factory=Queue, init=False)
    _pace: Pace = field(default_factory=Pace, init=False)
    _repeated: set[int] = field(default_factory=set, init=False)
    _ready: dict[Worker, tuple[str, Request]] = field(default_factory=dict, init=False)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _uninterrupted():
            for worker in list(self._workers):
                self._end(worker)
            while self._ending:
                self._ending[-1].finish()
                self._ending.pop()

    def warm(self, count: int) -> None:
        """Start workers that import JAX while the caller still prepares."""
        for _ in range(min(count, self.jobs) - len(self._workers)):
            self._new_worker().send(Warm())

    def keep_ready(self, contexts: Mapping[str, Request]) -> None:
        """Have one worker get ready for each architecture, and end all others; between two runs.

        A worker serves tasks of its architecture if its context is still equal to the pool's then.

        Args:
            contexts: what a worker is sent in place of the pool's context, by architecture.
        """
        self._give_up()
        for worker in list(self._workers):
            arch, context = self._ready.get(worker, ("", None))
            if context is None or contexts.get(arch) != context or not worker.is_fit():
                self._end(worker)
        ready = {arch for arch, _ in self._ready.values()}
        for arch, context in contexts.items():
            if arch not in ready:
                worker = self._new_worker()
                worker.introduce(context, ahead=True)
                self._ready[worker] = (arch, context)
        self._bury()

    @property
    def spent_s(self) -> float:
        """Total time of all tasks so far, without the start of their workers."""
        return self._pace.tasks_s

    def running(self) -> list[tuple[Task, float]]:
        """Return the current tasks and for how many seconds they have run, the longest first."""
        now_s = time.monotonic()
        tasks = [(w.task, now_s - w.began_s) for w in self._busy if w.task is not None]
        return sorted(tasks, key=lambda item: -item[1])

    def run(self, tasks: Iterable[Task]) -> Iterator[Event]:
        """Carry out tasks.

        Yields ("started", task, None), ("done", task, reply) and, every `tick_s` seconds,
        ("tick", None, None). A task during which its worker died is repeated once in a new worker,
        if something that the worker did before may have been the cause.
        """
        self._give_up()
        self._queue = Queue()
        self._queue.add(tasks)
        self._repeated.clear()  # numbers of tasks, which others have after them
        watch = Watch(self._limits())
        told_s = time.monotonic()
        with DefaultSelector() as selector:
            while self._queue or self._busy:
                yield from self._begin(selector)
                left_s = watch.pause_s()
                if self.tick_s is not None:
                    left_s = min(left_s, max(0.0, told_s + self.tick_s - time.monotonic()))
                done = list(self._hear(selector, watch, left_s))
                # The caller may take long over an answer, so free workers get work first. A failure
                # may be the caller's reason to give up, so it is reported before anything begins.
                begun = list(self._begin(selector)) if all(map(_went_well, done)) else []
                yield from done
                yield from begun
                if self.tick_s is not None and time.monotonic() >= told_s + self.tick_s:
                    told_s = time.monotonic()
                    yield "tick", None, None

    def _give_up(self) -> None:
        """End the workers of a run that its caller left."""
        for worker in list(self._busy):
            self._busy.remove(worker)
            self._end(worker)

    # ---- beginning

    def _begin(self, selector: BaseSelector) -> Iterator[Event]:
        """Give tasks to workers as long as fewer than `jobs` are busy."""
        while self._queue and len(self._busy) < self.jobs:
            idle = [worker for worker in self._workers if worker not in self._busy]
            now_s = time.monotonic()
            serving = [(worker.group, now_s - worker.began_s) for worker in self._busy]
            free = [worker.group for worker in idle if worker not in self._ready]
            group = self._queue.next_group(free, serving, self._pace)
            if group is None:
                return
            task = self._queue.take(group)
            if id(task) not in self._repeated:
                yield "started", task, None
            try:
                request = task.make_request()
            except PallascError as error:
                yield "done", task, Failed(error=error)
                continue
            worker = self._worker(group, idle, fresh=id(task) in self._repeated)
            worker.assign(task, request)
            self._busy.append(worker)
            _register(selector, worker)

    def _worker(self, group: Group, idle: Sequence[Worker], *, fresh: bool) -> Worker:
        """Return a worker for a group: one of the group, one that is ready, a warm or a new one.

        Args:
            group: what it will serve.
            idle: the workers that are not busy.
            fresh: whether it must not have served any task before.
        """
        for worker in idle:
            is_left_over = worker.group not in (None, group) and worker.group not in self._queue
            if is_left_over or not worker.is_fit():
                self._end(worker)
        left = [worker for worker in idle if worker in self._workers]
        if fresh:
            left = self._unused(left)
        of_group = [worker for worker in left if worker.group == group]
        ready = [worker for worker in left if self._ready.get(worker) == (group[0], self.context)]
        warm = [worker for worker in left if worker.group is None and worker not in self._ready]
        worker = next(iter([*of_group, *ready, *warm]), None) or self._new_worker()
        is_introduced = self._ready.pop(worker, None) is not None or worker.group is not None
        if self.context is not None and not is_introduced:
            worker.introduce(self.context)
        return worker

    def _unused(self, idle: Sequence[Worker]) -> list[Worker]:
        """Return the workers that have served nothing; if there are none, make room for one."""
        unused = [worker for worker in idle if not worker.served]
        if idle and not unused and len(self._workers) >= self.jobs:
            self._end(idle[0])
        return unused

    def _new_worker(self) -> Worker:
        data_bytes = self._limits().data_bytes()
        with _uninterrupted():
            worker = Worker(
                self.environment, make_folder(), data_bytes=data_bytes, program=self.program
            )
            self._workers.append(worker)
        return worker

    # ---- hearing

    def _hear(self, selector: BaseSelector, watch: Watch, timeout_s: float) -> Iterator[Event]:
        """Wait for answers; look after the workers when it is time."""
        for worker in dict.fromkeys(key.data for key, _ in selector.select(timeout_s)):
            reply = receive(worker)
            if reply is not None:
                yield from self._settle(selector, worker, reply)
            else:
                _register(selector, worker)
        if not watch.pause_s():
            for worker, reply in watch.look(self._busy):
                yield from self._settle(selector, worker, reply)
            self._bury()

    def _settle(self, selector: BaseSelector, worker: Worker, reply: Reply) -> Iterator[Event]:
        """Settle a task, and decide whether its worker stays."""
        _register(selector, worker, events={})
        self._busy.remove(worker)
        task = worker.task
        self._pace.add_task(worker.release())
        if worker.served == 1 and worker.start_s is not None:
            self._pace.add_start(worker.start_s)
        if not self._is_kept(worker, reply):
            self._end(worker)
        if task is None:
            return
        if isinstance(reply, Failed):
            if reply.repeat and id(task) not in self._repeated:
                self._repeated.add(id(task))
                self._queue.put_back(task)
                return
            if reply.out_of_memory and self.memory_bytes:
                explain_memory(reply.error, self.memory_bytes)
        yield "done", task, reply

    def _is_kept(self, worker: Worker, reply: Reply) -> bool:
        """Return True if a worker can go on: it lives, and its group may have more to do.

        If the user's code has changed its process for good, the next variant would be compiled in
        another state than alone.
        """
        is_usable = not reply.tainted and not (isinstance(reply, Failed) and reply.died)
        has_more = self.lasting or worker.group in self._queue
        return is_usable and has_more and not self.alone and not self._limits().are_near(worker)

    # ---- ending

    def _end(self, worker: Worker) -> None:
        """Begin to kill a worker, without waiting."""
        worker.end()
        self._ready.pop(worker, None)
        self._ending.append(worker)
        self._workers.remove(worker)

    def _bury(self) -> None:
        """Release the resources of workers that have ended."""
        for worker in [worker for worker in self._ending if worker.is_over()]:
            worker.finish()
            self._ending.remove(worker)

    def _limits(self) -> Limits:
        return Limits(self.timeout_s, self.memory_bytes, self.grace_s)


def _went_well(event: Event) -> bool:
    """Return True if an event is the reply to a task that succeeded."""
    return event[2] is not None and event[2].ok


def _register(
    selector: BaseSelector, worker: Worker, events: Mapping[int, int] | None = None
) -> None:
    """Have a selector wait for what a worker may do next, or for the given events."""
    expected = worker.events() if events is None else events
    registered = selector.get_map()
    for descriptor in worker.descriptors:
        if descriptor in registered and descriptor not in expected:
            selector.unregister(descriptor)
        elif descriptor in expected and descriptor not in registered:
            selector.register(descriptor, expected[descriptor], worker)


_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off signals that end a build until the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_WORKER_BYTES = 700_000_000
"""Memory of a compiling process: about 480 MB after JAX is imported, and some to compile."""
_LEAST_LIMIT_BYTES = 2_000_000_000
_SHARED_OUT = 0.9


@dataclass(frozen=True, slots=True)
class Capacity:
    """The cores and the memory that this process may use now.

    A container sees the cores and the memory of the whole machine, and is throttled or killed at
    the limits of its control groups: of version 2 (`cpu.max`, `memory.max`, `memory.high`) or
    of version 1 (`cpu.cfs_quota_us`, `memory.limit_in_bytes`), its own and all above it.

    Attributes:
        cores: how many of its threads can run at the same time.
        free_bytes: memory that is available.
    """

    cores: int
    free_bytes: int

    def jobs(self, tasks: int) -> int:
        """Return how many workers to start for a number of tasks, at least 1."""
        return max(1, min(self.cores, self.free_bytes // _WORKER_BYTES, tasks))

    def memory_bytes(self, jobs: int) -> int:
        """Return the memory limit of a worker: its share, but at least enough for any kernel."""
        return max(_LEAST_LIMIT_BYTES, int(self.free_bytes * _SHARED_OUT) // jobs)


def find_capacity(root: Path = Path("/")) -> Capacity:
    """Return the cores and the memory that this process may use now.

    Args:
        root: the folder above `proc` and the paths that it names.
    """
    quotas = [_cpu_quota(folder) for folder in _control_groups(root, "cpu")]
    memory = [_memory_left(folder) for folder in _control_groups(root, "memory")]
    cores = [len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in quotas if quota)]
    free = [_available_bytes(root), *(size for size in memory if size is not None)]
    return Capacity(max(1, min(cores)), max(0, min(free)))


def _available_bytes(root: Path) -> int:
    """Return the free memory of the machine, including reclaimable file cache."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(match[1]) * 1024


def _memory_left(folder: Path) -> int | None:
    """Return the free memory of a control group, None if it has no limit."""
    for limits, usage in (
        (("memory.max", "memory.high"), "memory.current"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes"),
    ):
        sizes = [size for size in (_number(folder / name) for name in limits) if size]
        if sizes:
            # Cached pages of files count as used, but the kernel drops them under pressure.
            stat = _text(folder / "memory.stat")
            files = re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE)
            used = max(0, (_number(folder / usage) or 0) - sum(map(int, files)))
            return min(sizes) - used
    return None


def _cpu_quota(folder: Path) -> float | None:
    """Return how many cores a control group may keep busy, None if it has no limit."""
    words = _text(folder / "cpu.max").split()
    if len(words) != 2:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(word.isdigit() and int(word) for word in words):  # "max" and "-1" stand for no limit
        return None
    return int(words[0]) / int(words[1])


def _control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, from its own upwards."""
    own = dict(_own_groups(_text(root / "proc/self/cgroup")))
    for line in _text(root / "proc/self/mountinfo").splitlines():
        # proc(5): … root, mount point, options, optional fields, "-", type, source, options
        first, _, last = line.partition(" - ")
        before, after = first.split(), last.split()
        if len(before) < 6 or len(after) < 3:
            continue
        if after[0] == "cgroup2":
            name = own.get("")
        elif after[0] == "cgroup" and controller in after[2].split(","):
            name = own.get(controller)
        else:
            continue
        if name is not None:
            yield from _upwards(root / before[4].lstrip("/"), before[3], name)


def _own_groups(text: str) -> Iterator[tuple[str, str]]:
    """Yield controller and name of each control group; version 2 has no controller."""
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        for controller in controllers.split(","):
            yield controller, name


def _upwards(mount: Path, mounted: str, name: str) -> Iterator[Path]:
    """Yield the folder of a control group and those above it, up to the mounted group."""
    inside = os.path.relpath(name, mounted) if name.startswith(mounted) else "."
    folder = mount / inside
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """Return the text of a file, "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


R = TypeVar("R", bound=Reply)

Tables = Mapping[str, LineTable]
"""By the digest of the PTX."""
Texts = Mapping[str, str]
"""PTX by the digest of the cubin, as `PlanRun` takes it."""


def find_lines(
    kernels: Sequence[tuple[Variant, Mapping[str, str]]],
    setup: Setup,
    store: Store,
    *,
    code: Sequence[Mapping[str, str]] | None = None,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Tables | PallascError]:
    """Return the source lines of the kernels of variants.

    A variant that fails, takes too long, or gives other code has its error in the place of tables.

    Args:
        kernels: the variants, each with the PTX that ships, by digest.
        setup: the toolchain.
        store: has the digests of its files.
        code: for each variant, the digests of the machine code that ships, by the PTX's digest:
            the machine code must be equal, too.
        jobs: how many are compiled at the same time.
        timeout_s: time limit of one.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    requests = [
        FindLines(variant=variant, ptx=ptx, env=declared_values(variant.env), code=shipped)
        for (variant, ptx), shipped in zip(kernels, code or [{}] * len(kernels), strict=True)
    ]
    found = _ask_again(requests, "finds the lines of", LinesFound, setup, store, jobs, timeout_s)
    return [reply.tables if isinstance(reply, LinesFound) else reply for reply in found]


def without_ptx(artifact: Artifact) -> dict[str, tuple[str, ...]]:
    """Return the kernels of an artifact that come without PTX, by the digest of their cubin."""
    names: dict[str, tuple[str, ...]] = {}
    for kernel in artifact.kernels:
        if kernel.ptx is None:
            names[kernel.cubin] = (*names.get(kernel.cubin, ()), kernel.name)
    return names


def find_ptx(
    compiled: Sequence[tuple[Variant, Artifact]],
    setup: Setup,
    store: Store,
    *,
    jobs: int = 1,
    timeout_s: float | None = None,
) -> list[Texts | PallascError]:
    """Return the PTX that variants' artifacts lack, or why it cannot be had.

    Only variants whose artifacts lack some are compiled.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    lacking = {n: without_ptx(artifact) for n, (_, artifact) in enumerate(compiled)}
    requests = {
        n: FindPtx(variant=compiled[n][0], cubins=cubins, env=declared_values(compiled[n][0].env))
        for n, cubins in lacking.items()
        if cubins
    }
    doing = "finds the PTX of XLA's kernels in"
    asked = list(requests.values())
    replies = _ask_again(asked, doing, PtxFound, setup, store, jobs, timeout_s)
    found: list[Texts | PallascError] = [{} for _ in compiled]
    for number, reply in zip(requests, replies, strict=True):
        found[number] = reply.ptx if isinstance(reply, PtxFound) else reply
    return found


def _ask_again(
    requests: Sequence[FindLines | FindPtx],
    doing: str,
    kind: type[R],
    setup: Setup,
    store: Store,
    jobs: int,
    timeout_s: float | None,
) -> list[R | PallascError]:
    """Return the reply to each request, in order, or the error in its place."""
    tasks = []
    for number, request in enumerate(requests):
        variant = request.variant
        group = (variant.target.arch, variant.base_dir, tuple(request.env.items()))
        tasks.append(Task(number, group, request, f"the process that {doing} {variant.id}"))
    if not tasks:
        return []
    replies: dict[int, R | PallascError] = {}
    context = Introduction.of(setup, setup.context(store), store)
    with Pool(jobs, setup.environment, context, timeout_s=timeout_s, tick_s=None) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and isinstance(reply, Failed):
                replies[task.label] = reply.error
            elif task is not None and reply is not None:
                replies[task.label] = reply.require(kind)
    return [replies[number] for number in range(len(tasks))]
