"""A build that is repeated when one of its files changes.

Files are polled, since inotify misses writes of another machine to NFS, and files that an editor
replaces by renaming. To check a few dozen files takes a tenth of a millisecond.

Workers stay between builds, with JAX imported and XLA started, but no user module. A worker cannot
unload its imports, so it serves one build. In the background, another worker per architecture is
prepared for the next build. Forking a prepared worker would be faster, but the threads of XLA and
LLVM do not survive a fork.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import structs

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build, open_pool
from pallasc.compiler.builds.bundling import files_named, files_read, paths_read
from pallasc.compiler.builds.collect import OnTick, SpecReader
from pallasc.compiler.builds.options import Options, load_baseline
from pallasc.compiler.builds.report import OnEvent, Report
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.toolchain.setup import Setup, prepare
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.compiler.workers.messages import Introduction, Rehearse
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import PallascError, SpecError

_INTERVAL_S = 0.05
_GRAIN_NS = 20_000_000
"""Upper bound for the granularity of file times on Linux file systems."""
_SOURCES = (".py", ".yaml", ".yml", ".toml")

State = tuple[int, int, int, int] | tuple[str, ...] | None
"""For a file: inode, size, and times of modification and change in ns. For a folder: the names of
possible sources. None if the path does not exist."""

_UNKNOWN: State = ("",)
"""A state that no file or folder has."""


class WatchedFiles:
    """Files and folders, each with its state at the last check.

    Args:
        pause: function that sleeps for a number of seconds.
    """

    def __init__(self, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._pause = pause
        self._states: dict[Path, State] = {}

    def __len__(self) -> int:
        return sum(path.is_file() for path in self._states)

    def follow(self, paths: Iterable[Path], *, read_ns: int) -> None:
        """Watch more files and folders, which were read after the clock time `read_ns`.

        A file that was written after that time may have been read before it was written, so it
        counts as changed.
        """
        for path in paths:
            if path not in self._states:
                state = _state(path)
                times_ns = [field for field in (state or ())[2:] if isinstance(field, int)]
                is_new = max(times_ns, default=0) >= read_ns - _GRAIN_NS
                self._states[path] = _UNKNOWN if is_new else state

    def wait(self) -> list[Path]:
        """Wait for changes, and then until the changes stop; return the changed files."""
        while (now := self._look()) == self._states:
            self._pause(_INTERVAL_S)
        before = None
        while now != before:
            self._pause(_INTERVAL_S)
            before, now = now, self._look()
        changed = [path for path, state in now.items() if state != self._states[path]]
        self._states = now
        return changed

    def _look(self) -> dict[Path, State]:
        return {path: _state(path) for path in self._states}


def _state(path: Path) -> State:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            names = (name for name in os.listdir(path) if name.endswith(_SOURCES))
            return tuple(sorted(name for name in names if not name.startswith(".")))
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


_PROJECT = "pyproject.toml"
_MOST = 2000


def files_of_paths(paths: Sequence[str]) -> set[Path]:
    """Return the files to watch before specs are read: paths, their folders, pyproject.toml."""
    files = set()
    for path in map(Path, paths):
        found = path.resolve()
        folder = found if found.is_dir() else found.parent
        files |= {found, folder}
        nearest = (up / _PROJECT for up in (folder, *folder.parents))
        files.update([next(filter(Path.is_file, nearest), folder / _PROJECT)])
    return files


def python_files(folder: Path) -> set[Path]:
    """Return the Python files in a folder and below it, without environments and hidden folders."""
    files: set[Path] = set()
    for top, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names or len(files) >= _MOST:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        files.update(Path(top, name) for name in names if name.endswith(".py"))
    return files


class Watch(ExitStack):
    """Builds specs repeatedly with workers that stay; use it as a context manager.

    Only the first build uses the remote store, since nobody else needs edited versions.

    Args:
        paths: spec files and folders.
        options: options of the builds.
        targets: see `SpecReader.select`.
        expression: see `SpecReader.select`.
        baseline: see `load_baseline`; the file is read before each build.

    Attributes:
        files: the watched files.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: Options,
        targets: Sequence[str] = (),
        expression: str | None = None,
        *,
        baseline: Path | None = None,
    ) -> None:
        super().__init__()
        self.paths, self.options, self.files = paths, options, WatchedFiles()
        self._select = partial(
            SpecReader.select, paths=paths, targets=targets, expression=expression
        )
        self._baseline = baseline
        self._kept = self.enter_context(ExitStack())
        self._compiler: tuple[Setup, Pool] | None = None

    def build(
        self,
        store: Store,
        *,
        on_event: OnEvent,
        on_tick: OnTick | None = None,
        broken: Callable[[SpecError], None] | None = None,
    ) -> Report:
        """Build once; watch its files from now on, even if it fails.

        Args:
            store: the store.
            on_event: see `build`.
            on_tick: see `SpecReader`.
            broken: see `SpecReader`.

        Raises:
            PallascError: as for `SpecReader.select` and `build`.
        """
        began_ns = time.time_ns()
        self.files.follow(files_of_paths(self.paths), read_ns=began_ns)
        reader = SpecReader(
            store=store,
            timeout_s=self.options.timeout_s,
            memory_bytes=self.options.memory_bytes,
            on_tick=on_tick,
            broken=broken,
        )
        try:
            selection = self._select(reader)
            specs = selection.specs
            self.files.follow(files_named(specs), read_ns=began_ns)
            folders = {spec.base_dir for spec in specs}
            for manifest in filter(None, map(store.get_manifest, reader.remembered)):
                for folder in folders:
                    executed = paths_read(manifest, Place(folder, (folder,)), folder)
                    self.files.follow(executed, read_ns=began_ns)
            baseline = load_baseline(self._baseline, selection.variants)
            options = structs.replace(self.options, baseline=baseline)
            report = build(
                selection.variants,
                store=store,
                options=options,
                on_event=on_event,
                compiler=self._find_compiler(),
            )
        except PallascError:
            # Any Python file around the specs may be the reason why they cannot be read.
            places = (Path(path).resolve() for path in self.paths)
            for around in {place if place.is_dir() else place.parent for place in places}:
                self.files.follow(python_files(around), read_ns=began_ns)
            raise
        read = files_read(report.results, store)
        # If the files are unknown, as after a failure, all files around the spec count.
        near = (python_files(spec.parent) for spec in read.unknown)
        self.files.follow(set().union(*read.files.values(), *near), read_ns=began_ns)
        self.options = structs.replace(self.options, remote=None)
        return report

    def _find_compiler(self) -> tuple[Setup, Pool]:
        """Return the installed toolchain and its workers, replaced if the toolchain has changed.

        The number and the memory limit of workers are computed before the first build. Later, these
        workers themselves use some of the free memory.

        Raises:
            ToolError: the toolchain is incomplete.
        """
        ptxas = self.options.ptxas
        if self._compiler is None or self._compiler[0].toolchain != find_toolchain(ptxas):
            self._kept.close()
            self._compiler = None
            setup = self._kept.enter_context(prepare(ptxas))
            pool = self._kept.enter_context(open_pool(self.options, setup, os.cpu_count() or 1))
            self._compiler = setup, pool
        return self._compiler

    def get_ready(self, report: Report, store: Store) -> None:
        """Prepare workers for the next build while the user is not waiting.

        Each architecture gets one worker, but there are at most `pool.jobs`. Architectures of
        variants that were not hits come first, since the next build likely compiles for them.

        Raises:
            ToolError: the toolchain is incomplete, or a worker cannot be started.
        """
        if report.context is None:
            return
        setup, pool = self._find_compiler()
        pool.context = Introduction.of(setup, report.context, store)
        results = sorted(report.results, key=lambda result: result.status == "hit")
        targets = {r.variant.target.arch: r.variant.target for r in results}
        first = islice(targets.items(), pool.jobs)
        pool.keep_ready({arch: Rehearse(target=target) for arch, target in first})
