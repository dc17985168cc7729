"""Finds the store, variants, artifacts, and input files that a command's arguments name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from msgspec import Struct

from pallasc.cli.arguments import options
from pallasc.cli.arguments.options import Selection, file_option, read_by, together
from pallasc.cli.output.text import count, echo
from pallasc.errors import Location, NotCachedError, SpecError

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.cli.output.progress import Progress, ResultLine
    from pallasc.compiler.builds.collect import Selection as Selected
    from pallasc.compiler.builds.collect import Shard, Share, SpecReader
    from pallasc.compiler.builds.options import Options
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.specs.artifacts.artifact import Artifact
    from pallasc.specs.bundle.bundle import Bundle
    from pallasc.specs.bundle.manifest import Entry
    from pallasc.specs.loading.lock import Lock
    from pallasc.specs.spec import Variant

DIGITS = 64
LEAST_DIGITS = 6
"""Minimum number of leading digits that identify an artifact, if they are unambiguous."""

_HEX = re.compile(rf"[0-9a-f]{{1,{DIGITS}}}")
_HINT = "pallasc inspect SPECS --json prints the action keys of variants."


def is_key(text: str) -> bool:
    """Return True if an argument is a key or its first digits, and not a file or folder."""
    return _HEX.fullmatch(text) is not None and not Path(text).exists()


def whole_key(text: str, store: Store) -> str:
    """Return the action key of the artifact whose action key or digest starts with `text`.

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
    keys = keys or _keys_of_digest(text, store)
    if not keys:
        raise NotCachedError(
            f"{text} is not a file, and the store has no artifact whose action key or digest "
            "begins with it.",
            hint=_HINT,
        )
    if len(keys) > 1:
        raise SpecError(
            f"{len(keys):,} artifacts begin with {text}, such as those under {keys[0]} and "
            f"{keys[1]}.",
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
        if missing := next((path for path in (*bundles, Path(other)) if not path.exists()), None):
            raise SpecError(f"{missing}: there is no such file.")
        raise SpecError(
            f"{bundles[0]} is a bundle and {other} is not: one command takes either bundles or "
            "specs.",
            hint="Use a separate command for each.",
        )
    return bundles


class Bundled(NamedTuple):
    """A variant of a bundle, as an entry and as a hit."""

    bundle: Bundle
    entry: Entry
    result: VariantResult


def read_bundled(files: Sequence[Path], selection: Selection) -> list[Bundled]:
    """Return the selected variants of bundles.

    The bundles stay open, because kernels are read from them when they are loaded.

    Raises:
        SpecError: a file cannot be read, or nothing in it is selected.
        CorruptError: a bundle is damaged, or lacks a signature that this machine requires.
        ToolError: a signature is required, and the cryptography package is missing.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import read_policy

    policy = read_policy()
    found = []
    bundles = [open_bundle(file) for file in files]
    for bundle in bundles:
        bundle.check_policy(policy)
    for file, bundle, entries in zip(
        files, bundles, selected_in_any(bundles, selection), strict=True
    ):
        for entry in entries:
            place = Location(str(file))
            result = _hit(entry.name, dict(entry.params), bundle.artifact(entry), place)
            found.append(Bundled(bundle, entry, result))
    return found


def _hit(
    name: str,
    params: Mapping[str, Any],
    artifact: Artifact,
    place: Location,
    action_key: str | None = None,
) -> VariantResult:
    """Return a variant of a bundle or store; it has no function and no reference."""
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.spec import Budget, Variant

    variant = Variant(
        name=name,
        params=tuple(params.items()),
        target=artifact.target,
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
    return VariantResult(variant, "hit", action_key=action_key, artifact=artifact)


def stored(text: str, store: Store) -> VariantResult:
    """Return a stored artifact as a hit; `text` is its action key or digest, or the first digits.

    Raises:
        SpecError: `text` is not a key, or has too few digits.
        NotCachedError: the store has no such artifact.
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
        raise NotCachedError(f"the store has no artifact {key}.", hint=_HINT)
    listed = artifacts(store, key_prefix=key)
    about = next((about for each in listed for about in each.variants if about.name), None)
    name, params = (about.name, about.params) if about else (key, {})
    return _hit(name, params, artifact, Location(key), key)


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
    views = [_selectable(entry) for entry in bundle.entries()]
    return [view.entry for view in select_views(views, selection, bundle.name)]


def selected_in_any(bundles: Sequence[Bundle], selection: Selection) -> list[list[Entry]]:
    """Return the selected entries of each bundle, sorted; a bundle without any is no error.

    Raises:
        SpecError: no bundle has a selected entry.
    """
    found: list[list[Entry]] = []
    errors = []
    for bundle in bundles:
        try:
            found.append(sorted(selected_entries(bundle, selection), key=_order))
        except SpecError as error:
            found.append([])
            errors.append(error)
    if errors and len(errors) == len(bundles):
        raise errors[0]
    return found


def _order(entry: Entry) -> tuple[object, ...]:
    """Return a sort key: parameters that are numbers sort by value, before other values."""
    params = [
        (name, 0, value, "") if isinstance(value, int | float) else (name, 1, 0, str(value))
        for name, value in entry.params
    ]
    return entry.name, entry.target, params


def _selectable(entry: Entry) -> Selectable:
    target = Target(entry.target, entry.arch)
    return Selectable(entry.id, entry.name, entry.params, target, entry)


def select_views(views: list[Selectable], selection: Selection, name: str) -> list[Selectable]:
    """Return the compiled variants that the command line selects, in their order.

    Args:
        views: all variants.
        selection: targets and expression.
        name: where the variants are from, for messages.

    Raises:
        SpecError: a target has no variant, or no variant matches.
    """
    present = sorted({text for view in views for text in view.target})
    for target in selection.targets:
        if target not in present:
            from pallasc.specs.spelling import suggestion

            raise SpecError(
                f"{name} has no variant for {target}.",
                hint=suggestion(target, present, otherwise="Targets"),
            )
    if selection.targets:
        views = [view for view in views if {*view.target} & {*selection.targets}]
    if selection.expression is None:
        return views
    from pallasc.specs.loading.select import select

    return select(views, selection.expression)


def open_store(root: Path | None, *, check_folders: bool = True, readable: bool = False) -> Store:
    """Return the store; its warnings go to stderr.

    Args:
        root: folder of the store; same default as `Store`.
        check_folders: reject a store in which one of its folders is a file or a link.
        readable: reject a store that exists but cannot be read.

    Raises:
        CorruptError: the store was rejected by `check_folders`.
        ToolError: the store was rejected by `readable`.
    """
    from pallasc.cache.store import Store

    store = Store(root, warn=lambda text: echo(f"warning: {text}", err=True))
    if check_folders:
        store.folders.check(readable=readable)
    return store


def read_existing_lock(path: Path) -> Lock:
    """Return a lock file.

    Raises:
        NotCachedError: the file does not exist.
        SpecError: the file is damaged.
    """
    from pallasc.specs.loading.lock import read_lock, update_command

    lock = read_lock(path)
    if lock is None:
        raise NotCachedError(f"there is no {path}.", hint=f"Make it with: {update_command(path)}")
    return lock


class Work(Struct, dict=True):
    """Specs that a command reads, and options for building their variants.

    Attributes:
        how: options for builds.
        store_root: folder of the store.
        specs: paths of the specs, or bundles or keys.
        selection: selects variants.
        quiet: print only problems.
        errors: errors of Python specs that could not be executed.
    """

    how: Options
    store_root: Path | None
    specs: tuple[str, ...] = ()
    selection: Selection = Selection()
    quiet: bool = False
    errors: list[SpecError] = []

    @cached_property
    def store(self) -> Store:
        """The store, opened when it is first needed."""
        return open_store(self.store_root)

    @contextmanager
    def progress(self, *, hits: bool = False, line: ResultLine | None = None) -> Iterator[Progress]:
        """Yield the progress of this command, which also prints the store's warnings.

        For arguments, see `Progress`.
        """
        from pallasc.cli.output.progress import stderr_progress

        with stderr_progress(hits=hits, quiet=self.quiet, line=line) as progress:
            self.store.warn_by(lambda text: progress.say(f"warning: {text}"))
            yield progress

    def reader(
        self,
        progress: Progress | None = None,
        *,
        keep_going: bool = False,
        frozen: bool = False,
        programs: bool = False,
    ) -> SpecReader:
        """Return a reader of specs.

        Args:
            progress: shows which Python spec is being executed, if given.
            keep_going: if a Python spec cannot be executed, add to `errors` and continue.
            frozen: raise an error if a Python spec would have to be executed.
            programs: read programs instead of kernels.
        """
        from pallasc.compiler.builds.collect import SpecReader

        reading = None
        if progress is not None:
            from pallasc.cli.output.progress import Reading

            reading = Reading(progress, self.errors if keep_going else None)
        return SpecReader(
            store=self.store,
            timeout_s=self.how.timeout_s,
            memory_bytes=self.how.memory_bytes,
            frozen=frozen,
            programs=programs,
            on_tick=reading.tick if reading else None,
            broken=reading.broken if reading else None,
        )

    def select(self, progress: Progress | None = None, **reading: bool) -> Selected:
        """Read the specs and return the selected variants; for arguments, see `reader`.

        Raises:
            PallascError: see `SpecReader.select`.
        """
        reader = self.reader(progress, **reading)
        return reader.select(self.specs, **self.selection._asdict())

    def select_share(
        self, progress: Progress, shard: Shard | None, **reading: bool
    ) -> tuple[Sequence[Variant], Share | None]:
        """Return the variants of this job's shard and print their number; without a shard, all.

        Args:
            progress: where to report.
            shard: the job's shard, None without `--shard`.
            reading: see `reader`.

        Raises:
            PallascError: see `select`.
        """
        variants = self.select(progress, **reading).variants
        if shard is None:
            return variants, None
        from pallasc.compiler.builds.collect import share_of

        share = share_of(shard, variants)
        own, every = f"{len(share.variants):,}", count(len(variants), "variant")
        progress.mention(f"shard {shard}: {own} of {every}")
        return share.variants, share

    def build(self, variants: Sequence[Variant] | None = None) -> Report:
        """Build the given variants, by default the selected ones, and return the report.

        Raises:
            PallascError: see `SpecReader.select` and `build`.
        """
        from pallasc.cli.output.build_text import summary
        from pallasc.compiler.builds.build import build

        with self.progress() as progress:
            if variants is None:
                variants = self.select(progress).variants
            report = build(variants, store=self.store, options=self.how, on_event=progress)
        if not self.quiet and len(report.hits) < len(report.results):
            progress.screen.write(f"{summary(report, progress.screen)}\n")
        return report

    @cached_property
    def bundled(self) -> Sequence[Bundled]:
        """The selected variants of bundles; none for specs and keys. Raises as `compiled`."""
        files = bundle_files(self.specs)
        return read_bundled(files, self.selection) if files else ()

    def compiled(self) -> Report | None:
        """Return the artifacts as hits if the arguments are bundles or keys; None for specs.

        Raises:
            SpecError: only some of the paths are bundles or keys, a bundle cannot be read, or a key
                has too few digits.
            NotCachedError: the store has no artifact for a key.
            click.UsageError: keys are combined with options that select variants.
        """
        from pallasc.compiler.builds.report import Report

        if bundle_files(self.specs):
            return Report(tuple(each.result for each in self.bundled), 0.0)
        if not any(map(is_key, self.specs)):
            return None
        given = {"-k": self.selection.expression, "--target": self.selection.targets}
        if name := next((name for name, value in given.items() if value), None):
            raise click.UsageError(
                f"{name} chooses variants of specs and bundles, and an action key is one variant "
                f"already: leave {name} out."
            )
        return Report(tuple(stored(spec, self.store) for spec in self.specs), 0.0)


def _shard(text: str) -> Shard:
    from pallasc.compiler.builds.collect import parse_shard

    return parse_shard(text)


shard_option = options.option(
    "--shard",
    "K/N",
    "Run shard K of N, e.g. 3/8. All shards need the same specs.",
    callback=read_by(_shard),
)


input_options = together(
    options.option(
        "--input",
        "NAME=FILE",
        "Read an input from a .npy file, or from a .npz file that contains it; repeatable.",
        parameter="inputs",
        multiple=True,
    ),
    file_option(
        "--inputs",
        "Read inputs by name from a .npz file; the other inputs are random.",
        parameter="archive",
    ),
)


def parse_inputs(inputs: Iterable[str], archive: Path | None) -> dict[str, Path]:
    """Return the file of each input.

    Args:
        inputs: `NAME=FILE` of each `--input`.
        archive: .npz file of `--inputs`.

    Raises:
        click.UsageError: a text is malformed, or an input is given twice.
        SpecError: the archive cannot be read.
    """
    files: dict[str, Path] = {}
    for text in inputs:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise click.UsageError(f"--input {text!r} is not NAME=FILE.")
        if name in files:
            raise click.UsageError(f"--input gives {name} twice.")
        files[name] = Path(file)
    if archive is None:
        return files
    from pallasc.compiler.arrays import names_in

    for name in names_in(archive):
        if name in files:
            raise click.UsageError(f"--input and --inputs {archive} both provide {name}.")
        files[name] = archive
    return files


_WORK = ("specs", "selection", "store_root", "quiet")
_HOW = ("jobs", "fail_on_warning", "executor", "keep_going", "explain")


def _work(*, remote: str | None = None, remote_write: bool | None = None, **given: Any) -> Work:
    from pallasc.compiler.builds.options import Options

    own = {name: given.pop(name) for name in _WORK if name in given}
    how = Options(
        ptxas=options.ptxas_setting(),
        require_store=options._store_is_required(),
        remote=options._remote_of_build(remote, remote_write),
        **given,
    )
    return Work(how, **own)


def _reading(
    *, timeout_s: float | None = None, memory_bytes: int | None = None, **own: Any
) -> Work:
    # Commands that only read use only the limits; importing `Options` would take longer.
    limits: Any = SimpleNamespace(timeout_s=timeout_s, memory_bytes=memory_bytes)
    return Work(limits, **own)


_LIMITS = ("timeout_s", "memory_bytes")
reading_options = options.together(
    options._limit_options("a Python spec", memory="all memory"),
    options.store_option,
    options.packed("work", _reading, (*_WORK, *_LIMITS)),
)
"""Options of a command that reads specs and compiles nothing; it receives them as `work`."""


def build_options(
    limits: Callable[[Any], Any] = options.supervision_options,
) -> Callable[[options.F], options.F]:
    """Return the options of a command that builds missing variants before its other work.

    The command receives one parameter, `work`. It contains these options, the specs, their
    selection, and the build options that other decorators add. Those decorators must be above this
    one.

    Args:
        limits: limit options; by default, the limits for compiling.
    """
    jobs = options.count_option(
        "-j --jobs",
        "Compile in at most N processes at once. Default: as many as cores and memory allow.",
    )
    building = options.packed("work", _work, (*_WORK, *_LIMITS, *_HOW, "remote", "remote_write"))
    return options.together(jobs, limits, options.store_option, options._remote_options, building)
