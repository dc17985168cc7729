"""Files that an sdist must contain so that a wheel can be built from it.

These are the specs, lock files and existing bundles.

A folder of specs is included as a whole. So is the folder that contains a spec file, because
kernels import neighboring modules. If that is the project's root folder, only its Python and YAML
files are included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pallasc.hooks.settings import SUFFIX, Setting
from pallasc.specs.spelling import nearest, show

_LOCK = "pallasc.lock"
_SKIPPED = ("__pycache__",)
_SUFFIXES = (".py", ".yaml", ".yml")


def source_files(settings: Iterable[Setting], root: Path) -> list[str]:
    """Return the files that bundles are made from, relative to the project, sorted.

    Raises:
        SpecError: a file named in the settings does not exist.
    """
    files: set[Path] = set()
    for setting in settings:
        lock = lock_file(setting, root)
        if lock is not None:
            files.add(_existing(lock, setting, root))
        if setting.bundle is not None:
            files.add(_existing(setting.bundle, setting, root))
        for name in setting.specs:
            files.update(_around(_existing(name, setting, root), root))
    return sorted(path.relative_to(root).as_posix() for path in files)


def lock_file(setting: Setting, root: Path) -> str | None:
    """Return the lock file of a bundle built from specs: the one set, else the project's."""
    if setting.lock is not None or not setting.specs:
        return setting.lock
    return _LOCK if (root / _LOCK).exists() else None


def _existing(name: str, setting: Setting, root: Path) -> Path:
    path = root / name
    if not path.exists():
        near = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        other = nearest(path.name, near)
        hint = f"Did you mean {show(str(Path(name).with_name(other)))}?" if other else None
        raise setting.at.error(f"{show(name)} does not exist.", hint)
    return path


def _around(path: Path, root: Path) -> Iterator[Path]:
    folder = path if path.is_dir() else path.parent
    if folder == root:
        yield from (file for file in folder.iterdir() if file.suffix in _SUFFIXES)
        return
    for file in folder.rglob("*"):
        inside = file.relative_to(folder).parts
        hidden = any(part.startswith(".") or part in _SKIPPED for part in inside)
        if file.is_file() and not hidden and file.suffix not in (".pyc", SUFFIX):
            yield file
