"""Ask git which commit files are of, and whether what is there differs from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60
# git reads hooks and monitors from the repository's own configuration; nothing here needs them.
_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--literal-pathspecs")


@dataclass(frozen=True, slots=True)
class Repository:
    """A working tree of git.

    Attributes:
        root: its folder, without symbolic links.
        commit: what is checked out.
    """

    root: Path
    commit: str

    def name_of(self, file: Path) -> str:
        """Return the name of a file, relative to the root."""
        return file.relative_to(self.root).as_posix()

    def own(self, files: Collection[Path]) -> set[Path]:
        """Return those files that are in the commit or could be added: not the ignored ones."""
        return self._listed(files, "--cached", "--others", "--exclude-standard")

    def is_dirty(self, files: Collection[Path], *, apart: Collection[Path]) -> bool | None:
        """Tell whether the tree differs from the commit, None where git cannot tell.

        Files that git does not track make no difference, as those that a build leaves behind, but
        for those named.

        Args:
            files: make the tree dirty where they are not tracked either.
            apart: make no difference, such as a bundle that is about to be written anew.
        """
        answer = _git(self.root, "diff", "--name-only", "--no-ext-diff", "-z", "HEAD", "--")
        if answer is None:
            return None
        changed = {self.root / name for name in _names(answer)} - set(apart)
        return bool(changed or self._listed(files, "--others", "--exclude-standard"))

    def _listed(self, files: Collection[Path], *options: str) -> set[Path]:
        inside = sorted({str(f.relative_to(self.root)) for f in files if self._has(f)})
        if not inside:
            return set()
        answer = _git(self.root, "ls-files", "-z", *options, "--", *inside)
        return {self.root / name for name in _names(answer or b"")}

    def _has(self, file: Path) -> bool:
        return file.is_relative_to(self.root)


def find_repository(folder: Path) -> Repository | None:
    """Return the working tree that a folder is in.

    None where it is in none, where nothing was committed yet, and where git is not there or will
    not read the repository.
    """
    answer = _git(folder, "rev-parse", "--show-toplevel", "HEAD")
    if answer is None:
        return None
    root, _, commit = os.fsdecode(answer).rstrip("\n").rpartition("\n")
    return Repository(Path(os.path.realpath(root)), commit)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return what git answers, None where it fails or is not there."""
    command: Sequence[str] = ("git", "-C", str(folder), *_OPTIONS, *arguments)
    # A hook of git's, which a build may run in, has variables that name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return None if answer.returncode else answer.stdout


def _names(answer: bytes) -> list[str]:
    return [os.fsdecode(name) for name in answer.split(b"\0") if name]
