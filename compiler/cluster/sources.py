"""The user's files that variants may need, gathered for workers that share no disk.

These are all files below the folders of specs and entry points, except hidden files, bytecode,
virtual environments, and caches; and modules elsewhere that the entry points reach by the imports
in their sources. The build compares what a compilation read with the files here, so it notices a
file that was needed and not sent.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pallasc.cache.stat_digest import file_holding, read_held
from pallasc.compiler.inputs.request import named_entries, place_of
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_pythons, locate_module
from pallasc.errors import ToolError
from pallasc.specs.spec import Variant

MOST_FILES = 20_000
MOST_BYTES = 256 << 20
LARGEST_FILE_BYTES = 16 << 20
"""Larger files are sent only if a spec declares them under `files`."""

_LEFT_OUT = {"__pycache__", "node_modules"}
_SECRETS = (
    "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_GHA_CREDS_PATH", "NETRC", "PALLASC_STORE_KEY",
)  # fmt: skip
"""Variables that name files with credentials or keys; CI may put these next to the sources."""
_MARKS = ("pyvenv.cfg", "CACHEDIR.TAG", "v1/cas")
"""Files and folders that mark a virtual environment, a cache, or a store."""


@dataclass(slots=True)
class SentSources:
    """Files to send.

    Attributes:
        folders: folders that exist here, even if none of their files is sent.
        files: contents by path.
        path: folders to look for modules in.
    """

    folders: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    _bytes: int = 0

    def add(self, path: str) -> None:
        """Add a file.

        Raises:
            ToolError: there are too many files, or they are too large.
        """
        if path in self.files:
            return
        with contextlib.suppress(OSError):  # a compilation that reads it fails there, too
            self.files[path] = Path(path).read_bytes()
            self._bytes += len(self.files[path])
        if len(self.files) > MOST_FILES or self._bytes > MOST_BYTES:
            raise ToolError(
                f"there is too much to send to a cluster: more than {MOST_FILES} files or "
                f"{MOST_BYTES >> 20} MiB, the last one {path}.",
                hint="Give the specs a folder with only what their kernels need.",
            )

    def add_folder(self, folder: str, left_out: set[str]) -> None:
        """Add the files below a folder, except those in `left_out`."""
        if folder in self.folders:
            return
        self.folders.append(folder)
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in sorted(folders) if _is_sent(place, name, left_out)]
            for path in (os.path.join(place, name) for name in sorted(names) if name[0] != "."):
                is_file = os.path.isfile(path) and os.path.realpath(path) not in left_out
                if is_file and os.path.getsize(path) <= LARGEST_FILE_BYTES:
                    self.add(path)


def sources_of(variants: Iterable[Variant], *, without: Sequence[str] = ()) -> SentSources:
    """Return the files that variants may need.

    Args:
        variants: the variants.
        without: folders that are left out, such as the store. Files that the environment names as
            credentials or keys are left out too, unless a spec declares them.

    Raises:
        ToolError: there are too many files, or they are too large.
    """
    result = SentSources()
    named = filter(None, map(os.environ.get, _SECRETS))
    left_out = {os.path.realpath(each) for each in (*without, *named)}
    for variant in {(v.base_dir, v.files, *named_entries(v)): v for v in variants}.values():
        folders = place_of(variant).folders
        for folder in dict.fromkeys([variant.base_dir, *folders]):
            result.add_folder(folder, left_out)
        for name in variant.files:
            result.add(os.path.join(variant.base_dir, name))
        for name, file in reached_modules(variant):
            _add_module(result, name, file, folders, left_out)
    return result


def certain_sources(variant: Variant) -> set[str]:
    """Return labels, as in manifests, of the sources that every compilation of a variant reads.

    These are its entry points, and the modules that import statements at the top level reach.
    """
    files = {f"file:{entry.source}" for entry in named_entries(variant) if entry.is_file}
    return files | {f"module:{name}" for name, _ in reached_modules(variant, certainly=True)}


def reached_modules(variant: Variant, *, certainly: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield the user's modules that the entry points of a variant import, and their files.

    Args:
        variant: the variant.
        certainly: leave out imports that may not run: those in functions, branches, and `try`.
    """
    folders, seen = place_of(variant).folders, set()
    pending: list[str] = []
    for entry in named_entries(variant):
        file = Path(variant.base_dir, entry.source).resolve()
        pending += _imported(file, "", certainly) if entry.is_file else [entry.source]
    while pending:
        name = pending.pop()
        if name in seen or name.partition(".")[0] in (*COVERED, "pallasc"):
            continue
        seen.add(name)
        found: Path | None = None
        with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
            found = locate_module(name, folders)
        if found is None or found.suffix != ".py":
            continue
        if is_installed(str(found)) or is_pythons(str(found)):
            continue
        yield name, found
        parent = name.rpartition(".")[0]
        pending += [parent] if parent else []
        pending += _imported(found, name if found.name == "__init__.py" else parent, certainly)


def _is_sent(place: str, name: str, left_out: set[str]) -> bool:
    path = os.path.join(place, name)
    if name.startswith(".") or name in _LEFT_OUT or os.path.realpath(path) in left_out:
        return False
    return not any(os.path.exists(os.path.join(path, mark)) for mark in _MARKS)


def _add_module(
    result: SentSources, name: str, file: Path, folders: Sequence[str], left_out: set[str]
) -> None:
    is_package = file.name == "__init__.py"
    outer = file.parents[name.count(".") + is_package]
    if str(outer) not in (*folders, *result.path):
        result.path.append(str(outer))
    archive = file_holding(str(file))
    if archive == str(file) and str(file) not in result.files and ("." in name or is_package):
        result.add_folder(str(outer / name.partition(".")[0]), left_out)
    result.add(archive)


@lru_cache(maxsize=1000)
def _imported(file: Path, package: str, certainly: bool) -> tuple[str, ...]:
    """Return the names of the modules that a source file imports, or may import."""
    try:
        tree = ast.parse(read_held(str(file)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    nodes = tree.body if certainly else ast.walk(tree)
    return tuple(name for node in nodes for name in _named(node, package, certainly))


def _named(node: ast.AST, package: str, certainly: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level and package else []
        base = ".".join([*above, *filter(None, [node.module])])
        if base:
            yield base
            if not certainly:  # a name may be a module, or an attribute
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
