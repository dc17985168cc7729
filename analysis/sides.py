"""One side of a comparison: compiled variants by id, from any source.

A side can be a spec at another git revision: `kernels.yaml@main`. The files of the revision are
written to a temporary folder, using a separate index. Neither the working tree nor the repository's
index changes, and uncommitted changes are ignored. Submodules are not written.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.compiler.builds.bundling import Repository, find_repository
from pallasc.compiler.toolchain.modules import locate_module
from pallasc.errors import NotCachedError, SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact, Resources
from pallasc.specs.canonical import plain, variant_id
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.specs.loading.lock import Lock

_SHORT = 10
_BETWEEN = re.compile(r",(?=[^\W\d]\w*=)")
"""The comma between two parameters of an id; values may contain commas, too."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A compiled variant.

    Attributes:
        id: the variant's id.
        name: its kernel.
        params: its parameters, formatted as in an id.
        target: the name of its model.
        resources: the resources it uses.
        artifact: the compiled artifact; None if it is known only from a lock.
        action_key: its action key, None in a bundle.
        digest: digest of the artifact as compiled.
    """

    id: str
    name: str
    params: Mapping[str, str]
    target: str
    resources: Resources
    artifact: Artifact | None
    action_key: str | None
    digest: str

    @property
    def identity(self) -> str:
        """Kernel, sorted parameters, and target; a store does not keep the order of parameters."""
        return repr((self.name, sorted(self.params.items()), self.target))


@dataclass(frozen=True, slots=True)
class Side:
    """One side: its name, its variants with distinct ids, and notes for the user."""

    name: str
    variants: tuple[Subject, ...]
    notes: tuple[str, ...] = ()


def subject_of(
    artifact: Artifact,
    name: str,
    params: Iterable[tuple[str, object]],
    *,
    target: str = "",
    action_key: str | None = None,
    whole: Artifact | None = None,
) -> Subject:
    """Create a subject.

    Args:
        artifact: the compiled artifact.
        name: its kernel.
        params: its parameters.
        target: the name of its model; by default the artifact's target.
        action_key: its action key, if known.
        whole: the artifact as compiled, if `artifact` lacks parts of it, as in a bundle.
    """
    pairs = [(key, plain(value)) for key, value in params]
    target = target or artifact.target.name
    original = whole or artifact
    return Subject(
        variant_id(name, pairs, target),
        name,
        dict(pairs),
        target,
        original.resources,
        artifact,
        action_key,
        original.digest,
    )


def built_side(name: str, results: Iterable[VariantResult], notes: Iterable[str] = ()) -> Side:
    """Return a build's variants, including those over budget but not failed ones, as a side."""
    subjects = tuple(
        subject_of(
            result.artifact,
            result.variant.name,
            result.variant.params,
            target=result.variant.target.name,
            action_key=result.action_key,
        )
        for result in results
        if result.artifact is not None
    )
    return Side(name, subjects, tuple(notes))


def bundle_side(path: Path) -> Side:
    """Return a bundle's variants as a side.

    Raises:
        SpecError: the bundle cannot be read.
        CorruptError: the bundle is damaged, or not signed as this machine requires.
    """
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.signature import read_policy

    bundle = open_bundle(path)
    bundle.check_policy(read_policy())
    subjects = tuple(
        subject_of(
            bundle.artifact(entry),
            entry.name,
            entry.params,
            target=entry.target,
            whole=Artifact(bundle.record(entry), lambda key: b""),
        )
        for entry in bundle.entries()
    )
    return Side(str(path), subjects)


def store_side(store: Store, name: str) -> Side:
    """Return a store's variants as a side, each with its most recently used artifact."""
    from pallasc.cache.inventory import artifacts
    from pallasc.compiler.inputs.lookup import artifact_of_action

    subjects: dict[str, Subject] = {}
    older = set()
    for listed in artifacts(store):
        named = [about for about in listed.variants if about.name]
        artifact = artifact_of_action(store, listed.key) if named else None
        if artifact is None:
            continue
        for about in named:
            params, target = about.params.items(), about.target
            subject = subject_of(artifact, about.name, params, target=target, action_key=listed.key)
            if subjects.setdefault(subject.id, subject).digest != subject.digest:
                older.add(subject.id)
    if not subjects:
        raise NotCachedError(
            f"{name}: this store has no variant whose name is known.",
            hint="Name the store's folder, or build into it with: pallasc build SPECS --store PATH",
        )
    which = f"{len(older):,} variant{'s' if len(older) > 1 else ''}"
    note = f"{name} has several artifacts of {which}: the last used one is compared"
    return Side(name, tuple(subjects[key] for key in sorted(subjects)), (note,) if older else ())


def lock_side(lock: Lock, name: str, store: Store) -> Side:
    """Return a lock's variants as a side, with their artifacts from the store."""
    from pallasc.compiler.inputs.lookup import artifact_of_action

    subjects = []
    for key, entry in lock.variants.items():
        artifact = artifact_of_action(store, entry.action)
        if artifact is not None and artifact.digest != entry.artifact:
            artifact = None
        resources = lock.resources.get(key) or (artifact.resources if artifact else Resources())
        kernel, params, target = _parts(key)
        subjects.append(
            Subject(key, kernel, params, target, resources, artifact, entry.action, entry.artifact)
        )
    lost = sum(subject.artifact is None for subject in subjects)
    notes = (
        f"the store has no artifact of {lost:,} of {name}'s {len(subjects):,} variants: only "
        "the resources in the lock are compared",
    )
    return Side(name, tuple(subjects), notes if lost else ())


def _parts(key: str) -> tuple[str, dict[str, str], str]:
    """Split an id into kernel, parameters, and target, which a lock does not list separately."""
    rest, _, target = key.rpartition("@")
    kernel, _, inside = rest.partition("[")
    pairs = (each.partition("=") for each in _BETWEEN.split(inside.removesuffix("]")))
    return kernel, {name: value for name, sign, value in pairs if sign}, target


@dataclass(frozen=True, slots=True)
class CheckedOut:
    """A spec as it was in a revision.

    Attributes:
        path: the spec's path, in a temporary folder.
        commit: the revision's commit.
        repository: the user's repository.
    """

    path: str
    commit: str
    repository: Repository


def split_revision(text: str) -> tuple[str, str]:
    """Return path and revision of `kernels.yaml@main`; an existing path has no revision."""
    path, sign, revision = text.rpartition("@")
    return (
        (path, revision) if sign and path and revision and not Path(text).exists() else (text, "")
    )


@contextmanager
def checked_out(path: str, revision: str) -> Iterator[CheckedOut]:
    """Write all files of a revision to a folder that is removed at the end of the block.

    Args:
        path: a spec; it need not exist in the working tree.
        revision: any revision that git accepts.

    Raises:
        SpecError: the spec is not in a repository, the revision does not exist, or the revision
            lacks the spec.
        ToolError: git cannot write the files.
    """
    repository = _repository(path, revision)
    commit = repository.commit_of(revision)
    if commit is None:
        raise SpecError(
            f"{repository.root} has no revision {revision}.",
            hint="Name a branch, tag or commit. A shallow clone lacks most of them: fetch it with "
            f"'git fetch origin {revision}', and name FETCH_HEAD.",
        )
    with tempfile.TemporaryDirectory(prefix="pallasc-revision-") as folder:
        top = Path(folder).resolve() / "tree"
        if not repository.write_commit(commit, top):
            raise ToolError(
                f"git cannot write the files of {revision} into {folder}.",
                hint="Check that the disk has space and the clone has all objects of the commit.",
            )
        name = _name(path, repository)
        if not (top / name).exists():
            raise SpecError(
                f"{name} is not in {revision} ({commit[:_SHORT]}).",
                hint="It may have had another name there, or is not committed yet.",
            )
        yield CheckedOut(str(top / name), commit, repository)


def _repository(path: str, revision: str) -> Repository:
    folder = Path(path).absolute()
    while not folder.is_dir():
        folder = folder.parent
    repository = find_repository(folder)
    if repository is None:
        raise SpecError(
            f"{path}@{revision}: {folder} is in no git repository that git can read.",
            hint="Name a store, a bundle or a lock of that revision, or run this in the clone.",
        )
    return repository


def _name(path: str, repository: Repository) -> Path:
    place = Path(path).absolute()
    resolved = place.parent.resolve() / place.name
    if not resolved.is_relative_to(repository.root):
        raise SpecError(f"{path} is not in the repository {repository.root}.")
    return resolved.relative_to(repository.root)


def taken_from_elsewhere(variants: Iterable[Variant], checked: CheckedOut) -> list[str]:
    """Return notes on entries whose code comes from the working tree instead of the revision.

    This happens with a package installed from the working tree, such as an editable install, unless
    the package is also next to the spec.
    """
    root, notes = checked.repository.root, {}
    modules = dict.fromkeys((each.entry.partition(":")[0], each.base_dir) for each in variants)
    for module, folder in modules:
        if module.endswith(".py"):
            continue
        top = module.partition(".")[0]
        file = locate_module(module, [folder]) or locate_module(top, [folder])
        if file is not None and file.resolve().is_relative_to(root):
            notes[top] = (
                f"{top} is installed from the working tree: its code is compared as it is now, not "
                f"as of {checked.commit[:_SHORT]}"
            )
    return list(notes.values())
