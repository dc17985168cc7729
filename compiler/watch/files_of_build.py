"""The user's files that a build depends on: those to watch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pallasc.cache.store import Store
from pallasc.compiler.builds.files_read import files_named, files_read, paths_read
from pallasc.compiler.builds.report import Report
from pallasc.compiler.toolchain.modules import Place
from pallasc.specs.spec import Spec

_PROJECT = "pyproject.toml"
_MOST = 2000


def files_of_paths(paths: Sequence[str]) -> set[Path]:
    """Return what is known before specs are read: the paths, their folders, the project's file."""
    files = set()
    for path in map(Path, paths):
        found = path.resolve()
        folder = found if found.is_dir() else found.parent
        files |= {found, folder}
        nearest = (up / _PROJECT for up in (folder, *folder.parents))
        files.update([next(filter(Path.is_file, nearest), folder / _PROJECT)])
    return files


def files_of_specs(specs: Sequence[Spec], remembered: Iterable[str], store: Store) -> set[Path]:
    """Return the files that specs name, and those that executing Python specs read.

    Args:
        specs: the specs.
        remembered: keys of the manifests of Python specs.
        store: has these manifests.
    """
    files = files_named(specs)
    folders = {spec.base_dir for spec in specs}
    for key in remembered:
        manifest = store.get_manifest(key)
        if manifest is not None:
            for folder in folders:
                files.update(paths_read(manifest, Place(folder, (folder,)), folder))
    return files


def files_of_report(report: Report, store: Store) -> set[Path]:
    """Return the files that compiling read.

    Where that is not known, as after a failure, all Python files around the spec count.
    """
    read = files_read(report.results, store)
    files = set().union(*read.files.values())
    for spec in read.unknown:
        files |= python_files(spec.parent)
    return files


def python_files(folder: Path) -> set[Path]:
    """Return the Python files in a folder and below it, without environments and hidden folders."""
    return {path for path, _ in zip(_python_files(folder), range(_MOST), strict=False)}


def _python_files(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        yield from (Path(top, name) for name in sorted(names) if name.endswith(".py"))
