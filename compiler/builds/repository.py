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
class Differences:
    """Whether sources differ from their commit.

    Attributes:
        dirty: whether they do, None where that cannot be told.
        names: which do, relative to the repository, as far as that is known.
    """

    dirty: bool | None
    names: tuple[str, ...] = ()


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

    def differences(self, files: Collection[Path], *, apart: Collection[Path] = ()) -> Differences:
        """Return what differs from the commit: any file that git tracks, and any of those named.

        Files that git does not track make no difference, as those that a build leaves behind, but
        for those named, which must be in the commit; ignored ones too.

        Args:
            files: what something was made from. One outside of the working tree differs, too, as no
                commit of this repository says what it holds.
            apart: make no difference, such as a bundle that is about to be written anew.
        """
        tree = self._changed()
        hidden = self._changed_unseen()
        if tree is None or hidden is None:
            return Differences(None)
        changed = (tree | hidden) - set(apart)
        names = {self.name_of(file) for file in changed}
        for file in set(files) - set(apart) - self._listed(files, "--cached"):
            names.update(self._foreign(file))
        return Differences(bool(names), tuple(sorted(names)))

    def _changed(self) -> set[Path] | None:
        """Return the tracked files that git sees to differ, None where it fails."""
        options = ("--name-only", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty")
        answer = _git(self.root, "diff", *options, "-z", "HEAD", "--")
        return None if answer is None else {self.root / name for name in _names(answer)}

    def _changed_unseen(self) -> set[Path] | None:
        """Return the files that differ and that git was told not to look at.

        `update-index --assume-unchanged` and `--skip-worktree` hide what was edited; the latter is
        set for files that a sparse checkout leaves out, which do not differ.
        """
        answer = _git(self.root, "ls-files", "-v", "-z")
        if answer is None:
            return None
        flagged = [name for name in _names(answer) if name[0].islower() or name[0] == "S"]
        sparse = {name[2:] for name in flagged if name[0] in "Ss"}
        edited = {
            name[2:]
            for name in flagged
            if name[2:] not in sparse or os.path.lexists(self.root / name[2:])
        }
        return {self.root / name for name in edited if not self._is_committed(name)}

    def _is_committed(self, name: str) -> bool:
        """Tell whether a file's bytes are those of the commit."""
        now = _git(self.root, "hash-object", "--no-filters", "--", name)
        then = _git(self.root, "rev-parse", "--verify", "--quiet", f"HEAD:{name}")
        return now is not None and now == then

    def _foreign(self, file: Path) -> tuple[str, ...]:
        """Return a name for a file that git does not track here, none if a submodule has it."""
        if not self._has(file):
            return (f"{file.name} (outside of the repository)",)
        inner = find_repository(file.parent)
        if inner is None or inner.root == self.root or not self._listed([inner.root], "--cached"):
            return (self.name_of(file),)
        folder = self.name_of(inner.root)
        return tuple(f"{folder}/{name}" for name in inner.differences([file]).names)

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
    options = _without_filters(folder)
    return None if options is None else _run(folder, *options, *arguments)


def _without_filters(folder: Path) -> list[str] | None:
    """Return options that switch off all filters of the repository, None where one cannot be.

    A filter is any command that `.git/config` names, and git runs it to compare files. Without it
    a file that is stored filtered, as those of Git LFS are, may be said to differ.
    """
    pattern = r"^filter\..*\.(clean|smudge|process|required)$"
    keys = _names(_run(folder, "config", "--name-only", "-z", "--get-regexp", pattern) or b"")
    if any("=" in key for key in keys):
        return None  # git takes the first one for the end of the name
    values = {key: "false" if key.endswith(".required") else "" for key in sorted(set(keys))}
    return [part for key, value in values.items() for part in ("-c", f"{key}={value}")]


def _run(folder: Path, *arguments: str) -> bytes | None:
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
