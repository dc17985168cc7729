"""What the user's code looks at beside modules: files, folders, links.

`recorders` fills this in compiling processes, for the module that looked; a manifest holds the
digests, so that a tuning table which nobody declared is not missed. What a function read once, a
cache in it may answer with later, so what a module has looked at counts for every later variant
that reaches the module.

Labels, each with what a manifest says of it; null is for what is not there:

* `file:<path>`: a file that was read; the digest of its contents
* `folder:<path>`: a folder that was listed; the digest of the names in it
* `is:<path>`: something that was asked for; whether it is a file, a folder or something else
* `link:<path>`: a link that was asked for; where it leads, or what there is instead
* `site:<path>`, with a slash at the end for a listing: below the folder of installed packages; in
  the other two it stands behind their names

Paths below the spec's folder are relative to it. Links on the way stay in them, so that a link that
leads elsewhere is noticed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.compiler.toolchain.modules import site_folders
from pallasc.errors import PallascError

FILE, FOLDER, IS, LINK, INSTALLED = "file:", "folder:", "is:", "link:", "site:"
_IN_TWO_PARTS = frozenset({"is", "link"})
_DIFFERENT = "different"

Look = tuple[str, str]
"""In which way something was looked at, `FILE` and the like, and its absolute path."""


@dataclass(slots=True)
class Reads:
    """What was looked at.

    Attributes:
        looks: what `state` said when each thing was first looked at.
        missed: variables, and files of the user's home, that kernels do not get to see, each with
            `file:line` of who asked first.
        unseen: sentences about what has no digest.
    """

    looks: dict[Look, str | None] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)

    def look(self, kind: str, path: str) -> None:
        """Take down that something was looked at, and what it is like."""
        if (kind, path) not in self.looks:
            self.looks[kind, path] = state(kind, path)


_by_module: dict[str, Reads] = {}


def of_module(module: str) -> Reads:
    """Return what is known of a module, for more to be added."""
    return _by_module.setdefault(module, Reads())


def reads_of(modules: Iterable[str]) -> Reads:
    """Return what modules have looked at so far."""
    found = Reads()
    for read in filter(None, map(_by_module.get, modules)):
        for look, seen in read.looks.copy().items():
            if found.looks.setdefault(look, seen) != seen:
                found.looks[look] = _DIFFERENT
        found.missed = {**read.missed, **found.missed}
        found.unseen |= read.unseen
    return found


def state(kind: str, path: str) -> str | None:
    """Return what can cheaply be said of something, so that a change meanwhile is noticed."""
    if kind == FOLDER:
        return listing_digest(Path(path))
    return _lead(path) if kind == LINK else _nature(path)


def digest_of(label: str, path: Path, digest: Callable[[Path], str]) -> str | None:
    """Return what a manifest says under a label.

    Args:
        label: one of `label_of`.
        path: what it names, as `path_of` says.
        digest: returns the digest of a file's contents, or raises an error of ours.
    """
    kind = f"{label.partition(':')[0]}:"
    if kind in (IS, LINK):
        return state(kind, str(path))
    if kind == FOLDER or label.endswith(os.sep):
        return listing_digest(path)
    try:
        return digest(path)
    except PallascError:
        return _nature(str(path))  # a folder, or what may not be read


def change_of(label: str) -> str:
    """Return the sentence that what a label names is no longer as it was."""
    if label.startswith(LINK):
        return f"{name_of(label)} no longer leads where it led"
    if label.startswith(IS):
        return f"{name_of(label)}, which was looked for, has come, gone or changed its kind"
    return f"{name_of(label)}, which was read, has changed"


def name_of(label: str) -> str:
    """Return what a label calls a thing, for messages."""
    return label.partition(":")[2].removeprefix(INSTALLED)


def package_in(label: str) -> str:
    """Return the first part of a path below the folder of installed packages, "" elsewhere."""
    place = label.removeprefix(IS).removeprefix(LINK)
    inside = place.removeprefix(INSTALLED)
    return "" if inside == place else inside.partition(os.sep)[0]


def _nature(path: str) -> str | None:
    """Return what lies at a path, links followed."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def _lead(path: str) -> str | None:
    """Return where a link leads; what there is instead if it is none."""
    try:
        return f"link to {_sha256(os.readlink(path))}"
    except (OSError, ValueError):
        return _nature(path)


def _sha256(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def listing_digest(folder: Path) -> str | None:
    """Return the digest of the names in a folder, bytecode aside; None if there is none."""
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):
        return None
    kept = [name for name in names if name != "__pycache__" and not name.endswith(".pyc")]
    return _sha256("\0".join(kept))


def label_of(kind: str, path: str, base_dir: str) -> str:
    """Return a name of a path that fits after the spec's folder, or Python's, has moved."""
    place = _place(path, base_dir)
    if not place.startswith(INSTALLED) or kind in (IS, LINK):
        return f"{kind}{place}"
    return f"{place}{os.sep}" if kind == FOLDER else place


def _place(path: str, base_dir: str) -> str:
    for folder in site_folders():
        if path.startswith(folder):
            return f"{INSTALLED}{path.removeprefix(folder)}"
    base = next((base for base in (base_dir, os.path.realpath(base_dir)) if _holds(base, path)), "")
    base = base or _reached_through(path, base_dir)
    if not base:
        return path
    inside = os.path.relpath(path, base)
    return os.path.join(os.curdir, inside) if inside.startswith(INSTALLED) else inside


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _reached_through(path: str, base_dir: str) -> str:
    """Return the part of a path that leads to the spec's folder by a link, "" if none does."""
    real = os.path.realpath(base_dir)
    if not _holds(real, os.path.realpath(path)):
        return ""
    parents = [path, *map(str, Path(path).parents)]
    return next((p for p in reversed(parents) if os.path.realpath(p) == real), "")


def leads_to(path: str, base_dir: str) -> bool:
    """Tell whether the spec's folder, or that of installed packages, lies below a path."""
    return any(_holds(path, place) for place in (base_dir, *site_folders()))


def path_of(label: str, base_dir: str) -> Path:
    """Return the path that a label names now; it need not exist."""
    kind, _, name = label.partition(":")
    if kind in _IN_TWO_PARTS and name.startswith(INSTALLED):
        kind, _, name = name.partition(":")
    if f"{kind}:" != INSTALLED:
        return Path(base_dir) / name
    places = [Path(folder) / name for folder in site_folders()]
    return next((place for place in places if os.path.lexists(place)), places[0])
