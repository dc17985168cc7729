"""The dask worker's side: a plugin that holds the toolchain and the sources of one build.

The sources are all files below the folders of specs and entry points, and in the packages of entry
points, except hidden files, bytecode, virtual environments, and caches.

The plugin writes the sources below its own folder, under their paths on the user's machine, and
compiles in pallasc's supervised processes. Each part of its toolchain must equal the build's;
otherwise it rejects each variant and names the differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin, get_worker
from msgspec.structs import replace

from pallasc.cache.manifests import Trust
from pallasc.cache.stat_digest import file_holding
from pallasc.cache.store import Store, default_root
from pallasc.compiler.inputs.lookup import named_entries, place_of
from pallasc.compiler.toolchain.modules import is_installed, is_pythons, locate_module
from pallasc.compiler.toolchain.setup import counted_values, prepare
from pallasc.compiler.workers import messages
from pallasc.compiler.workers.messages import Compile, Failed, Group, Introduction, Reply, Task
from pallasc.compiler.workers.pool import Pool, find_capacity
from pallasc.errors import PallascError, ToolError
from pallasc.specs.loading.lock import Component, differences
from pallasc.specs.spec import Variant

_IDLE_S = 60.0
"""Idle time after which the plugin ends its processes and removes its files; the build may be dead.
"""
_TICK_S = 0.25


# ---- sources

MOST_FILES = 20_000
MOST_BYTES = 256 << 20
LARGEST_FILE_BYTES = 16 << 20
"""Larger files are sent only if a spec declares them under `files`."""

_LEFT_OUT = {"__pycache__", "node_modules"}
_SECRETS = (
    "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_GHA_CREDS_PATH", "NETRC", "PALLASC_STORE_KEY",
)  # fmt: skip
"""Variables that name files with credentials or keys; CI may put these next to the sources."""
_MARKS = ("pyvenv.cfg", "CACHEDIR.TAG", "v1/cas")
"""Files and folders that mark a virtual environment, a cache, or a store."""


@dataclass(slots=True)
class SentSources:
    """Files to send.

    Attributes:
        folders: folders that exist on the user's machine, even if none of their files is sent.
        files: contents by path.
        path: folders to search for modules.
    """

    folders: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    _bytes: int = 0

    def add(self, path: str) -> None:
        """Add a file.

        Raises:
            ToolError: there are too many files, or they are too large.
        """
        with contextlib.suppress(OSError):  # a compilation that reads it will fail on the worker
            self.files[path] = Path(path).read_bytes()
            self._bytes += len(self.files[path])
        if len(self.files) > MOST_FILES or self._bytes > MOST_BYTES:
            raise ToolError(
                f"there is too much to send to a cluster: more than {MOST_FILES} files or "
                f"{MOST_BYTES >> 20} MiB, the last one {path}.",
                hint="Give the specs a folder with only what their kernels need.",
            )

    def add_folder(self, folder: str, left_out: set[str]) -> None:
        """Add the files below a folder, except those in `left_out`."""
        if folder in self.folders:
            return
        self.folders.append(folder)
        for place, folders, names in os.walk(folder):
            is_marked = any(os.path.exists(os.path.join(place, mark)) for mark in _MARKS)
            if place != folder and (is_marked or os.path.realpath(place) in left_out):
                folders.clear()
                continue
            folders[:] = sorted(n for n in folders if n[0] != "." and n not in _LEFT_OUT)
            for path in (os.path.join(place, name) for name in sorted(names) if name[0] != "."):
                is_file = os.path.isfile(path) and os.path.realpath(path) not in left_out
                if is_file and os.path.getsize(path) <= LARGEST_FILE_BYTES:
                    self.add(path)


def sources_of(variants: Iterable[Variant], *, without: Sequence[str] = ()) -> SentSources:
    """Return the files that variants may need.

    Args:
        variants: the variants.
        without: folders that are left out, such as the store. Files that the environment names as
            credentials or keys are left out too, unless a spec declares them.

    Raises:
        ToolError: there are too many files, or they are too large.
    """
    result = SentSources()
    named = filter(None, map(os.environ.get, _SECRETS))
    left_out = {os.path.realpath(each) for each in (*without, *named)}
    for variant in {(v.base_dir, v.files, *named_entries(v)): v for v in variants}.values():
        folders = place_of(variant).folders
        for folder in dict.fromkeys([variant.base_dir, *folders]):
            result.add_folder(folder, left_out)
        for name in variant.files:
            result.add(os.path.join(variant.base_dir, name))
        for entry in named_entries(variant):
            if not entry.is_file and not entry.source.startswith("pallasc."):
                _add_package(result, entry.source, folders, left_out)
    return result


def _add_package(
    result: SentSources, name: str, folders: Sequence[str], left_out: set[str]
) -> None:
    """Add the package of an entry point, unless it is installed or in a folder that is sent."""
    found = locate_module(name, folders)
    if found is None or is_installed(str(found)) or is_pythons(str(found)):
        return
    is_package = found.name == "__init__.py"
    outer = str(found.parents[name.count(".") + is_package])
    if outer in folders:
        return
    if outer not in result.path:
        result.path.append(outer)
    if found.is_file() and (is_package or "." in name):
        result.add_folder(os.path.join(outer, name.partition(".")[0]), left_out)
    else:
        result.add(file_holding(str(found)))


# ---- compiling


def reply_bytes(reply: Reply, root: str = "") -> bytes:
    """Return a reply as bytes to send, without the folder `root` in its paths."""
    return reply.line().replace(json.dumps(root)[1:-1].encode(), b"")


def compile_variant(build: str, group: Group, request: Compile) -> bytes:
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
    return reply_bytes(Failed(error=ToolError(why, kind=messages.REFUSED)))


@dataclass
class BuildPlugin(WorkerPlugin):  # type: ignore[misc]
    """Compiles the variants of one build on a dask worker.

    Attributes:
        toolchain: components of the toolchain; a worker must have the same.
        variables: the variables in keys.
        environment: variables that reach the compiler.
        ptxas: the assembler that the user named, None for the installed one.
        timeout_s: time limit of one variant.
        memory_bytes: memory limit of one compiling process: 0 for none, None for its share of the
            worker's machine.
        sources: the user's files.
    """

    toolchain: Mapping[str, Component]
    variables: Mapping[str, str]
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

    def compile(self, group: Group, asked: Compile, is_wanted: Callable[[], bool]) -> bytes:
        """Return the bytes of the reply for a variant."""
        with self._lock:
            self._users += 1
            self._timer.cancel()
        try:
            self._open()
            if self._refused:
                return _refusal(self._refused)
            arch, folders, declared = group
            base_dir = self._below(asked.variant.base_dir)
            here = os.pathsep.join(map(self._below, folders.split(os.pathsep)))
            asked = replace(asked, variant=replace(asked.variant, base_dir=base_dir))
            reply = self._reply(Task(0, (arch, here, declared), asked), is_wanted)
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
            except (PallascError, OSError) as error:
                self._refused = " ".join(f"the build cannot be prepared: {error}".split())

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
        context = setup.context(Store(default_root(), trust=Trust()), self.variables)
        context.digests.save()
        store = Store(Path(self._root).parent / "store", trust=Trust())
        self._introduction = warm.context = Introduction.of(setup, context, store)
        return differences(self.toolchain, context.components())

    def _close(self) -> None:
        """End processes and remove files if nothing is being compiled."""
        with self._lock:
            if not self._users:
                self._opened.close()
                self._root, self._free = "", []

    # ---- compiling

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
            pool.__exit__()
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
            memory_bytes=memory,
            tick_s=_TICK_S,
            lasting=True,
        )
        return self._opened.enter_context(pool)
