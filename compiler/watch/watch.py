"""One watch: builds of the same specs, each as soon as a file of theirs has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from pallasc.cache.store import Store
from pallasc.compiler.builds.baseline import load_baseline
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.collect import OnTick, SpecReader
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import OnEvent, Report
from pallasc.compiler.builds.warm_workers import WarmWorkers
from pallasc.compiler.watch.files_of_build import (
    files_of_paths,
    files_of_report,
    files_of_specs,
    python_files,
)
from pallasc.compiler.watch.watched_files import WatchedFiles
from pallasc.compiler.workers.pool import Pool
from pallasc.errors import PallascError, SpecError
from pallasc.specs.spec import Spec, Variant


@dataclass(slots=True)
class Watch:
    """Builds specs again and again, with workers that stay; use it as a context manager.

    Each build is an ordinary one, with a store that is opened for it. After the first, nothing is
    asked of a remote store and nothing is sent there: edits are nobody else's.

    Args:
        paths: spec files and folders.
        targets: see `SpecReader.select`.
        expression: see `SpecReader.select`.
        options: of the builds.
        baseline: see `load_baseline`, which reads it before each build.
        all_points: see `SpecReader.select`.
        files: what is watched.
    """

    paths: Sequence[str]
    options: Options
    targets: Sequence[str] = ()
    expression: str | None = None
    baseline: Path | None = None
    all_points: bool = False
    files: WatchedFiles = field(default_factory=WatchedFiles)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _warm: WarmWorkers = field(init=False)
    _reading: Pool | None = field(default=None, init=False)
    _executes: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._warm = self._stack.enter_context(WarmWorkers(self.options))

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def build(
        self,
        store: Store,
        *,
        on_event: OnEvent,
        on_tick: OnTick | None = None,
        broken: Callable[[SpecError], None] | None = None,
    ) -> Report:
        """Build once; whatever comes of it, its files are watched from now on.

        Args:
            store: the store.
            on_event: see `build`.
            on_tick: see `SpecReader`.
            broken: see `SpecReader`.

        Raises:
            PallascError: as of `SpecReader.select` and `build`.
        """
        began_ns = time.time_ns()
        self.files.follow(files_of_paths(self.paths), read_ns=began_ns)
        reader = self._reader(store, on_tick, broken)
        try:
            selection = reader.select(
                self.paths, self.targets, self.expression, all_points=self.all_points
            )
            self._executes = any(_is_python(spec) for spec in selection.specs)
            named = files_of_specs(selection.specs, reader.remembered, store)
            self.files.follow(named, read_ns=began_ns)
            baseline = load_baseline(self.baseline, selection.variants)
            report = build(
                selection.variants,
                store=store,
                options=replace(self.options, baseline=baseline),
                on_event=on_event,
                warm=self._warm,
            )
        except PallascError:
            self.files.follow(self._around(), read_ns=began_ns)
            raise
        self.files.follow(files_of_report(report, store), read_ns=began_ns)
        self.options = replace(self.options, remote=None)
        return report

    def get_ready(self, report: Report, store: Store) -> None:
        """Have workers get ready for the next build, while nobody waits.

        Raises:
            ToolError: the toolchain is incomplete, or a worker cannot be started.
        """
        variants = [r.variant for r in sorted(report.results, key=lambda r: r.status == "hit")]
        if report.context is not None:
            self._warm.keep_ready(variants, report.context, store)
        if self._reading is not None and self._executes:
            self._reading.warm(1)

    def wait(self) -> list[Path]:
        """Wait for a change; return the files that have changed."""
        return self.files.wait()

    def _reader(
        self, store: Store, on_tick: OnTick | None, broken: Callable[[SpecError], None] | None
    ) -> SpecReader:
        reader = SpecReader(
            store=store,
            timeout_s=self.options.timeout_s,
            memory_bytes=self.options.memory_bytes,
            on_tick=on_tick,
            broken=broken,
        )
        if self._reading is None:
            self._reading = self._stack.enter_context(reader.open_workers())
        return replace(reader, workers=self._reading)

    def _around(self) -> set[Path]:
        """Return the Python files around the specs: any of them may be why they cannot be read."""
        places = (Path(path).resolve() for path in self.paths)
        folders = {place if place.is_dir() else place.parent for place in places}
        return set().union(*map(python_files, folders))


def _is_python(spec: Spec | Variant) -> bool:
    return spec.location.file.endswith(".py")
