"""The user's files that variants may need, gathered to be sent to workers that share no disk.

All below the folders of specs and entry points, but hidden files, bytecode, virtual environments
and caches; and modules that lie elsewhere, reached from the entry points by the imports in their
sources. What is not found so is noticed: the build compares what a compilation read with what lies
at home.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.cache.stat_digest import file_holding, read_held
from pallasc.compiler.inputs.request import named_entries, place_of
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_pythons, locate_module
from pallasc.errors import ToolError
from pallasc.specs.spec import Variant

MOST_FILES = 20_000
MOST_BYTES = 256 << 20
LARGEST_FILE_BYTES = 16 << 20
"""Larger files are sent only where a spec declares them under `files`."""

_LEFT_OUT = {"__pycache__", "node_modules"}
_SECRETS = (
    "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_GHA_CREDS_PATH", "NETRC", "PALLASC_STORE_KEY",
)  # fmt: skip
"""Variables that name files with credentials or keys: some CI puts these beside the sources."""
_MARKS = ("pyvenv.cfg", "CACHEDIR.TAG", "v1/cas")
"""What tells a virtual environment, a cache or a store from a folder with sources."""


@dataclass(slots=True)
class Shipped:
    """Files to send.

    Attributes:
        folders: folders that exist at home, even if nothing in them is sent.
        files: digests by path.
        links: targets of symbolic links by path.
        path: folders to look for modules in.
        blobs: contents by digest.
    """

    folders: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, path: str) -> None:
        """Add a file, or what a link leads to if that is elsewhere.

        Raises:
            ToolError: there are too many, or they are too large.
        """
        if path in self.files:
            return
        try:
            data = Path(path).read_bytes()
        except OSError:
            return  # a compilation that reads it fails there as it does here
        digest = hashlib.sha256(data).hexdigest()
        self.files[path] = digest
        if digest not in self.blobs:
            self.blobs[digest] = data
            self._bytes += len(data)
        if len(self.files) > MOST_FILES or self._bytes > MOST_BYTES:
            raise ToolError(
                f"there is too much to send to a cluster: more than {MOST_FILES} files or "
                f"{MOST_BYTES >> 20} MiB, the last one {path}.",
                hint="Give the specs a folder with only what their kernels need.",
            )


def shipped(variants: Iterable[Variant], *, without: Sequence[str] = ()) -> Shipped:
    """Return the files that variants may need.

    Args:
        variants: the variants.
        without: folders that are left out, such as the store. So are files that the environment
            names as credentials or keys, unless a spec declares them.

    Raises:
        ToolError: there are too many, or they are too large.
    """
    result = Shipped()
    named = filter(None, map(os.environ.get, _SECRETS))
    left_out = {os.path.realpath(each) for each in (*without, *named)}
    by_source: dict[tuple[object, ...], Variant] = {}
    for variant in variants:
        entries = tuple(str(entry) for entry in named_entries(variant))
        by_source.setdefault((variant.base_dir, variant.files, entries), variant)
    modules: dict[tuple[str, ...], list[str]] = {}
    for variant in by_source.values():
        place = place_of(variant)
        for folder in dict.fromkeys([variant.base_dir, *place.folders]):
            _add_folder(result, folder, left_out)
        for name in variant.files:
            result.add(os.path.join(variant.base_dir, name))
        names = modules.setdefault(place.folders, [])
        for entry in named_entries(variant):
            if entry.is_file:
                names += _imported(str(Path(variant.base_dir, entry.source).resolve()), "")
            else:
                names.append(entry.source)
    for folders, names in modules.items():
        _add_modules(result, names, folders, left_out)
    return result


def _add_folder(result: Shipped, folder: str, without: set[str]) -> None:
    if folder in result.folders:
        return
    result.folders.append(folder)
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in sorted(folders) if _is_sent(place, name, without)]
        for name in sorted(names):
            path = os.path.join(place, name)
            if name.startswith(".") or (without and os.path.realpath(path) in without):
                continue
            if os.path.islink(path) and _is_inside(path, folder):
                result.links[path] = os.readlink(path)
            elif os.path.isfile(path) and os.path.getsize(path) <= LARGEST_FILE_BYTES:
                result.add(path)
        for name in [name for name in folders if os.path.islink(os.path.join(place, name))]:
            path = os.path.join(place, name)
            if _is_inside(path, folder):
                result.links[path] = os.readlink(path)


def _is_sent(place: str, name: str, without: set[str]) -> bool:
    path = os.path.join(place, name)
    if name.startswith(".") or name in _LEFT_OUT or os.path.realpath(path) in without:
        return False
    return not any(os.path.exists(os.path.join(path, mark)) for mark in _MARKS)


def _is_inside(link: str, folder: str) -> bool:
    """Tell whether a symbolic link leads to something below a folder, by a relative path."""
    target = os.readlink(link)
    real, top = os.path.realpath(link), os.path.realpath(folder)
    return not os.path.isabs(target) and os.path.commonpath([real, top]) == top


def _add_modules(
    result: Shipped, names: Iterable[str], folders: Sequence[str], left_out: set[str]
) -> None:
    """Add the modules that these reach and that are neither installed nor sent already."""
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        top = name.partition(".")[0]
        if name in seen or top in COVERED or top == "pallasc":
            continue
        seen.add(name)
        file = _located(name, folders)
        if file is None:
            continue
        if is_installed(str(file)) or is_pythons(str(file)) or file.suffix != ".py":
            continue
        parts = name.split(".")
        is_package = file.name == "__init__.py"
        outer = file.parents[len(parts) - (0 if is_package else 1)]
        if str(outer) not in (*folders, *result.path):
            result.path.append(str(outer))
        archive = file_holding(str(file))
        if archive != str(file):
            result.add(archive)
        elif str(file) not in result.files:
            if len(parts) > 1 or is_package:
                _add_folder(result, str(outer / top), left_out)
            result.add(str(file))
        pending += [".".join(parts[:length]) for length in range(1, len(parts))]
        pending += _imported(str(file), name if is_package else name.rpartition(".")[0])


def _located(name: str, folders: Sequence[str]) -> Path | None:
    try:
        return locate_module(name, folders)
    except (ImportError, OSError, ValueError, AttributeError):
        return None


def _imported(file: str, package: str) -> list[str]:
    """Return the names of the modules that a source file may import."""
    try:
        tree = ast.parse(read_held(file))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    return [name for node in ast.walk(tree) for name in _named(node, package)]


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level and package else []
        base = ".".join([*above, *filter(None, [node.module])])
        if base:
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
