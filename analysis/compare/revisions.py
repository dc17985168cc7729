"""Specs at another git revision: `kernels.yaml@main`.

The files of the revision are written to a temporary folder, using a separate index. Neither the
working tree nor the repository's index changes, and uncommitted changes are ignored. Submodules are
not written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pallasc.compiler.builds.provenance import Repository, find_repository
from pallasc.errors import SpecError, ToolError
from pallasc.specs.spec import Variant

_SHORT = 10


@dataclass(frozen=True, slots=True)
class CheckedOut:
    """Specs of a revision.

    Attributes:
        paths: their paths, in a temporary folder.
        commit: the commit.
        repository: the user's repository.
    """

    paths: tuple[str, ...]
    commit: str
    repository: Repository


def split_revision(text: str) -> tuple[str, str]:
    """Return path and revision of `kernels.yaml@main`; an existing path has no revision."""
    path, sign, revision = text.rpartition("@")
    return (
        (path, revision) if sign and path and revision and not Path(text).exists() else (text, "")
    )


@contextmanager
def checked_out(paths: Sequence[str], revision: str) -> Iterator[CheckedOut]:
    """Write all files of a revision to a folder that is removed at the end of the block.

    Args:
        paths: the specs, in one repository; they need not exist in the working tree.
        revision: any revision that git accepts.

    Raises:
        SpecError: the specs are not in a repository, the revision does not exist, or it lacks a
            spec.
        ToolError: git cannot write the files.
    """
    repository = _repository(paths[0], revision)
    commit = repository.commit_of(revision)
    if commit is None:
        raise SpecError(
            f"{revision} is no revision of {repository.root}.",
            hint="Name a branch, tag or commit. A shallow clone lacks most of them: fetch it with "
            f"'git fetch origin {revision}', and name FETCH_HEAD.",
        )
    with tempfile.TemporaryDirectory(prefix="pallasc-revision-") as folder:
        top = Path(folder).resolve() / "tree"
        if not repository.write_commit(commit, top):
            raise ToolError(
                f"git cannot write the files of {revision} into {folder}.",
                hint="Look at what git says: git checkout-index needs space and all objects.",
            )
        names = [_name(path, repository) for path in paths]
        for name in names:
            if not (top / name).exists():
                raise SpecError(
                    f"{name} is not in {revision} ({commit[:_SHORT]}).",
                    hint="It may have had another name there, or is not committed yet.",
                )
        yield CheckedOut(tuple(str(top / name) for name in names), commit, repository)


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
    from importlib.util import find_spec

    notes = {}
    for variant in variants:
        module = variant.entry.partition(":")[0]
        top = module.partition(".")[0]
        base = Path(variant.base_dir)
        if module.endswith(".py") or (base / top).exists() or (base / f"{top}.py").exists():
            continue
        try:
            found = find_spec(top)
        except (ImportError, ValueError):
            continue
        places = [found.origin or "", *(found.submodule_search_locations or ())] if found else []
        if any(Path(p).resolve().is_relative_to(checked.repository.root) for p in places if p):
            notes[top] = (
                f"{top} is installed from the working tree: its code is the one of today, not that "
                f"of {checked.commit[:_SHORT]}"
            )
    return list(notes.values())
