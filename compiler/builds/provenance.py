"""Say from what a bundle is made: spec files, the commits they are of, the toolchain.

The digest of a spec file is over what it declares, not over its bytes: comments make no difference,
nor does the order of kernels, fields, values and targets, nor which variants go into the bundle.
Its name is relative to its repository; outside of one it has as few folders as tell it from others.
An unpacked sdist stands for the repository that it was made from (`recorded_commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallasc import __version__
from pallasc.compiler.builds.files_read import NOTHING_READ, FilesRead
from pallasc.compiler.builds.recorded_commit import SdistRecord, find_recorded
from pallasc.compiler.builds.repository import Differences, Repository, find_repository
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.provenance import MOST_CHANGED, Provenance
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.spec import Spec
from pallasc.specs.wire import spec_to_json

_UNDECIDING = ("base_dir", "budget", "location", "locations", "reference", "table", "tolerance")
"""Fields of a spec that decide no compilation."""


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
    apart: Sequence[Path] = (),
) -> tuple[Provenance, ...]:
    """Return the provenance of a bundle: one for each repository that specs lie in.

    Args:
        specs: all that was declared.
        artifacts: what was compiled, for the toolchain.
        read: the files that compiling read.
        apart: files that are about to be written; that they differ makes no tree dirty.
    """
    toolchains = _toolchains(artifacts)
    outputs = [path.resolve() for path in apart]
    return tuple(
        _origin(group, toolchain, read, outputs)
        for group in _groups(specs)
        for toolchain in toolchains
    )


def _toolchains(artifacts: Iterable[Artifact]) -> list[dict[str, str]]:
    """Return the versions of each toolchain; it is one, unless a store's records disagree."""
    found = {}
    for artifact in artifacts:
        found[canonical_json(artifact.versions)] = artifact.versions
    return [found[key] for key in sorted(found)]


def _groups(specs: Sequence[Spec]) -> list[_Group]:
    files: dict[Path, list[Spec]] = {}
    for spec in specs:
        files.setdefault(Path(spec.location.file).resolve(), []).append(spec)
    repositories = {folder: find_repository(folder) for folder in {f.parent for f in files}}
    groups: dict[Path | None, _Group] = {}
    for file, declared in files.items():
        repository: Repository | SdistRecord | None = repositories[file.parent]
        if repository is None or not repository.own([file]):
            repository = find_recorded(file)
        root = repository.root if repository else None
        groups.setdefault(root, _Group(repository)).files[file] = declared
    return list(groups.values())


def _origin(
    group: _Group, toolchain: Mapping[str, str], read: FilesRead, apart: Sequence[Path]
) -> Provenance:
    repository = group.repository
    names = _names(group)
    found = Differences(None)
    if repository is not None:
        found = repository.differences(_sources(group) | read.by(group.files), apart=apart)
    # Where it is not known what was read, nobody can say that all of it is in the commit.
    dirty = found.dirty or (None if read.is_unknown(group.files) else found.dirty)
    return Provenance(
        builder=f"pallasc {__version__}",
        toolchain=toolchain,
        specs={names[file]: _digest(specs) for file, specs in group.files.items()},
        commit=repository.commit if repository else None,
        dirty=dirty,
        changed=found.names[:MOST_CHANGED],
    )


def _names(group: _Group) -> dict[Path, str]:
    """Return what each spec file is called."""
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


def _sources(group: _Group) -> set[Path]:
    """Return the files that the specs name: themselves, and entry points and data beside them."""
    found = set(group.files)
    for declared in group.files.values():
        for spec in declared:
            entry = spec.entry.partition(":")[0]
            own = [*spec.files, *([entry] if entry.endswith(".py") else [])]
            own += [spec.table] if spec.table else []
            found.update((Path(spec.base_dir) / name).resolve() for name in own)
    return found


def _digest(specs: Iterable[Spec]) -> str:
    """Return the digest of what a file declares, whatever order it does so in."""
    return digest(b"\n".join(sorted(map(_declared, specs))))


def _declared(spec: Spec) -> bytes:
    """Return what of a spec decides compilations, in one order."""
    data = {name: value for name, value in spec_to_json(spec).items() if name not in _UNDECIDING}
    if not data["env"]:
        del data["env"]  # as in bundles from before there was this field
    data["matrix"] = {name: _sorted(values) for name, values in spec.matrix.items()}
    rows = _sorted(row.values for row in spec.rows)
    data = {**data, "rows": rows} if rows else {k: v for k, v in data.items() if k != "rows"}
    for name in ("include", "exclude", "targets", "files"):
        data[name] = _sorted(getattr(spec, name))
    return canonical_json(data)


def _sorted(values: Iterable[object]) -> list[object]:
    return sorted(values, key=canonical_json)
