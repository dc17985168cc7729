"""The sides of `pallasc diff`: what an argument names, and how it is opened."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pallasc.cli.arguments.selection import is_key, whole_key
from pallasc.errors import NotCachedError, SpecError

if TYPE_CHECKING:
    from pallasc.analysis.compare.sides import Side
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report


class _Model(NamedTuple):
    name: str
    arch: str


class _Selectable(NamedTuple):
    """What an expression looks at of a variant."""

    id: str
    name: str
    params: tuple[tuple[str, str], ...]
    target: _Model


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens sides.

    Attributes:
        store: where specs are built into, and where the artifacts of locks and keys are.
        options: how specs are built.
        targets: models or architectures that replace those of specs, and choose in other sides.
        stack: ends what sides need: the files of a revision.
        quiet: whether only errors are told while specs are built.
        lines: whether source lines are found of what is built, where the store has none.
    """

    store: Store
    options: Options
    targets: tuple[str, ...]
    stack: ExitStack
    quiet: bool = False
    lines: bool = False

    def open(self, text: str, expression: str | None) -> tuple[Side, int]:
        """Return what an argument names, and the exit code of the build that it took.

        Raises:
            SpecError: it names nothing, or `expression` and the targets choose nothing of it.
            PallascError: as reading, or building, does.
        """
        from pallasc.analysis.compare.revisions import split_revision

        path, revision = split_revision(text)
        if revision:
            return self._at_revision(path, revision, expression)
        side = self._compiled(text)
        if side is None:
            return self._built([path], text, expression)
        return self._selected(side, expression), 0

    def _compiled(self, text: str) -> Side | None:
        """Return a side that is compiled already, None for specs."""
        from pallasc.analysis.compare.sides import bundle_side, lock_side, store_side
        from pallasc.cli.arguments.selection import open_store
        from pallasc.specs.bundle.format import is_bundle

        path = Path(text)
        if is_bundle(path):
            return bundle_side(path)
        if path.suffix == ".lock" and not path.is_dir():
            from pallasc.specs.loading.lock_file import read_lock

            lock = read_lock(path)
            if lock is None:
                raise SpecError(f"there is no {path}.")
            return lock_side(lock, text, self.store)
        if path.is_dir() and _is_store(path):
            return store_side(open_store(path), text)
        return self._of_key(text) if is_key(text) else None

    def _of_key(self, text: str) -> Side:
        from pallasc.analysis.compare.sides import side_of, subject_of
        from pallasc.cache.inventory import artifacts
        from pallasc.compiler.inputs.lookup import artifact_of_action

        key = whole_key(text, self.store)
        artifact = artifact_of_action(self.store, key)
        if artifact is None:
            raise NotCachedError(
                f"the store has no artifact {key}.",
                hint="pallasc inspect SPECS --json prints the action keys of variants.",
            )
        listed = artifacts(self.store, key_prefix=key)
        about = next((each for item in listed for each in item.variants if each.name), None)
        name, params = (about.name, about.params.items()) if about else (key[:12], ())
        return side_of(text, [subject_of(artifact, name, params, action_key=key)])

    def _selected(self, side: Side, expression: str | None) -> Side:
        if expression is None and not self.targets:
            return side
        from pallasc.specs.loading.select import select

        views = [
            _Selectable(
                each.id,
                each.name,
                tuple(each.params.items()),
                _Model(each.target, str(each.artifact.target["arch"]) if each.artifact else ""),
            )
            for each in side.variants.values()
        ]
        if self.targets:
            views = [v for v in views if {*v.target} & {*self.targets}]
            if not views:
                raise SpecError(f"{side.name} has no variant for {', '.join(self.targets)}.")
        if expression is not None:
            views = select(views, expression)
        return replace(side, variants={view.id: side.variants[view.id] for view in views})

    def _at_revision(self, path: str, revision: str, expression: str | None) -> tuple[Side, int]:
        from pallasc.analysis.compare.revisions import checked_out, taken_from_elsewhere

        checked = self.stack.enter_context(checked_out([path], revision))
        name = f"{path}@{revision}"
        report = self._build(checked.paths, expression)
        variants = [result.variant for result in report.results]
        return _side_of(name, report, taken_from_elsewhere(variants, checked))

    def _built(self, paths: Sequence[str], name: str, expression: str | None) -> tuple[Side, int]:
        return _side_of(name, self._build(paths, expression), ())

    def _build(self, paths: Sequence[str], expression: str | None) -> Report:
        from pallasc.cli.render.live import store_progress
        from pallasc.cli.render.reading import Reading
        from pallasc.compiler.builds.build import build
        from pallasc.compiler.builds.collect import SpecReader
        from pallasc.specs.spec import Budget

        with store_progress(self.store, hits=False, quiet=self.quiet) as progress:
            reader = SpecReader(
                store=self.store,
                timeout_s=self.options.timeout_s,
                memory_bytes=self.options.memory_bytes,
                on_tick=Reading(progress, keep_going=False).tick,
            )
            selected = reader.select(paths, self.targets, expression).variants
            variants = [structs.replace(variant, budget=Budget()) for variant in selected]
            report = build(variants, store=self.store, options=self.options, on_event=progress)
            if self.lines:
                progress.mention("finding source lines")
                self._find_lines(report)
            return report

    def _find_lines(self, report: Report) -> None:
        """Find the source lines of what was built; where they cannot be had, the table says so."""
        from pallasc.analysis.lines.find import Compiled, find_source_lines
        from pallasc.analysis.lines.stored import read_source_lines
        from pallasc.compiler.toolchain.setup import prepare

        missing = [
            Compiled(result.variant, result.artifact, result.action_key)
            for result in report.results
            if result.artifact is not None
            and result.action_key is not None
            and read_source_lines(self.store, result.action_key) is None
        ]
        if missing:
            with prepare(self.options.ptxas) as setup:
                limit_s = self.options.timeout_s
                jobs = self.options.jobs or 1
                find_source_lines(missing, setup, self.store, jobs=jobs, timeout_s=limit_s)


def _is_store(path: Path) -> bool:
    """Tell whether a folder is a store: it has a folder of a version of the store's format."""
    from pallasc.cache.store import Store

    return Store(path).folder.is_dir()


def _side_of(name: str, report: Report, notes: Sequence[str]) -> tuple[Side, int]:
    """Return what a build gave."""
    from pallasc.analysis.compare.sides import built_side

    failed = report.failed
    lost = [f"{name}: {len(failed):,} of its variants cannot be built"] if failed else []
    code = report.exit_code if failed or report.interrupted else 0
    return built_side(name, report.results, [*notes, *report.notes, *lost]), code
