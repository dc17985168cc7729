"""Determine the provenance of a bundle: spec files with their commits, and the toolchain.

The digest of a spec file covers what it declares, not its bytes: comments, the order of kernels,
fields, values and targets, and the selection of variants make no difference. Its name is relative
to its repository; outside a repository, it is the shortest path that tells the files apart. An
unpacked sdist counts as the repository that it was made from, by its record, `pallasc-origin.json`
in the project's folder:

* `schema`: 1
* `commit`: commit that was checked out
* `dirty`: whether the sources differed from it, null if git could not report it
* `folder`: folder of the project, relative to the repository; empty if it is the same
* `files`: SHA-256 of each source of kernels, by its name relative to the project
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import file_holding
from pallasc.cache.store import Store
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.builds.repository import Differences, Repository, find_repository
from pallasc.compiler.inputs.reads import FILE, path_of
from pallasc.compiler.inputs.request import place_of
from pallasc.compiler.toolchain.modules import Place, is_installed
from pallasc.errors import Location, SpecError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.provenance import MOST_CHANGED, Provenance
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.spec import Spec
from pallasc.specs.wire import spec_to_json
from pallasc.version import installed_version

_OWN = "module:pallasc."


@dataclass(frozen=True, slots=True)
class FilesRead:
    """Files by the spec file whose variants read them.

    Attributes:
        files: resolved paths by the path of the spec file.
        unknown: spec files with a variant that has no manifest.
    """

    files: Mapping[Path, set[Path]] = field(default_factory=dict)
    unknown: frozenset[Path] = frozenset()

    def by(self, specs: Collection[Path]) -> set[Path]:
        """Return the files that variants of these spec files read."""
        return {file for spec in specs for file in self.files.get(spec, ())}

    def is_unknown(self, specs: Collection[Path]) -> bool:
        """Return True if variants of these spec files may have read other files."""
        return not self.unknown.isdisjoint(specs)


NOTHING_READ = FilesRead()


def files_read(results: Iterable[VariantResult], store: Store) -> FilesRead:
    """Return the files that were read to compile results, now or earlier."""
    files: dict[Path, set[Path]] = {}
    unknown = set()
    seen: set[tuple[str, str]] = set()
    for result in results:
        spec = Path(result.variant.location.file).resolve()
        manifest = store.get_manifest(result.manifest_key) if result.manifest_key else None
        if manifest is None:
            unknown.add(spec)
            continue
        place = (manifest.read, str(spec))
        if place not in seen:
            seen.add(place)
            variant = result.variant
            read = paths_read(manifest, place_of(variant), variant.base_dir)
            files.setdefault(spec, set()).update(read)
    return FilesRead(files, frozenset(unknown))


def paths_read(manifest: Manifest, place: Place, base_dir: str) -> Iterator[Path]:
    """Yield the user's files that a manifest says were read.

    Args:
        manifest: of a variant, or of a Python spec file.
        place: where modules were searched.
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


RECORD = "pallasc-origin.json"
_SCHEMA = 1
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True, slots=True)
class SdistRecord:
    """An unpacked sdist with a recorded commit.

    Attributes:
        root: folder of the project, without symbolic links.
        commit: commit that was checked out when the sdist was made.
        dirty: whether the sources differed from it.
        folder: folder of the project, relative to the repository.
        files: SHA-256 of each source, by its name relative to the project.
    """

    root: Path
    commit: str
    dirty: bool | None
    folder: PurePosixPath
    files: Mapping[str, str]

    def name_of(self, file: Path) -> str:
        """Return the name of a file, relative to the repository."""
        return (self.folder / file.relative_to(self.root).as_posix()).as_posix()

    def tracked(self, files: Collection[Path]) -> set[Path]:
        """Return the files that the record lists."""
        return {file for file in files if self._name(file) in self.files}

    def differences(self, files: Collection[Path], *, ignore: Collection[Path] = ()) -> Differences:
        """Return the differences from the sources that the sdist was made from.

        Args:
            files: inputs of a build; those that the record does not list differ.
            ignore: files to ignore.
        """
        changed = {self.root / name for name in self.files if not self._is_same(name)}
        changed |= set(files) - self.tracked(files)
        names = sorted(self._shown(file) for file in changed - set(ignore))
        return Differences(True if names else self.dirty, tuple(names))

    def _shown(self, file: Path) -> str:
        is_inside = file.is_relative_to(self.root)
        return self.name_of(file) if is_inside else f"{file.name} (outside of the sdist)"

    def _name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix() if file.is_relative_to(self.root) else ""

    def _is_same(self, name: str) -> bool:
        return _file_digest(self.root / name) == self.files[name]


def record_text(root: Path, files: Iterable[str]) -> bytes | None:
    """Return the record of an sdist, None if the commit is unknown.

    An sdist made from an unpacked sdist keeps its record.

    Args:
        root: the folder of the project.
        files: the sources of kernels, relative to it.

    Raises:
        SpecError: there is a record already, and it cannot be read.
    """
    root = root.resolve()
    names = sorted(files)
    sources = {root / name for name in names}
    repository = find_repository(root)
    if repository is None or not repository.tracked(sources):
        recorded = _read(root)
        return None if recorded is None else (root / RECORD).read_bytes()
    data = {
        "schema": _SCHEMA,
        "commit": repository.commit,
        "dirty": repository.differences(sources).dirty,
        "folder": "" if root == repository.root else repository.name_of(root),
        "files": {name: _file_digest(root / name) for name in names},
    }
    return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"


def find_recorded(file: Path) -> SdistRecord | None:
    """Return the unpacked sdist that a source belongs to, None if there is none.

    Raises:
        SpecError: a record cannot be read.
    """
    for folder in file.parents:
        recorded = _read(folder)
        if recorded is not None:
            return recorded if recorded.tracked([file]) else None
    return None


def _read(root: Path) -> SdistRecord | None:
    path = root / RECORD
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise SpecError(f"it cannot be read: {error}", location=Location(str(path))) from error
    try:
        return _parse(root, json.loads(text))
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            "this is not a record of an sdist's commit.",
            location=Location(str(path)),
            hint="Unpack the sdist again, or remove the file.",
        ) from error


def _parse(root: Path, data: Any) -> SdistRecord:
    folder = PurePosixPath(data["folder"])
    if data["schema"] != _SCHEMA or folder.is_absolute() or ".." in folder.parts:
        raise ValueError("schema or folder")
    if not _COMMIT.fullmatch(data["commit"]) or data["dirty"] not in (True, False, None):
        raise ValueError("commit")
    files = {str(name): str(digest) for name, digest in data["files"].items()}
    return SdistRecord(root, data["commit"], data["dirty"], folder, files)


def _file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, "" if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


_UNDECIDING = (
    "base_dir",
    "budget",
    "check",
    "location",
    "locations",
    "reference",
    "table",
    "tolerance",
    "vmap",
)
"""Fields of a spec that do not affect compilations."""


@dataclass(slots=True)
class _Group:
    """Spec files of one repository, or of none."""

    repository: Repository | SdistRecord | None
    files: dict[Path, list[Spec]] = field(default_factory=dict)


def origins(
    specs: Sequence[Spec],
    artifacts: Iterable[Artifact],
    *,
    read: FilesRead = NOTHING_READ,
    ignore: Sequence[Path] = (),
) -> tuple[Provenance, ...]:
    """Return the provenance of a bundle: one for each repository that specs lie in.

    Args:
        specs: all declared specs.
        artifacts: the artifacts, for the toolchain.
        read: the files that compiling read.
        ignore: output files, whose changes do not make a tree dirty.
    """
    toolchains = _toolchains(artifacts)
    outputs = [path.resolve() for path in ignore]
    return tuple(
        _origin(group, toolchain, read, outputs)
        for group in _groups(specs)
        for toolchain in toolchains
    )


def _toolchains(artifacts: Iterable[Artifact]) -> list[dict[str, str]]:
    """Return the versions of each toolchain; usually all records have the same one."""
    versions = {canonical_json(artifact.versions): artifact.versions for artifact in artifacts}
    return [versions[key] for key in sorted(versions)]


def _groups(specs: Sequence[Spec]) -> list[_Group]:
    files: dict[Path, list[Spec]] = {}
    for spec in specs:
        files.setdefault(Path(spec.location.file).resolve(), []).append(spec)
    repositories = {folder: find_repository(folder) for folder in {f.parent for f in files}}
    groups: dict[Path | None, _Group] = {}
    for file, declared in files.items():
        repository: Repository | SdistRecord | None = repositories[file.parent]
        if repository is None or not repository.tracked([file]):
            repository = find_recorded(file)
        root = repository.root if repository else None
        groups.setdefault(root, _Group(repository)).files[file] = declared
    return list(groups.values())


def _origin(
    group: _Group, toolchain: Mapping[str, str], read: FilesRead, ignore: Sequence[Path]
) -> Provenance:
    repository = group.repository
    names = _names(group)
    differences = Differences(None)
    if repository is not None:
        declared = (spec for specs in group.files.values() for spec in specs)
        sources = files_named(declared) | read.by(group.files)
        differences = repository.differences(sources, ignore=ignore)
    # If a variant's reads are unknown, so is whether all of them are in the commit.
    dirty = differences.dirty or (None if read.is_unknown(group.files) else differences.dirty)
    return Provenance(
        builder=f"pallasc {installed_version()}",
        toolchain=toolchain,
        specs={names[file]: _digest(specs) for file, specs in group.files.items()},
        commit=repository.commit if repository else None,
        dirty=dirty,
        changed=differences.names[:MOST_CHANGED],
    )


def _names(group: _Group) -> dict[Path, str]:
    """Return the name of each spec file."""
    if group.repository is not None:
        return {file: group.repository.name_of(file) for file in group.files}
    names = {}
    for file in group.files:
        others = {other.parts for other in group.files if other != file}
        length = 1
        while any(other[-length:] == file.parts[-length:] for other in others):
            length += 1
        names[file] = "/".join(file.parts[-length:])
    return names


def _digest(specs: Iterable[Spec]) -> str:
    """Return the digest of a file's specs, independent of their order."""
    return digest(b"\n".join(sorted(map(_declared, specs))))


def _declared(spec: Spec) -> bytes:
    """Return the fields of a spec that affect compilations, in a fixed order."""
    data = {name: value for name, value in spec_to_json(spec).items() if name not in _UNDECIDING}
    for name in ("env", "tune"):
        if not data[name]:
            del data[name]  # equal to bundles made before this field existed
    if spec.tune is not None:
        data["tune"] = {name: _sorted(values) for name, values in spec.tune.over.items()}
    data["matrix"] = {name: _sorted(values) for name, values in spec.matrix.items()}
    rows = _sorted(row.values for row in spec.rows)
    data = {**data, "rows": rows} if rows else {k: v for k, v in data.items() if k != "rows"}
    for name in ("include", "exclude", "targets", "files"):
        data[name] = _sorted(getattr(spec, name))
    return canonical_json(data)


def _sorted(values: Iterable[object]) -> list[object]:
    return sorted(values, key=canonical_json)
