"""Ask git for the commit of files, and whether they differ from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 60
# `core.fsmonitor` is a command from the repository's configuration, which git would run.
_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "--literal-pathspecs")


@dataclass(frozen=True, slots=True)
class Differences:
    """Whether sources differ from their commit.

    Attributes:
        dirty: whether they differ, None if unknown.
        names: differing files, relative to the repository, as far as known.
    """

    dirty: bool | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repository:
    """A working tree of git.

    Attributes:
        root: its folder, without symbolic links.
        commit: commit that is checked out.
    """

    root: Path
    commit: str

    def name_of(self, file: Path) -> str:
        """Return the name of a file, relative to the root."""
        return file.relative_to(self.root).as_posix()

    def tracked(self, files: Collection[Path]) -> set[Path]:
        """Return those of the files that git tracks or could add, without ignored ones."""
        return self._listed(files, "--cached", "--others", "--exclude-standard")

    def differences(self, files: Collection[Path], *, ignore: Collection[Path] = ()) -> Differences:
        """Return the differences from the commit.

        These are all tracked files that were changed, and those of `files` that are not in the
        commit, even if git ignores them. Other untracked files do not count.

        Args:
            files: inputs of a build; one outside the working tree counts as different.
            ignore: files to ignore, such as a bundle that is about to be replaced.
        """
        tree = self._changed()
        flagged = self._changed_but_flagged()
        if tree is None or flagged is None:
            return Differences(None)
        changed = (tree | flagged) - set(ignore)
        names = {self.name_of(file) for file in changed}
        for file in set(files) - set(ignore) - self._listed(files, "--cached"):
            names.update(self._untracked_names(file))
        return Differences(bool(names), tuple(sorted(names)))

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a branch, tag or other revision names, None if there is none."""
        name = f"{revision}^{{commit}}"
        answer = _git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", name)
        return None if answer is None else answer.decode().strip()

    def write_commit(self, commit: str, folder: Path) -> bool:
        """Write all files of a commit below a folder; tell whether git could.

        Neither the working tree nor the repository's index changes; no filter of it is run.
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
        return None if answer is None else {self.root / name for name in _names(answer)}

    def _changed_but_flagged(self) -> set[Path] | None:
        """Return the changed files that `git diff` skips because of a flag, None if git fails.

        `git update-index --assume-unchanged` and `--skip-worktree` hide changes. A sparse checkout
        sets the latter for files that it leaves out; those do not differ.
        """
        answer = _git(self.root, "ls-files", "-v", "-z")
        if answer is None:
            return None
        # Tags: lower case is assume-unchanged, S is skip-worktree.
        flagged = [name for name in _names(answer) if name[0].islower() or name[0] == "S"]
        sparse = {name[2:] for name in flagged if name[0] in "Ss"}
        edited = {
            name[2:]
            for name in flagged
            if name[2:] not in sparse or os.path.lexists(self.root / name[2:])
        }
        return {self.root / name for name in edited if not self._is_committed(name)}

    def _is_committed(self, name: str) -> bool:
        """Tell whether a file's bytes equal those in the commit."""
        now = _git(self.root, "hash-object", "--no-filters", "--", name)
        then = _git(self.root, "rev-parse", "--verify", "--quiet", f"HEAD:{name}")
        return now is not None and now == then

    def _untracked_names(self, file: Path) -> tuple[str, ...]:
        """Return the name of an untracked file; for one in a submodule, its differences there."""
        if not self._contains(file):
            return (f"{file.name} (outside of the repository)",)
        inner = find_repository(file.parent)
        if inner is None or inner.root == self.root or not self._listed([inner.root], "--cached"):
            return (self.name_of(file),)
        folder = self.name_of(inner.root)
        return tuple(f"{folder}/{name}" for name in inner.differences([file]).names)

    def _listed(self, files: Collection[Path], *options: str) -> set[Path]:
        inside = sorted({str(f.relative_to(self.root)) for f in files if self._contains(f)})
        if not inside:
            return set()
        answer = _git(self.root, "ls-files", "-z", *options, "--", *inside)
        return {self.root / name for name in _names(answer or b"")}

    def _contains(self, file: Path) -> bool:
        return file.is_relative_to(self.root)


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
    filtered files, such as those of Git LFS, may be reported as changed.
    """
    pattern = r"^filter\..*\.(clean|smudge|process|required)$"
    keys = _names(_run(folder, "config", "--name-only", "-z", "--get-regexp", pattern) or b"")
    if any("=" in key for key in keys):
        return None  # in `-c key=value`, git splits at the first one
    values = {key: "false" if key.endswith(".required") else "" for key in sorted(set(keys))}
    return [part for key, value in values.items() for part in ("-c", f"{key}={value}")]


def _run(folder: Path, *arguments: str, index: Path | None = None) -> bytes | None:
    command: Sequence[str] = ("git", "-C", str(folder), *_OPTIONS, *arguments)
    # If a build runs in a git hook, variables such as GIT_DIR name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
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
