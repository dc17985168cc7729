"""The commit of an sdist, recorded in a file when the sdist is made.

`pallasc-origin.json` in the project's folder is one object:

* `schema`: 1
* `commit`: commit that was checked out
* `dirty`: whether the sources differed from it, null if git could not tell
* `folder`: folder of the project, relative to the repository; empty if it is the same
* `files`: SHA-256 of each source of kernels, by its name relative to the project

As in a repository, a source that was changed later makes the tree dirty.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pallasc.compiler.builds.repository import Differences, find_repository
from pallasc.errors import Location, SpecError

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
        """Return those of the files that the record lists."""
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
        return _digest(self.root / name) == self.files[name]


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
        "files": {name: _digest(root / name) for name in names},
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


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, "" if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
