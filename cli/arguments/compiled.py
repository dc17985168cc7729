"""Compiled variants that arguments name: of bundles, of keys, and of the sides of a comparison."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import structs

from pallasc.errors import Location, NotCachedError, SpecError

if TYPE_CHECKING:
    from pallasc.analysis.sides import Side
    from pallasc.cache.store import Store
    from pallasc.checks.check import Candidate
    from pallasc.cli.arguments.options import Selection
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.spec import Variant

DIGITS = 64
LEAST_DIGITS = 6
"""Minimum number of leading digits that identify an artifact, if they are unambiguous."""

_HEX = re.compile(rf"[0-9a-f]{{1,{DIGITS}}}")
_HINT = "pallasc inspect SPECS --json prints the action keys of variants."


def is_key(text: str) -> bool:
    """Return True if an argument is a key or its first digits, and not a file or folder."""
    return _HEX.fullmatch(text) is not None and not Path(text).exists()


def refuse_keys(specs: Sequence[str], command: str) -> None:
    """Reject keys for a command that needs specs or bundles.

    Raises:
        SpecError: one of the specs is a key.
    """
    for spec in specs:
        if is_key(spec):
            raise SpecError(
                f"{spec}: there is no such file, and {command} takes specs or bundles, not action "
                "keys.",
                hint="Name the spec that it was compiled from, or a bundle that holds it. "
                "pallasc check takes keys.",
            )


def whole_key(text: str, store: Store) -> str:
    """Return the action key of the artifact whose action key or digest starts with `text`.

    A complete key is returned unchanged if the store has nothing under it.

    Raises:
        SpecError: there are too few digits, or several artifacts match.
        NotCachedError: no artifact matches.
    """
    if len(text) == DIGITS and store.get_artifact(text) is not None:
        return text
    if len(text) < LEAST_DIGITS:
        raise SpecError(
            f"{text} is neither a file nor a key: the first {LEAST_DIGITS} digits of an action key "
            f"are needed, but it has only {len(text)}.",
            hint=_HINT,
        )
    from pallasc.cache.inventory import artifacts

    keys = sorted(listed.key for listed in artifacts(store, key_prefix=text))
    what = "an action key"
    if not keys:
        keys, what = _keys_of_digest(text, store), "a digest"
    if not keys and len(text) == DIGITS:
        return text
    if not keys:
        raise NotCachedError(
            f"{text} is not a file, and the store has no artifact whose action key or digest "
            "begins with it.",
            hint=_HINT,
        )
    if len(keys) > 1:
        raise SpecError(
            f"{len(keys):,} artifacts have {what} that begins with {text}, such as those under "
            f"{keys[0]} and {keys[1]}.",
            hint="Give more digits.",
        )
    return keys[0]


def _keys_of_digest(text: str, store: Store) -> list[str]:
    """Return one action key for each artifact whose digest starts with `text`."""
    from pallasc.cache.inventory import artifacts
    from pallasc.specs.canonical import canonical_json, digest

    keys: dict[str, str] = {}  # equal artifacts may be stored under several keys
    for listed in artifacts(store):
        stored = store.get_artifact(listed.key)
        if stored is not None and (own := digest(canonical_json(stored.artifact))).startswith(text):
            keys.setdefault(own, listed.key)
    return sorted(keys.values())


def bundle_files(specs: Sequence[str]) -> list[Path]:
    """Return a command's paths if they are bundles; an empty list if they are specs.

    Raises:
        SpecError: only some of them are bundles.
    """
    from pallasc.specs.bundle.format import is_bundle

    bundles = [Path(spec) for spec in specs if is_bundle(Path(spec))]
    if bundles and len(bundles) < len(specs):
        other = next(spec for spec in specs if not is_bundle(Path(spec)))
        for path in (*bundles, Path(other)):
            if not path.exists():
                raise SpecError(f"{path}: there is no such file.")
        raise SpecError(
            f"{bundles[0]} is a bundle and {other} is not: one command takes either bundles or "
            "specs.",
            hint="Use a command for each.",
        )
    return bundles


class Compiled(NamedTuple):
    """A compiled variant.

    Attributes:
        variant: known facts about the variant, without function and reference.
        artifact: the artifact.
        action_key: action key of the artifact, None in a bundle.
    """

    variant: Variant
    artifact: Artifact
    action_key: str | None = None

    def candidate(self) -> Candidate:
        """Return this variant for a check without source."""
        from pallasc.checks.check import Candidate

        if self.action_key is not None:
            return Candidate(self.action_key, self.artifact, self.action_key)
        return Candidate(self.variant.id, self.artifact, origin=self.variant.location)


def read_bundled(files: Sequence[Path], selection: Selection) -> list[Compiled]:
    """Return the selected variants of bundles with their artifacts.

    The bundles stay open, because launched kernels are read from them on load.

    Raises:
        SpecError: a file cannot be read, or nothing in it is selected.
        CorruptError: a bundle is damaged, or lacks a signature that this machine requires.
        ToolError: a signature is required, and the cryptography package is missing.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import read_policy

    policy = read_policy()
    found = []
    for file in files:
        bundle = open_bundle(file)
        bundle.check_policy(policy)
        for entry in selected_entries(bundle, selection):
            artifact = bundle.artifact(entry)
            place = Location(str(file))
            found.append(_carried(entry.name, entry.params, artifact, place))
    return found


def _carried(
    name: str,
    params: Iterable[tuple[str, Any]],
    artifact: Artifact,
    place: Location,
    action_key: str | None = None,
) -> Compiled:
    """Return a compiled variant of a bundle or store; it has no function and no reference."""
    from pallasc.specs.gpus import target_of_record
    from pallasc.specs.spec import Budget, Variant

    variant = Variant(
        name=name,
        params=tuple(params),
        target=target_of_record(artifact.target),
        entry="",
        args={},
        static={},
        reference=None,
        tolerance=None,
        budget=Budget(),
        files=(),
        location=place,
        base_dir="",
    )
    return Compiled(variant, artifact, action_key)


def read_compiled(
    specs: Sequence[str], store: Store, selection: Selection
) -> list[Compiled] | None:
    """Return the compiled variants that a command's arguments name, None if they are specs.

    Args:
        specs: bundles, or action keys and digests of artifacts; their first digits are enough.
        store: store that contains the artifacts.
        selection: selects variants of bundles.

    Raises:
        SpecError: only some of the paths are bundles or keys, a bundle cannot be read, or a key has
            too few digits.
        NotCachedError: the store has nothing under a key.
        click.UsageError: keys are combined with options that select variants.
    """
    if bundles := bundle_files(specs):
        return read_bundled(bundles, selection)
    if not any(map(is_key, specs)):
        return None
    given = {"-k": selection.expression, "--target": selection.targets}
    if name := next((name for name, value in given.items() if value), None):
        raise click.UsageError(
            f"{name} chooses variants of specs and bundles, and an action key is one variant "
            f"already: leave {name} out."
        )
    return [stored(spec, store) for spec in specs]


def report_of(compiled: Iterable[Compiled]) -> Report:
    """Return a build report with compiled variants as hits."""
    from pallasc.compiler.builds.report import Report, VariantResult

    results = (VariantResult(v, "hit", action_key=k, artifact=a) for v, a, k in compiled)
    return Report(tuple(results), 0.0)


def stored(text: str, store: Store) -> Compiled:
    """Return the stored artifact for an action key or a digest, or its first digits.

    Raises:
        SpecError: it is not a key, or has too few digits.
        NotCachedError: the store has nothing under it.
    """
    from pallasc.cache.inventory import artifacts
    from pallasc.compiler.inputs.lookup import artifact_of_action

    if not is_key(text):
        raise SpecError(
            f"{text} is not an action key, but another argument is.",
            hint="Give specs and keys one at a time.",
        )
    key = whole_key(text, store)
    artifact = artifact_of_action(store, key)
    if artifact is None:
        raise NotCachedError(
            f"the store has no artifact {key}.",
            hint="pallasc inspect SPECS --json prints the action keys of variants.",
        )
    listed = artifacts(store, key_prefix=key)
    about = next((about for each in listed for about in each.variants if about.name), None)
    name, params = (about.name, tuple(about.params.items())) if about else (key, ())
    return _carried(name, params, artifact, Location(key), key)


class Target(NamedTuple):
    """A target, with the fields that expressions use."""

    name: str
    arch: str


class Selectable(NamedTuple):
    """A compiled variant, with the fields that expressions use."""

    id: str
    name: str
    params: Sequence[tuple[str, Any]]
    target: Target
    entry: Any = None


def selected_entries(bundle: Bundle, selection: Selection) -> list[Entry]:
    """Return the entries of a bundle that the command line selects, in key order.

    Raises:
        SpecError: a target has no entry, or no entry matches.
    """
    entries, targets = list(bundle.entries()), selection.targets
    present = sorted({name for entry in entries for name in (entry.target, entry.arch)})
    for target in targets:
        if target not in present:
            from pallasc.specs.spelling import suggestion

            raise SpecError(
                f"{bundle.name} has no variant for {target}.",
                hint=suggestion(target, present, otherwise="Targets"),
            )
    if targets:
        entries = [entry for entry in entries if {entry.target, entry.arch} & {*targets}]
    if selection.expression is None:
        return entries
    return select_entries(entries, selection.expression)


def select_entries(entries: Iterable[Entry], expression: str) -> list[Entry]:
    """Return the entries that match an expression (`specs/loading/select.py`), in their order.

    Raises:
        SpecError: the expression is invalid, or matches no entry.
    """
    from pallasc.specs.loading.select import select

    views = [
        Selectable(entry.id, entry.name, entry.params, Target(entry.target, entry.arch), entry)
        for entry in entries
    ]
    return [view.entry for view in select(views, expression)]


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens the sides of a comparison.

    Attributes:
        store: store for built specs, with the artifacts of locks and keys.
        options: build options.
        targets: models or architectures that replace the specs' targets, and select variants of
            other sides.
        stack: closes resources of sides, such as the files of a revision.
        quiet: print only errors while specs are built.
        lines: find the source lines of built variants that the store lacks.
    """

    store: Store
    options: Options
    targets: tuple[str, ...]
    stack: ExitStack
    quiet: bool = False
    lines: bool = False

    def open(self, text: str, expression: str | None) -> tuple[Side, int]:
        """Return the side that an argument names, and the exit code of its build.

        Raises:
            SpecError: the argument names nothing, or `expression` and the targets select nothing.
            PallascError: reading or building failed.
        """
        from pallasc.analysis import sides

        path, revision = sides.split_revision(text)
        if revision:
            checked = self.stack.enter_context(sides.checked_out([path], revision))
            report = self._build(checked.paths, expression)
            notes = sides.taken_from_elsewhere(
                [result.variant for result in report.results], checked
            )
            return _side_of(f"{path}@{revision}", report, notes)
        side = self._compiled(text)
        if side is None:
            return _side_of(text, self._build([path], expression), ())
        return self._selected(side, expression), 0

    def _compiled(self, text: str) -> Side | None:
        """Return an already compiled side, None for specs."""
        from pallasc.analysis import sides
        from pallasc.cache.store import Store
        from pallasc.cli.arguments.selection import open_store
        from pallasc.specs.bundle.format import is_bundle

        path = Path(text)
        if is_bundle(path):
            return sides.bundle_side(path)
        if path.suffix == ".lock" and not path.is_dir():
            from pallasc.specs.loading.lock_file import read_lock

            lock = read_lock(path)
            if lock is None:
                raise SpecError(f"there is no {path}.")
            return sides.lock_side(lock, text, self.store)
        if path.is_dir() and Store(path).folder.is_dir():
            return sides.store_side(open_store(path), text)
        if not is_key(text):
            return None
        variant, artifact, key = stored(text, self.store)
        name = str(key)[:12] if variant.name == key else variant.name
        return sides.side_of(
            text, [sides.subject_of(artifact, name, variant.params, action_key=key)]
        )

    def _selected(self, side: Side, expression: str | None) -> Side:
        if expression is None and not self.targets:
            return side
        from pallasc.specs.loading.select import select

        views = [
            Selectable(
                each.id,
                each.name,
                tuple(each.params.items()),
                Target(each.target, str(each.artifact.target["arch"]) if each.artifact else ""),
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

    def _build(self, paths: Sequence[str], expression: str | None) -> Report:
        from pallasc.cli.output.progress import Reading, store_progress
        from pallasc.compiler.builds.build import build
        from pallasc.specs.spec import Budget

        with store_progress(self.store, hits=False, quiet=self.quiet) as progress:
            reader = Reading(progress, keep_going=False).reader(self.store, self.options)
            selected = reader.select(paths, self.targets, expression).variants
            variants = [structs.replace(variant, budget=Budget()) for variant in selected]
            report = build(variants, store=self.store, options=self.options, on_event=progress)
            if self.lines:
                from pallasc.cli.output.source_text import found_lines

                # The comparison reads them from the store, and reports missing ones.
                found_lines(report.results, self.store, self.options, progress.mention)
            return report


def _side_of(name: str, report: Report, notes: Sequence[str]) -> tuple[Side, int]:
    """Return the side of a build, and the build's exit code."""
    from pallasc.analysis.sides import built_side

    failed = report.failed
    lost = [f"{name}: {len(failed):,} of its variants cannot be built"] if failed else []
    code = report.exit_code if failed or report.interrupted else 0
    return built_side(name, report.results, [*notes, *report.notes, *lost]), code
