"""The source files in a record of source lines: their names and the excerpts to show.

A record has no absolute paths: a user's file is named relative to the spec's folder, an installed
file relative to the packages folder. The record contains the text of the functions that its frames
are in, so that lines can be shown without the source, and are never shown from a changed source.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.cache.stat_digest import file_holding, read_held
from pallasc.compiler.toolchain.modules import site_folders
from pallasc.errors import CompileError
from pallasc.specs.artifacts.source_lines import Frame, Place, SourceFile
from pallasc.specs.canonical import digest

_OWN = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Files:
    """The files of one record.

    Args:
        base_dir: the spec's folder.
        since_ns: time before the first read; files changed later are rejected.
    """

    base_dir: str
    since_ns: int
    _read: dict[str, _Source] = field(default_factory=dict)

    def frame(self, path: str, line: int) -> Frame:
        """Return the frame for a line of a file.

        Raises:
            CompileError: the file cannot be read, or has changed since `since_ns`.
        """
        if path not in self._read:
            self._read[path] = self._open(path)
        source = self._read[path]
        source.named.add(line)
        return Frame(source.name, line, source.function(line))

    def files(self) -> tuple[SourceFile, ...]:
        """Return the files of the frames requested so far, by name."""
        sources = sorted(self._read.values(), key=lambda source: source.name)
        return tuple(source.file() for source in sources)

    def _open(self, path: str) -> _Source:
        try:
            data = read_held(path)
            changed = os.stat(file_holding(path)).st_mtime_ns > self.since_ns
        except OSError as error:
            raise CompileError(
                "the source lines of its kernels cannot be found: "
                f"{error.strerror or error}: {path}"
            ) from error
        if changed:
            raise CompileError(
                "the source lines of its kernels cannot be found: "
                f"{os.path.basename(path)} changed while it was compiled again."
            )
        name, place = named(path, self.base_dir)
        return _Source(name, place, data)


@dataclass(slots=True)
class _Source:
    name: str
    place: Place
    data: bytes
    named: set[int] = field(default_factory=set)
    functions: list[tuple[int, int, str]] | None = None

    def function(self, line: int) -> str:
        """Return the innermost function that contains a line, with its enclosing functions."""
        inside = [each for each in self._functions() if each[0] <= line <= each[1]]
        return ".".join(name for _, _, name in inside)

    def _functions(self) -> list[tuple[int, int, str]]:
        """Return first line, last line and name of each function and class, outer ones first."""
        if self.functions is None:
            try:
                self.functions = list(_functions(ast.parse(self.data)))
            except (SyntaxError, ValueError, RecursionError):
                self.functions = []
        return self.functions

    def file(self) -> SourceFile:
        # Not `splitlines`, which also splits at form feeds; Python's line numbers do not.
        text = self.data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        shown = set(self.named)
        for first, last, _ in self._functions():
            if any(first <= line <= last for line in self.named):
                shown.update(range(first, last + 1))
        kept = {number: lines[number - 1] for number in sorted(shown) if 0 < number <= len(lines)}
        return SourceFile(self.name, self.place, digest(self.data), kept)


def _functions(node: ast.AST) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield first, child.end_lineno or child.lineno, child.name
        yield from _functions(child)


def named(path: str, base_dir: str) -> tuple[str, Place]:
    """Return the name and place of a file in a record."""
    real, own = os.path.realpath(path), os.path.realpath(base_dir)
    folders = sorted(site_folders(), key=len, reverse=True)
    for folder in folders:
        if path.startswith(folder) or real.startswith(folder):
            return (path if path.startswith(folder) else real).removeprefix(folder), "installed"
    if not real.startswith(own + os.sep) and real.startswith(f"{_OWN}{os.sep}specs{os.sep}"):
        return f"pallasc/{Path(real).relative_to(_OWN).as_posix()}", "installed"
    return Path(os.path.relpath(real, own)).as_posix(), "spec"


def changed(files: Sequence[SourceFile], base_dir: str) -> str:
    """Return the name of the first file that differs from the record, "" if none does."""
    return next((file.name for file in files if not _is_same(file, base_dir)), "")


def _is_same(file: SourceFile, base_dir: str) -> bool:
    for path in _candidates(file, base_dir):
        try:
            return digest(read_held(str(path))) == file.digest
        except OSError:
            continue
    return False


def _candidates(file: SourceFile, base_dir: str) -> Iterator[Path]:
    if file.place == "spec":
        yield Path(base_dir, file.name)
        return
    if file.name.startswith("pallasc/"):
        yield _OWN / file.name.removeprefix("pallasc/")
    yield from (Path(folder, file.name) for folder in site_folders())
