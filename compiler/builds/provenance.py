"""Determine the provenance of a bundle: spec files with their commits, and the toolchain.

The digest of a spec file covers what it declares, not its bytes: comments, the order of kernels,
fields, values and targets, and the selection of variants make no difference. Its name is relative
to its repository; outside a repository, it is the shortest path that tells the files apart. An
unpacked sdist counts as the repository that it was made from (`recorded_commit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.compiler.builds.files_read import NOTHING_READ, FilesRead, files_named
from pallasc.compiler.builds.recorded_commit import SdistRecord, find_recorded
from pallasc.compiler.builds.repository import Differences, Repository, find_repository
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.provenance import MOST_CHANGED, Provenance
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.spec import Spec
from pallasc.specs.wire import spec_to_json
from pallasc.version import installed_version

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
