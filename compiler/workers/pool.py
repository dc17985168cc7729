"""The pool of worker processes: start, feed, watch, replace, and stop them.

Workers are grouped by architecture (Mosaic compiles for one per process) and by the spec's folder
(modules of two folders would clash).

If a worker crashes, its warden kills all processes that it has started (`warden`). `Worker.reply`
then returns a failure with the exit code, the last output, and the user's line at which it crashed.
If the worker had served other tasks, these may be the cause, so `Pool._settle` repeats the current
task once, in a new worker. Otherwise, or if the new worker crashes as well, the variant fails, and
the build continues in new workers (unless it stops at the first failure). A worker that exceeds its
time or memory limit is killed with the same consequences, except that a timeout is never repeated.

`find_lines` and `find_ptx` compile variants again: to find the user's source lines for PTX, and to
get the PTX of the kernels that XLA adds.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import signal
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from pallasc.cache.format import size
from pallasc.cache.store import Store
from pallasc.compiler.lowering import LineTable
from pallasc.compiler.toolchain.setup import Setup, declared_values
from pallasc.compiler.workers import messages
from pallasc.compiler.workers.messages import Failed, Group, Recompiled, Reply, Request, Task
from pallasc.compiler.workers.warden import held_bytes, parents
from pallasc.compiler.workers.worker_process import PROGRAM, Worker, make_folder
from pallasc.errors import PallascError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

_CHECK_S = 0.25
"""Interval between two checks of the workers."""
_SHARE = 0.02
"""Maximum fraction of the build's time to spend on checking workers."""
_ENDING_S = 0.02
"""Interval between checks of a worker's exit code after its channel has closed."""
_REPLACED_AT = 0.75
"""After a task, a worker is replaced if it holds more than this fraction of its memory limit."""
_RESERVED_BYTES = 512 << 20
_RESERVED_BYTES_PER_CORE = 32 << 20

Event = (
    tuple[Literal["started"], Task, None]
    | tuple[Literal["done"], Task, Reply]
    | tuple[Literal["tick"], None, None]
)


def next_group(
    waiting: Mapping[Group, int], idle: Iterable[Group | None], busy: Iterable[Group | None]
) -> Group:
    """Choose the group to serve next.

    A group with an idle worker comes first, then the group with the most tasks per worker.

    Args:
        waiting: number of waiting tasks, by group; at least one.
        idle: the groups of idle workers.
        busy: the groups of busy workers.
    """
    for group in idle:
        if group is not None and group in waiting:
            return group
    serving = Counter(busy)
    return max(waiting, key=lambda group: waiting[group] / (1 + serving[group]))


@dataclass(slots=True)
class Pool:
    """A pool of at most `jobs` simultaneous workers; use it as a context manager.

    Args:
        jobs: number of workers that run at the same time.
        environment: environment variables of the workers.
        context: the first request to each worker, None until it is known.
        timeout_s: time limit of a task, not counting the start of its worker.
        memory_bytes: memory limit of a worker and its descendants; 0 for no limit, None for a
            share of the free memory.
        grace_s: additional time for a task if its worker enforces `timeout_s` itself.
        tick_s: interval at which `run` yields a tick, None for never.
        program: the module that the workers run.
        lasting: whether workers survive `run`, for the tasks of a later run.
        alone: whether each task gets a new worker.
    """

    jobs: int
    environment: Mapping[str, str]
    context: Request | None = None
    timeout_s: float | None = field(default=None, kw_only=True)
    memory_bytes: int | None = field(default=0, kw_only=True)
    grace_s: float = field(default=0.0, kw_only=True)
    tick_s: float | None = field(default=1.0, kw_only=True)
    program: str = field(default=PROGRAM, kw_only=True)
    lasting: bool = field(default=False, kw_only=True)
    alone: bool = field(default=False, kw_only=True)
    _workers: list[Worker] = field(default_factory=list, init=False)
    _ending: list[Worker] = field(default_factory=list, init=False)
    _waiting: dict[Group, deque[Task]] = field(default_factory=dict, init=False)
    _repeated: set[int] = field(default_factory=set, init=False)
    _next_check_s: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        if self.memory_bytes is None:
            self.memory_bytes = find_capacity().memory_bytes(self.jobs)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        with _uninterrupted():
            for worker in list(self._workers):
                self._end(worker)
            while self._ending:
                self._ending[-1].finish()
                self._ending.pop()

    def warm(self, count: int) -> None:
        """Start workers that import JAX while the caller is still preparing."""
        for _ in range(min(count, self.jobs) - len(self._workers)):
            self._new_worker().send(messages.Warm())

    def keep_ready(self, requests: Mapping[str, Request]) -> None:
        """Between two runs, keep one unused worker ready for each architecture; end all others.

        The next run uses such a worker only if its context still equals the pool's.

        Args:
            requests: for each architecture, the request to send after the context.
        """
        for worker in list(self._workers):
            is_ready = worker.arch in requests and worker.context == self.context
            if not is_ready or not worker.is_fit():
                self._end(worker)
        for arch in requests.keys() - {worker.arch for worker in self._workers}:
            worker = self._new_worker()
            worker.arch = arch
            if self.context is not None:
                worker.introduce(self.context)
            worker.send(requests[arch])
        self._bury()

    @property
    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.task is not None]

    def running(self) -> list[tuple[Task, float]]:
        """Return the current tasks and their run times in seconds so far, longest first."""
        now_s = time.monotonic()
        tasks = [(w.task, now_s - w.began_s) for w in self._workers if w.task is not None]
        return sorted(tasks, key=lambda item: -item[1])

    def run(self, tasks: Iterable[Task]) -> Iterator[Event]:
        """Run tasks, whose labels must differ.

        Yields ("started", task, None), ("done", task, reply), and, every `tick_s` seconds, ("tick",
        None, None). If a worker dies during a task and its earlier tasks may be the cause, the task
        is repeated once in a new worker.
        """
        for worker in self._busy:  # left over from a run that was abandoned
            self._end(worker)
        self._waiting.clear()
        self._repeated.clear()
        for task in tasks:
            self._waiting.setdefault(task.group, deque()).append(task)
        interval_s = math.inf if self.tick_s is None else self.tick_s
        next_tick_s = time.monotonic() + interval_s
        while self._waiting or self._busy:
            yield from self._begin()
            self._wait(next_tick_s)
            done = list(self._hear())
            # The caller may take long to process a reply, so free workers get tasks first. A
            # failure may make the caller stop, so it is reported before new tasks start.
            went_well = not any(isinstance(reply, Failed) for _, _, reply in done)
            begun = list(self._begin()) if went_well else []
            yield from done
            yield from begun
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + interval_s
                yield "tick", None, None

    # ---- beginning

    def _begin(self) -> Iterator[Event]:
        """Assign tasks while fewer than `jobs` workers are busy."""
        while self._waiting and len(self._busy) < self.jobs:
            group = next_group(
                {group: len(tasks) for group, tasks in self._waiting.items()},
                [worker.group for worker in self._workers if worker.task is None],
                [worker.group for worker in self._busy],
            )
            task = self._waiting[group].popleft()
            if not self._waiting[group]:
                del self._waiting[group]
            if task.label not in self._repeated:
                yield "started", task, None
            try:
                request = task.make_request()
            except PallascError as error:
                yield "done", task, Failed(error=error)
                continue
            self._worker(group, fresh=task.label in self._repeated).assign(task, request)

    def _worker(self, group: Group, *, fresh: bool) -> Worker:
        """Return a worker: one of the group, else a ready one, else a warm one, else a new one.

        Args:
            group: the group that the worker will serve.
            fresh: whether the worker must not have served any task before.
        """
        for worker in [worker for worker in self._workers if worker.task is None]:
            is_left_over = worker.group not in (None, group) and worker.group not in self._waiting
            if is_left_over or (fresh and worker.served) or not worker.is_fit():
                self._end(worker)
        idle = [worker for worker in self._workers if worker.task is None]
        of_group = (w for w in idle if w.group == group)
        ready = (w for w in idle if w.arch == group[0] and w.context == self.context)
        warm = (w for w in idle if w.group is None and w.arch is None)
        worker = next(chain(of_group, ready, warm), None) or self._new_worker()
        if self.context is not None and worker.context is None:
            worker.introduce(self.context)
        return worker

    def _new_worker(self) -> Worker:
        with _uninterrupted():
            data_bytes = self._data_bytes()
            worker = Worker(
                self.environment, make_folder(), data_bytes=data_bytes, program=self.program
            )
            self._workers.append(worker)
        return worker

    def _data_bytes(self) -> int:
        """Return the operating system's limit for each process (RLIMIT_DATA), 0 for none.

        The limit stops processes that allocate faster than the pool checks. Linux also counts
        memory that is only reserved, such as the stacks of the threads that XLA starts per core.
        """
        if not self.memory_bytes:
            return 0
        reserved = _RESERVED_BYTES + (os.cpu_count() or 1) * _RESERVED_BYTES_PER_CORE
        return self.memory_bytes + reserved

    # ---- hearing

    def _wait(self, until_s: float) -> None:
        """Wait for a worker to send or accept data, or until the next tick or check."""
        until_s = min(until_s, self._next_check_s)
        poll = select.poll()
        for worker in self._busy:
            for descriptor, event in worker.events().items():
                poll.register(descriptor, event)
            if worker.gone_s is not None:
                until_s = min(until_s, time.monotonic() + _ENDING_S)
        poll.poll(max(0, math.ceil(1000 * (until_s - time.monotonic()))))

    def _hear(self) -> Iterator[Event]:
        """Process the replies that have arrived; check the workers if a check is due."""
        for worker in self._busy:
            reply = worker.reply()
            if reply is not None:
                yield from self._settle(worker, reply)
        if time.monotonic() < self._next_check_s:
            return
        began_s = time.thread_time()
        held = self._held()
        for worker in self._busy:
            worker.cut_logs()
            error = worker.over_limit(
                held.get(worker, 0),
                memory_bytes=self.memory_bytes,
                timeout_s=self.timeout_s,
                grace_s=self.grace_s,
            )
            if error is not None:
                worker.end_with_stack()
                reply = worker.failure(error, repeat=error.kind != "timeout")
                yield from self._settle(worker, reply)
        self._bury()
        spent_s = time.thread_time() - began_s
        self._next_check_s = time.monotonic() + max(_CHECK_S, spent_s / _SHARE)

    def _held(self) -> dict[Worker, int]:
        """Return the memory of each busy worker with its descendants; {} without a limit."""
        if not self.memory_bytes:
            return {}
        table = parents()
        return {worker: sum(map(held_bytes, worker.tree(table))) for worker in self._busy}

    def _settle(self, worker: Worker, reply: Reply) -> Iterator[Event]:
        """Finish a task: end its worker unless it is kept, and repeat the task if needed."""
        task = worker.task
        if task is None:
            return
        worker.task, worker.served = None, worker.served + 1
        if not self._is_kept(worker, reply):
            self._end(worker)
        if isinstance(reply, Failed):
            if reply.repeat and task.label not in self._repeated:
                self._repeated.add(task.label)
                self._waiting.setdefault(task.group, deque()).appendleft(task)
                return
            if reply.out_of_memory and self.memory_bytes:
                # Linux denied an allocation before the pool saw that the limit was exceeded.
                reply.error.hint = reply.error.hint or (
                    f"A compiling process may hold {size(self.memory_bytes)} of memory; "
                    "--memory changes this limit."
                )
        yield "done", task, reply

    def _is_kept(self, worker: Worker, reply: Reply) -> bool:
        """Return True if a worker can continue: it is alive, and its group may have more tasks.

        If user code has changed the process permanently, the next variant might compile differently
        than in a new process.
        """
        is_usable = not reply.tainted and not (isinstance(reply, Failed) and reply.died)
        has_more = self.lasting or worker.group in self._waiting
        if not is_usable or not has_more or self.alone:
            return False
        most = _REPLACED_AT * self.memory_bytes if self.memory_bytes else math.inf
        return not worker.process or held_bytes(worker.process) <= most

    # ---- ending

    def _end(self, worker: Worker) -> None:
        """Start to kill a worker, without waiting."""
        worker.end()
        self._ending.append(worker)
        self._workers.remove(worker)

    def _bury(self) -> None:
        """Release the resources of workers that have ended."""
        for worker in [worker for worker in self._ending if worker.is_over()]:
            worker.finish()
            self._ending.remove(worker)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signals that end a build until the block ends."""
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- how many workers

_WORKER_BYTES = 700_000_000
"""Memory of a compiling process: about 480 MB after importing JAX, plus some to compile."""
_LEAST_LIMIT_BYTES = 2_000_000_000
_SHARED_OUT = 0.9


@dataclass(frozen=True, slots=True)
class Capacity:
    """The cores and the memory that this process may use now.

    A container sees all cores and memory of the machine, but is throttled or killed at the limits
    of its control groups and their parents. In cgroup version 2, the limits are `cpu.max`,
    `memory.max`, and `memory.high`; in version 1, `cpu.cfs_quota_us` and `memory.limit_in_bytes`.

    Attributes:
        cores: number of this process's threads that can run at the same time.
        free_bytes: memory that is available.
    """

    cores: int
    free_bytes: int

    def jobs(self, tasks: int) -> int:
        """Return how many workers to start for a number of tasks, at least 1."""
        return max(1, min(self.cores, self.free_bytes // _WORKER_BYTES, tasks))

    def memory_bytes(self, jobs: int) -> int:
        """Return a worker's memory limit: an equal share, but at least enough for any kernel."""
        return max(_LEAST_LIMIT_BYTES, int(self.free_bytes * _SHARED_OUT) // jobs)


def find_capacity(root: Path = Path("/")) -> Capacity:
    """Return the cores and the memory that this process may use now.

    Args:
        root: the folder that contains `proc` and `sys`.
    """
    cores, free_bytes = float(len(os.sched_getaffinity(0))), _available_bytes(root)
    for group in _control_groups(root):
        cores = min(cores, _cpu_quota(group))
        free_bytes = min(free_bytes, _memory_left(group))
    return Capacity(max(1, math.ceil(cores)), max(0, int(free_bytes)))


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control groups, from its own upwards.

    In a container, `/sys/fs/cgroup` may be the container's own group, while `/proc/self/cgroup` has
    the group's path on the host. The folders of this path then do not exist, and only the topmost
    folder has limits.
    """
    for line in _text(root / "proc/self/cgroup").splitlines():
        # cgroups(7): hierarchy, controllers of version 1, name
        _, controllers, name = line.split(":", 2)
        for controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
            group = top / name.strip("/")
            yield from (each for each in (group, *group.parents) if top in (each, *each.parents))


def _cpu_quota(group: Path) -> float:
    """Return the number of cores that a control group may keep busy."""
    words = _text(group / "cpu.max").split()
    if len(words) != 2:
        words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(word.isdigit() and int(word) for word in words):  # "max" and "-1" are no limits
        return math.inf
    return int(words[0]) / int(words[1])


def _memory_left(group: Path) -> float:
    limits = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limit = min(_number(group / name) or math.inf for name in limits)
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
    # Cached file pages count as used, but Linux drops them under pressure.
    stat = _text(group / "memory.stat")
    files = re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE)
    return limit - max(0, used - sum(map(int, files)))


def _available_bytes(root: Path) -> float:
    """Return the free memory of the machine, including reclaimable file cache."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    if match is None:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(match[1]) * 1024


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """Return the text of a file, "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---- variants that are compiled again

Tables = Mapping[str, LineTable]
"""Line tables by the digest of the PTX."""
Texts = Mapping[str, str]
"""PTX by the digest of the cubin, as the emulator expects it."""


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

    If a variant fails, takes too long, or compiles to different code, the result has its error
    instead of its tables.

    Args:
        kernels: the variants, each with its shipped PTX by digest.
        setup: the toolchain.
        store: provides the cached digests of files.
        code: for each variant, the digests of the shipped machine code by PTX digest; if given, the
            newly compiled machine code must be the same.
        jobs: number of variants compiled at the same time.
        timeout_s: time limit of one variant.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    requests = [
        messages.Recompile(variant=variant, ptx=ptx, env=declared_values(variant.env), code=shipped)
        for (variant, ptx), shipped in zip(kernels, code or [{}] * len(kernels), strict=True)
    ]
    found = _ask_again(requests, "finds the lines of", setup, store, jobs, timeout_s)
    return [each if isinstance(each, PallascError) else each.tables for each in found]


def without_ptx(artifact: Artifact) -> dict[str, tuple[str, ...]]:
    """Return the kernels of an artifact that have no PTX, by the digest of their cubin."""
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
    """Return the missing PTX of variants' artifacts, or the error if it cannot be found.

    Only variants whose artifacts lack PTX are compiled.

    Raises:
        ToolError: a compiling process cannot be started.
    """
    lacking = [(variant, without_ptx(artifact)) for variant, artifact in compiled]
    requests = [
        messages.Recompile(variant=variant, cubins=cubins, env=declared_values(variant.env))
        for variant, cubins in lacking
        if cubins
    ]
    doing = "finds the PTX of XLA's kernels in"
    replies = iter(_ask_again(requests, doing, setup, store, jobs, timeout_s))
    found = [next(replies) if cubins else Recompiled() for _, cubins in lacking]
    return [each if isinstance(each, PallascError) else each.ptx for each in found]


def _ask_again(
    requests: Sequence[messages.Recompile],
    doing: str,
    setup: Setup,
    store: Store,
    jobs: int,
    timeout_s: float | None,
) -> list[Recompiled | PallascError]:
    """Return the reply to each request, in order; a failed request has its error instead."""
    tasks = []
    for number, request in enumerate(requests):
        variant = request.variant
        group = (variant.target.arch, variant.base_dir, tuple(request.env.items()))
        tasks.append(Task(number, group, request, f"the process that {doing} {variant.id}"))
    if not tasks:
        return []
    replies: dict[int, Recompiled | PallascError] = {}
    context = messages.Introduction.of(setup, setup.context(store), store)
    with Pool(jobs, setup.environment, context, timeout_s=timeout_s, tick_s=None) as pool:
        for _, task, reply in pool.run(tasks):
            if task is not None and reply is not None:
                try:
                    replies[task.label] = reply.require(Recompiled)
                except PallascError as error:
                    replies[task.label] = error
    return [replies[number] for number in range(len(tasks))]
