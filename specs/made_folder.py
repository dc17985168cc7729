"""Folders that are written and replaced as a whole, unless somebody has edited them.

`MARKER` lists all other files with their SHA-256. A folder with an unlisted or changed file
contains somebody's work and is not replaced. The new folder is complete before it replaces the old
one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pallasc.errors import SpecError

MARKER = "made.json"
_SCHEMA = 1
_HINT = "Remove it, or give another folder."


def replace_folder(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a folder in one step.

    Args:
        folder: its path; an existing folder must be empty, or written by this function and
            unchanged.
        files: relative path and content of each file, written as they are yielded.

    Raises:
        SpecError: the folder has other content, which is kept, or it cannot be written.
    """
    place = Path(os.path.realpath(folder))
    _check_replaceable(folder, place)
    scratch = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        scratch.mkdir(parents=True)
        _write(scratch, files)
        _check_replaceable(folder, place)
        _exchange(scratch, place)
    except OSError as error:
        raise SpecError(
            f"{folder} cannot be written: {error.strerror}.", hint="Give another folder."
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(folder: Path, files: Iterable[tuple[str, bytes]]) -> None:
    digests = {}
    for name, data in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    record = {"schema": _SCHEMA, "files": digests}
    (folder / MARKER).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def _exchange(made: Path, place: Path) -> None:
    """Move a folder into place; restore the old one on failure."""
    old = made.with_name(f"{made.name}.old")
    with suppress(FileNotFoundError):
        place.rename(old)
    try:
        made.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(folder: Path, place: Path) -> None:
    try:
        if not place.exists() or not any(place.iterdir()):
            return
        digests = _digests(place)
        if digests is None:
            raise SpecError(
                f"{folder} holds files that pallasc bundle export did not write.", hint=_HINT
            )
        for path in sorted(place.rglob("*")):
            name = path.relative_to(place).as_posix()
            if path.is_symlink() or not (path.is_dir() or name == MARKER or name in digests):
                raise SpecError(f"{folder}: {name} is not from an export.", hint=_HINT)
            if name in digests and _digest(path) != digests[name]:
                raise SpecError(f"{folder}: {name} was changed since it was written.", hint=_HINT)
    except OSError as error:
        raise SpecError(f"{folder} cannot be read: {error.strerror}.", hint=_HINT) from error


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digests(place: Path) -> Mapping[str, str] | None:
    """Return the digests in a folder's marker, or None if it has no valid marker."""
    marker = place / MARKER
    if not marker.is_file():
        return None
    try:
        record = json.loads(marker.read_bytes())
    except (ValueError, RecursionError):
        return None
    files = record.get("files") if isinstance(record, dict) else None
    return files if isinstance(files, dict) and record.get("schema") == _SCHEMA else None
