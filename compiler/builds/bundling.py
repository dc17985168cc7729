"""Make bundles from specs: build, add provenance, and write the files.

The provenance has the digests of the spec files, their commits, and the toolchain. It names a spec
file relative to its repository, or outside a repository, by the shortest unique end of its path.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests, file_holding
from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.inputs.lookup import place_of
from pallasc.compiler.inputs.sources import FILE, path_of
from pallasc.compiler.toolchain.modules import Place, is_installed
from pallasc.errors import CorruptError, SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.compress import DEFAULT_LEVEL
from pallasc.specs.bundle.manifest import MOST_CHANGED, Item, Provenance, entry_key
from pallasc.specs.canonical import canonical_json
from pallasc.specs.spec import Spec
from pallasc.version import installed_version

if TYPE_CHECKING:
    from pallasc.compiler.builds.collect import Selection

Source = Literal["compile", "store", "frozen"]
"""Source of artifacts; see `BundleOptions`."""

SplitBy = Literal["target", "arch"]

FindLines = Callable[[Sequence[VariantResult]], Sequence[bytes]]
"""Returns the record of source lines of each result (`specs/artifacts/source_lines.py`)."""


class BundleOptions(Struct, frozen=True):
    """Options for making bundles.

    Attributes:
        source: handling of variants that are not in the store. `compile` compiles them; `store`
            fails with exit code 3; `frozen` fails, too, and if there is a lock file all variants
            must match it. With `frozen`, the specs must have been read with `frozen`.
        lock: the lock file; `pallasc.lock` in the current folder by default.
        locked: whether there must be a lock file that all variants match.
        split_by: write one bundle per model or architecture, and append its name to the name of the
            output: `kernels-h100-sxm.pallasc`.
        keep_debug: keep debug sections of the cubins.
        keep_ptx: include the PTX, which launching does not need.
        level: compression level of zstd, 1 to 22.
        lines: returns the records of source lines to include for built variants; none by default.
        build: options of the build; `source` and `locked` override its `frozen` and `locked`.
    """

    source: Source = "compile"
    lock: str | os.PathLike[str] | None = None
    locked: bool = False
    split_by: SplitBy | None = None
    keep_debug: bool = False
    keep_ptx: bool = False
    level: int = DEFAULT_LEVEL
    lines: FindLines | None = None
    build: Options = DEFAULTS


class WrittenBundle(Struct, frozen=True):
    """A bundle that was written.

    Attributes:
        path: path of the file.
        target: its model or architecture, if the bundles are split.
        variants: ids of its variants, in the order of the specs and bundles.
        size: size of the file in bytes.
        digest: digest of its contents, as `Bundle.digest`.
    """

    path: Path
    target: str | None
    variants: tuple[str, ...]
    size: int
    digest: str


class BundleResult(Struct, frozen=True):
    """The result of `make_bundle`.

    Attributes:
        report: report of the build; nothing is written unless its `exit_code` is 0.
        bundles: the written bundles, sorted by target.
        provenance: the provenance recorded in the bundles.
    """

    report: Report
    bundles: tuple[WrittenBundle, ...] = ()
    provenance: tuple[Provenance, ...] = ()


class Copied(NamedTuple):
    """Variants to copy from other bundles.

    Attributes:
        items: the variants; `keep_debug` and `keep_ptx` do not affect them.
        provenance: provenance of the bundles.
    """

    items: Sequence[Item] = ()
    provenance: Sequence[Provenance] = ()


NOTHING_COPIED = Copied()


def make_bundle(
    selection: Selection,
    output: str | os.PathLike[str],
    *,
    store: Store,
    options: BundleOptions | None = None,
    on_event: OnEvent = lambda event: None,
    copied: Copied = NOTHING_COPIED,
) -> BundleResult:
    """Write the selected variants into a bundle, either all of them or none.

    Args:
        selection: the variants, and their specs.
        output: the file; an existing one is replaced atomically.
        store: the store to read from and add to.
        options: options of the bundles and of their build.
        on_event: callback for the progress of variants, and for periodic ticks.
        copied: variants of other bundles to add.

    Returns:
        The bundles and the report of the build, which includes failures.

    Raises:
        SpecError: an argument is wrong, copies of a variant differ, or a file cannot be written.
        ToolError: a variant must be compiled, and the toolchain is incomplete.
        NotCachedError: a required lock file is missing, or it is for another toolchain.
        CorruptError: a variant has two artifacts, or a blob to copy is damaged.
    """
    from pallasc.compiler.builds.locked import load_locked

    options = options or BundleOptions()
    place = _output_file(output)
    frozen = options.source == "frozen" or (options.locked and options.source == "store")
    lock_file = Path(options.lock) if options.lock else None
    constraint = load_locked(lock_file, frozen=frozen, locked=options.locked)
    report = build(
        selection.variants,
        store=store,
        options=replace(options.build, frozen=options.source != "compile", locked=constraint),
        on_event=on_event,
    )
    if report.exit_code:
        return BundleResult(report)
    lines: Sequence[bytes | None] = [None] * len(report.results)
    if options.lines is not None:
        lines = options.lines(report.results)
    items = [_item(result, own) for result, own in zip(report.results, lines, strict=True)]
    items += copied.items
    read = files_read(report.results, store)
    written = [path for _, path, _ in _groups(items, place, options.split_by)]
    artifacts = [result.artifact for result in report.results if result.artifact is not None]
    own = origins(selection.specs, artifacts, read=read, ignore=written)
    provenance = (*own, *(origin for origin in copied.provenance if origin not in own))
    return BundleResult(report, _write(items, place, provenance, options), provenance)


def copy_variants(
    copied: Copied, output: str | os.PathLike[str], options: BundleOptions
) -> BundleResult:
    """Write only variants of other bundles; this needs neither a store nor a compiler.

    Raises:
        SpecError: copies of a variant differ, or a file cannot be written.
        CorruptError: a variant has two artifacts, or a blob is damaged.
    """
    bundles = _write(copied.items, _output_file(output), copied.provenance, options)
    return BundleResult(Report((), 0.0), bundles, tuple(copied.provenance))


def _output_file(output: str | os.PathLike[str]) -> Path:
    place = Path(output)
    if place.is_dir() or not place.name:
        raise SpecError(f"{place} is a folder.", hint="Name the file to write.")
    return place


_Group = tuple[str | None, Path, Sequence[Item]]


def _groups(items: Sequence[Item], place: Path, split_by: SplitBy | None) -> list[_Group]:
    if split_by is None:
        return [(None, place, items)]
    groups: dict[str, list[Item]] = {}
    for item in items:
        name = item.target if split_by == "target" else item.artifact.target.arch
        if "/" in name:  # only in a bundle that pallasc did not write
            raise CorruptError(f"{name!r} is not the name of a GPU model.")
        groups.setdefault(name, []).append(item)
    return [
        (name, place.with_name(f"{place.stem}-{name}{place.suffix}"), groups[name])
        for name in sorted(groups)
    ]


def _write(
    items: Sequence[Item], place: Path, provenance: Sequence[Provenance], options: BundleOptions
) -> tuple[WrittenBundle, ...]:
    """Write the bundles; all are packed before the first is written."""
    from pallasc.specs.bundle.writer import build_bundle

    groups = _groups(items, place, options.split_by)
    packed = [
        build_bundle(
            own,
            keep_debug=options.keep_debug,
            keep_ptx=options.keep_ptx,
            level=options.level,
            provenance=provenance,
        )
        for _, _, own in groups
    ]
    return tuple(
        write_bundle(path, data, _ids(own), target)
        for (target, path, own), data in zip(groups, packed, strict=True)
    )


def _ids(items: Sequence[Item]) -> list[str]:
    """Return the id of each variant once; copies may have their parameters in another order."""
    return list({entry_key(i.name, i.target, i.params): i.id for i in items}.values())


def write_bundle(
    path: Path, data: bytes, variants: Sequence[str], target: str | None = None
) -> WrittenBundle:
    """Write the bytes of a bundle with these variants; an existing file is replaced atomically."""
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.user_files import replace_file

    replace_file(path, data)
    with open_bundle(data) as bundle:
        return WrittenBundle(path, target, tuple(variants), len(data), bundle.digest)


def _item(result: VariantResult, lines: bytes | None) -> Item:
    own, artifact = result.variant, result.artifact
    if artifact is None:
        raise ValueError(f"{own.id} was not compiled")
    params = dict(own.params)
    return Item(own.name, params, artifact, vmap=own.vmap, lines=lines, tuning=own.tuning)


# ---- provenance

_OWN = "module:pallasc."


class FilesRead(NamedTuple):
    """Files that compilations read.

    Attributes:
        files: resolved paths of the files, by the path of the spec file whose variants read them.
        unknown: spec files with a variant that has no manifest, so that its files are unknown.
    """

    files: Mapping[Path, set[Path]]
    unknown: frozenset[Path] = frozenset()


NOTHING_READ = FilesRead({})


def files_read(results: Iterable[VariantResult], store: Store) -> FilesRead:
    """Return the files that were read to compile results, now or earlier."""
    files: dict[Path, set[Path]] = {}
    unknown = set()
    seen: set[tuple[str, Path]] = set()
    for result in results:
        variant = result.variant
        spec = Path(variant.location.file).resolve()
        manifest = store.get_manifest(result.manifest_key) if result.manifest_key else None
        if manifest is None:
            unknown.add(spec)
        elif (manifest.read, spec) not in seen:
            seen.add((manifest.read, spec))
            read = paths_read(manifest, place_of(variant), variant.base_dir)
            files.setdefault(spec, set()).update(read)
    return FilesRead(files, frozenset(unknown))


def paths_read(manifest: Manifest, place: Place, base_dir: str) -> Iterator[Path]:
    """Yield the user's files that are recorded as read in a manifest.

    Args:
        manifest: the manifest of a variant, or of a Python spec file.
        place: folders in which modules were searched for.
        base_dir: the folder of the spec.
    """
    for label in manifest.files:
        path = None if label.startswith(_OWN) else place.locate(label)
        if path is not None and not is_installed(str(path)):
            yield Path(file_holding(str(path))).resolve()
    for label, held in manifest.opened.items():
        if label.startswith(FILE) and held is not None:
            path = path_of(label, base_dir)
            if path.is_file() and not is_installed(str(path)):
                yield path.resolve()


def files_named(specs: Iterable[Spec]) -> set[Path]:
    """Return the spec files, and the entry points, data files and tables that they name."""
    files = set()
    for spec in specs:
        files.add(Path(spec.location.file).resolve())
        entry = spec.entry.partition(":")[0]
        own = [*spec.files, *([entry] if entry.endswith(".py") else [])]
        own += [spec.table] if spec.table else []
        own += [spec.tune.table] if spec.tune is not None else []
        files.update((Path(spec.base_dir) / name).resolve() for name in own)
    return files


DeclaredFiles = dict[Path, list[Spec]]


def origins(
    specs: Sequence[Spec],
    artifacts: Iterable[Artifact],
    *,
    read: FilesRead = NOTHING_READ,
    ignore: Sequence[Path] = (),
) -> tuple[Provenance, ...]:
    """Return the provenance of a bundle: a record for each repository and toolchain.

    Args:
        specs: all declared specs.
        artifacts: the artifacts, for the toolchain.
        read: the files that compiling read.
        ignore: output files, whose changes do not make a tree dirty.
    """
    versions = {canonical_json(artifact.versions): artifact.versions for artifact in artifacts}
    outputs = [path.resolve() for path in ignore]
    return tuple(
        _origin(repository, files, toolchain, read, outputs)
        for repository, files in _by_repository(specs)
        for _, toolchain in sorted(versions.items(), key=lambda item: item[0])
    )


def _by_repository(specs: Sequence[Spec]) -> Iterable[tuple[Repository | None, DeclaredFiles]]:
    declared: DeclaredFiles = {}
    for spec in specs:
        declared.setdefault(Path(spec.location.file).resolve(), []).append(spec)
    repositories = {folder: find_repository(folder) for folder in {f.parent for f in declared}}
    groups: dict[Path | None, tuple[Repository | None, DeclaredFiles]] = {}
    for file, of_file in declared.items():
        found = repositories[file.parent]
        if found is not None and not found.listed(
            [file], "--cached", "--others", "--exclude-standard"
        ):
            found = None
        root = found.root if found else None
        groups.setdefault(root, (found, {}))[1][file] = of_file
    return groups.values()


def _origin(
    repository: Repository | None,
    files: DeclaredFiles,
    toolchain: Mapping[str, str],
    read: FilesRead,
    ignore: Sequence[Path],
) -> Provenance:
    changed: tuple[str, ...] | None = None
    if repository is not None:
        sources = files_named(spec for specs in files.values() for spec in specs)
        sources = sources.union(*(read.files.get(file, ()) for file in files))
        changed = repository.differences(sources, ignore=ignore)
    if not changed and not read.unknown.isdisjoint(files):
        changed = None  # a file that was read may not be in the commit
    specs = {}
    for file in files:
        name = str(file.relative_to(repository.root)) if repository else _short_name(file, files)
        specs[name] = FileDigests().digest(file)
    return Provenance(
        builder=f"pallasc {installed_version()}",
        toolchain=toolchain,
        specs=specs,
        commit=repository.commit if repository else None,
        dirty=None if changed is None else bool(changed),
        changed=(changed or ())[:MOST_CHANGED],
    )


def _short_name(file: Path, files: Iterable[Path]) -> str:
    """Return the shortest end of a path that no other file has."""
    others = [other.parts for other in files if other != file]
    length = 1
    while any(other[-length:] == file.parts[-length:] for other in others):
        length += 1
    return "/".join(file.parts[-length:])


_TIMEOUT_S = 60
# `core.fsmonitor` is a command in the repository's configuration that git would run.
_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--literal-pathspecs")


class Repository(Struct, frozen=True):
    """A working tree of git.

    Attributes:
        root: its folder, without symbolic links.
        commit: commit that is checked out.
    """

    root: Path
    commit: str

    def differences(
        self, files: Collection[Path], *, ignore: Collection[Path] = ()
    ) -> tuple[str, ...] | None:
        """Return the files that differ from the commit, None if git does not report them.

        These are all tracked files that were changed, and any of `files` that are not in the
        commit, even if git ignores them. Other untracked files do not count.

        Args:
            files: inputs of a build; one outside the working tree counts as different.
            ignore: files to ignore, such as a bundle that is about to be replaced.
        """
        changed = self._changed()
        if changed is None:
            return None
        names = {str(file.relative_to(self.root)) for file in changed - set(ignore)}
        for file in set(files) - set(ignore) - self.listed(files, "--cached"):
            names.update(self._untracked_names(file))
        return tuple(sorted(names))

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a branch, tag or other revision names, None if there is none."""
        name = f"{revision}^{{commit}}"
        answer = _git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return None if answer is None else answer.decode().strip()

    def write_commit(self, commit: str, folder: Path) -> bool:
        """Write all files of a commit into a folder; return True if git succeeded.

        Neither the working tree nor the repository's index changes, and no filters run.
        """
        folder.mkdir(parents=True)
        index = folder.with_name(f"{folder.name}.index")
        try:
            return all(
                _git(self.root, *command, index=index) is not None
                for command in (
                    ("read-tree", commit),
                    ("checkout-index", "--all", "--force", f"--prefix={folder}/"),
                )
            )
        finally:
            index.unlink(missing_ok=True)

    def _changed(self) -> set[Path] | None:
        """Return the changed files that `git diff` reports, None if it fails."""
        options = ("--name-only", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
        answer = _git(self.root, "diff", *options, "-z", "HEAD", "--")
        return None if answer is None else {self.root / name for name in _split(answer)}

    def _untracked_names(self, file: Path) -> tuple[str, ...]:
        """Return the name of an untracked file, or in a submodule, the file's differences there."""
        if not file.is_relative_to(self.root):
            return (f"{file.name} (outside of the repository)",)
        inner = find_repository(file.parent)
        if inner is None or inner.root == self.root or not self.listed([inner.root], "--cached"):
            return (str(file.relative_to(self.root)),)
        folder = inner.root.relative_to(self.root)
        return tuple(f"{folder}/{name}" for name in inner.differences([file]) or ())

    def listed(self, files: Collection[Path], *options: str) -> set[Path]:
        """Return the files that `git ls-files` lists with these options."""
        own = [file for file in files if file.is_relative_to(self.root)]
        inside = sorted({str(file.relative_to(self.root)) for file in own})
        if not inside:
            return set()
        answer = _git(self.root, "ls-files", "-z", *options, "--", *inside)
        return {self.root / name for name in _split(answer or b"")}


def find_repository(folder: Path) -> Repository | None:
    """Return the working tree that contains a folder.

    None if there is none or it has no commit, if git is not installed, or if git refuses to read
    the repository, as it does with one of another user (`safe.directory`).
    """
    answer = _git(folder, "rev-parse", "--show-toplevel", "HEAD")
    if answer is None:
        return None
    root, _, commit = os.fsdecode(answer).rstrip("\n").rpartition("\n")
    return Repository(Path(os.path.realpath(root)), commit)


def _git(folder: Path, *arguments: str, index: Path | None = None) -> bytes | None:
    """Return the output of git, None if it fails or is not installed."""
    options = _without_filters(folder)
    return None if options is None else _run(folder, *options, *arguments, index=index)


def _without_filters(folder: Path) -> list[str] | None:
    """Return options that disable all filters of the repository, None if one cannot be disabled.

    A filter is an arbitrary command in `.git/config` that git runs to compare files. Without it,
    filtered files, such as Git LFS's, may be reported as changed.
    """
    pattern = r"^filter\..*\.(clean|smudge|process|required)$"
    keys = _split(_run(folder, "config", "--name-only", "-z", "--get-regexp", pattern) or b"")
    if any("=" in key for key in keys):
        return None  # git splits `-c key=value` at the first "="
    values = {key: "false" if key.endswith(".required") else "" for key in sorted(set(keys))}
    return [part for key, value in values.items() for part in ("-c", f"{key}={value}")]


def _run(folder: Path, *arguments: str, index: Path | None = None) -> bytes | None:
    # If a build runs in a git hook, variables such as GIT_DIR name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *_OPTIONS, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else answer.stdout


def _split(answer: bytes) -> list[str]:
    return [os.fsdecode(name) for name in answer.split(b"\0") if name]
