"""The dask worker's side: a plugin that holds the toolchain and the sources of one build.

It writes the sources below its own folder, under their paths on the user's machine, and compiles in
pallasc's supervised processes. Each part of its toolchain must equal the build's; otherwise it
rejects each variant and names the differences.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin, get_worker
from msgspec.structs import replace

from pallasc.cache.manifests import Trust
from pallasc.cache.store import Store, default_root
from pallasc.compiler.cluster.exchange import REFUSED, SentSources, reply_bytes
from pallasc.compiler.toolchain.setup import compiler_variables, counted_values, prepare
from pallasc.compiler.workers.messages import Compile, Failed, Group, Introduction, Reply, Task
from pallasc.compiler.workers.pool import Pool, find_capacity
from pallasc.errors import PallascError, ToolError
from pallasc.specs.loading.lock import Component, differences

_IDLE_S = 60.0
"""A killed build leaves its plugin; it ends its processes and removes its files after this idle
time."""
_TICK_S = 0.25


def compile_variant(build: str, group: Group, request: Mapping[str, object]) -> bytes:
    """Compile a variant on a dask worker, as a dask task; return the bytes of the reply."""
    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        # The scheduler releases a task when its client cancels it or disconnects.
        task = worker.state.tasks.get(key)
        return task is not None and str(task.state) != "cancelled"

    plugin: BuildPlugin | None = worker.plugins.get(build)
    if plugin is None:
        return _refusal("the sources of the build have not arrived")
    return plugin.compile(group, request, is_wanted)


def _refusal(why: str) -> bytes:
    return reply_bytes(Failed(error=ToolError(why, kind=REFUSED)))


@dataclass
class BuildPlugin(WorkerPlugin):  # type: ignore[misc]
    """Compiles the variants of one build on a dask worker.

    Attributes:
        toolchain: components of the toolchain; a worker must have the same.
        salt: the salt of keys, if one is set.
        environment: variables that reach the compiler.
        ptxas: the assembler that the user named, None for the installed one.
        timeout_s: time limit of one variant.
        memory_bytes: memory limit of one compiling process: 0 for none, None for its share of the
            worker's machine.
        sources: the user's files.
    """

    toolchain: Mapping[str, Component]
    salt: Mapping[str, str]
    environment: Mapping[str, str]
    ptxas: Path | None
    timeout_s: float
    memory_bytes: int | None
    sources: SentSources

    def setup(self, worker: Any) -> None:
        """Prepare for the first task, which writes the files."""
        self._above, self._threads = worker.local_directory, worker.state.nthreads
        self._lock, self._users = threading.RLock(), 0
        self._opened, self._root, self._refused = ExitStack(), "", ""
        self._free: list[tuple[Group, Pool]] = []
        self._environment: Mapping[str, str] = {}
        self._introduction: Introduction | None = None
        self._idle_s, self._timer = _IDLE_S, threading.Timer(0, self._close)

    async def teardown(self, worker: Any) -> None:
        """End the compiling processes and remove the files."""
        self._idle_s = 0
        await asyncio.to_thread(self._close)

    def compile(
        self, group: Group, request: Mapping[str, object], is_wanted: Callable[[], bool]
    ) -> bytes:
        """Return the bytes of the reply for a variant."""
        with self._lock:
            self._users += 1
            self._timer.cancel()
        try:
            self._open()
            if self._refused:
                return _refusal(self._refused)
            reply = self._reply(self._task(group, request), is_wanted)
            return reply_bytes(replace(reply, task=None), self._root)
        finally:
            with self._lock:
                self._users -= 1
                self._timer.cancel()
                self._timer = threading.Timer(self._idle_s, self._close)
                self._timer.daemon = True
                self._timer.start()

    # ---- files and toolchain

    def _below(self, path: str) -> str:
        """Return the local path of a path on the user's machine."""
        return self._root + os.path.normpath("/" + path.lstrip("/")).rstrip("/") if path else ""

    def _open(self) -> None:
        """Write the files and compare the toolchain, on first use."""
        with self._lock:
            if self._root or self._refused:
                return
            try:
                made = tempfile.mkdtemp(prefix="pallasc-cluster-", dir=self._above)
                self._opened.callback(shutil.rmtree, made, ignore_errors=True)
                self._root = str(Path(made).resolve() / "root")
                for folder in self.sources.folders:
                    Path(self._below(folder)).mkdir(parents=True, exist_ok=True)
                for path, data in self.sources.files.items():
                    file = Path(self._below(path))
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(data)
                self._refused = "; ".join(self._differences())
            except PallascError as error:
                self._refused = f"{error.message} {error.hint or ''}".strip()
            except OSError as error:
                self._refused = f"the files of a build cannot be laid out in its folder: {error}"

    def _differences(self) -> list[str]:
        """Find the local toolchain; return its differences from the build's, in clauses.

        Raises:
            PallascError: the toolchain is incomplete.
        """
        counted = counted_values(os.environ)
        own = {name: value for name, value in os.environ.items() if name not in counted}
        setup = self._opened.enter_context(prepare(self.ptxas, base={**own, **self.environment}))
        self._environment = setup.environment
        warm = self._new_pool()
        warm.warm(1)  # imports JAX while the toolchain's files are read
        self._free.append((("", "", ()), warm))
        variables = {**compiler_variables(setup.environment), **self.salt}
        context = setup.context(Store(default_root(), trust=Trust()), variables)
        context.digests.save()
        # With "signing", processes return manifests, which the build verifies and publishes.
        introduction = Introduction.of(setup, context, Store(Path(self._root).parent / "store"))
        self._introduction = warm.context = replace(introduction, signing=True)
        return differences(self.toolchain, context.components())

    def _close(self) -> None:
        """End processes and remove files if nothing is being compiled."""
        with self._lock:
            if not self._users:
                self._opened.close()
                self._root, self._free = "", []

    # ---- compiling

    def _task(self, group: Group, request: Mapping[str, object]) -> Task:
        asked, (arch, folders, declared) = Compile.from_json(request), group
        base_dir = self._below(asked.variant.base_dir)
        here = os.pathsep.join(map(self._below, folders.split(os.pathsep)))
        asked = replace(asked, variant=replace(asked.variant, base_dir=base_dir))
        return Task(0, (arch, here, declared), asked)

    def _reply(self, task: Task, is_wanted: Callable[[], bool]) -> Reply:
        """Compile in a process that serves the task's group, if there is one.

        Raises:
            RuntimeError: the reply is no longer needed.
        """
        with self._lock:
            self._free.sort(key=lambda each: each[0] == task.group)
            pool = self._free.pop()[1] if self._free else self._new_pool()
        try:
            for kind, _, reply in pool.run([task]):
                if kind == "tick" and not is_wanted():
                    raise RuntimeError("the build no longer waits for this variant")
                if reply is not None:
                    result = reply
        except BaseException:
            pool.__exit__(None, None, None)
            raise
        with self._lock:
            self._free.append((task.group, pool))
        return result

    def _new_pool(self) -> Pool:
        path = [*map(self._below, self.sources.path), self._environment.get("PYTHONPATH", "")]
        memory = self.memory_bytes
        if memory is None:
            memory = find_capacity().memory_bytes(self._threads)
        pool = Pool(
            1,
            {**self._environment, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            self._introduction,
            timeout_s=self.timeout_s,
            memory_bytes=memory or None,
            tick_s=_TICK_S,
            lasting=True,
        )
        return self._opened.enter_context(pool)
