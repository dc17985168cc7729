"""Files, folders and links that the user's code reads, beside its modules.

In compiling processes, `recorders` adds them to the module that read them. Manifests hold their
digests, so an undeclared tuning table still counts. The user's modules are loaded again for each
variant, and their reads are forgotten with them. A module that stays, such as one of JAX, may cache
what it read while it was imported, so those reads count for every later variant that reaches it.

Labels, each with its value in a manifest; null if it does not exist:

* `file:<path>`: a file that was read; digest of its contents
* `folder:<path>`: a folder that was listed; digest of the names in it
* `is:<path>`: a path that was tested; whether it is a file, a folder or something else
* `link:<path>`: a link that was read; digest of its target, or the kind of what is there instead
* `site:<path>`: a path below the folder of installed packages, with a trailing slash for a listing;
  for the other two kinds, `is:site:<path>` and `link:site:<path>`

Paths below the spec's folder are relative to it. Links in them are not resolved, so that a link
which is changed is noticed.
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
"""A kind of read (`FILE`, `FOLDER`, `IS`, `LINK`) and an absolute path."""


@dataclass(slots=True)
class Reads:
    """What a module has read.

    Attributes:
        looks: the `state` of each path when it was first read.
        missed: environment variables, and files in the user's home, that are hidden from kernels,
            each with the `file:line` of the first request.
        unseen: actions that have no digest, in words.
    """

    looks: dict[Look, str | None] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)

    def __copy__(self) -> Reads:
        return Reads({**self.looks}, {**self.missed}, {*self.unseen})

    def look(self, kind: str, path: str) -> None:
        """Record a read, with the current state of the path."""
        if (kind, path) not in self.looks:
            self.looks[kind, path] = state(kind, path)


by_module: dict[str, Reads] = {}


def of_module(module: str) -> Reads:
    """Return the reads of a module, which may be added to."""
    return by_module.setdefault(module, Reads())


def reads_of(modules: Iterable[str]) -> Reads:
    """Return what modules have read so far, combined."""
    total = Reads()
    for read in filter(None, map(by_module.get, modules)):
        # A copy: another thread of the user's may add reads.
        for look, seen in read.looks.copy().items():
            if total.looks.setdefault(look, seen) != seen:
                total.looks[look] = _DIFFERENT
        total.missed = {**read.missed, **total.missed}
        total.unseen |= read.unseen
    return total


def missed_so_far() -> dict[str, str]:
    """Return what any module requested and could not see, with the place of the request."""
    return {
        name: place for read in by_module.copy().values() for name, place in read.missed.items()
    }


def state(kind: str, path: str) -> str | None:
    """Return a cheap description of a path, to notice changes while compiling."""
    if kind == FOLDER:
        return listing_digest(Path(path))
    return _link_target(path) if kind == LINK else _kind_of(path)


def digest_of(label: str, path: Path, digest: Callable[[Path], str]) -> str | None:
    """Return the value of a label in a manifest.

    Args:
        label: a label from `label_of`.
        path: its path, from `path_of`.
        digest: returns the digest of a file's contents, or raises a `PallascError`.
    """
    kind = f"{label.partition(':')[0]}:"
    if kind in (IS, LINK):
        return state(kind, str(path))
    if kind == FOLDER or label.endswith(os.sep):
        return listing_digest(path)
    try:
        return digest(path)
    except PallascError:
        return _kind_of(str(path))  # a folder, or an unreadable file


def change_of(label: str) -> str:
    """Return a sentence that says that the value of a label has changed."""
    if label.startswith(LINK):
        return f"{name_of(label)} no longer links to the same place"
    if label.startswith(IS):
        return f"{name_of(label)} was tested for and has been created, removed or replaced"
    return f"{name_of(label)} was read and has changed"


def name_of(label: str) -> str:
    """Return the path in a label, for messages."""
    return label.partition(":")[2].removeprefix(INSTALLED)


def package_in(label: str) -> str:
    """Return the installed package that a label lies in, "" for other paths."""
    place = label.removeprefix(IS).removeprefix(LINK)
    inside = place.removeprefix(INSTALLED)
    return "" if inside == place else inside.partition(os.sep)[0]


def _kind_of(path: str) -> str | None:
    """Return the kind of what is at a path, following links."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def _link_target(path: str) -> str | None:
    """Return the digest of a link's target; for anything else, its kind."""
    try:
        return f"link to {_sha256(os.readlink(path))}"
    except (OSError, ValueError):
        return _kind_of(path)


def _sha256(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def listing_digest(folder: Path) -> str | None:
    """Return the digest of the names in a folder except bytecode; None if it does not exist."""
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):
        return None
    # Importing a module next to it writes bytecode.
    sources = [name for name in names if name != "__pycache__" and not name.endswith(".pyc")]
    return _sha256("\0".join(sources))


def label_of(kind: str, path: str, base_dir: str) -> str:
    """Return a label that stays valid when the spec's folder, or Python's, is moved."""
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
    """Return the part of a path that is a link to the spec's folder, "" if there is none."""
    real = os.path.realpath(base_dir)
    if not _holds(real, os.path.realpath(path)):
        return ""
    parents = [path, *map(str, Path(path).parents)]
    return next((p for p in reversed(parents) if os.path.realpath(p) == real), "")


def contains_inputs(path: str, base_dir: str) -> bool:
    """Tell whether a path contains the spec's folder or that of installed packages."""
    return any(_holds(path, place) for place in (base_dir, *site_folders()))


def path_of(label: str, base_dir: str) -> Path:
    """Return the current path of a label; it need not exist."""
    kind, _, name = label.partition(":")
    if kind in _IN_TWO_PARTS and name.startswith(INSTALLED):
        kind, _, name = name.partition(":")
    if f"{kind}:" != INSTALLED:
        return Path(base_dir) / name
    places = [Path(folder) / name for folder in site_folders()]
    return next((place for place in places if os.path.lexists(place)), places[0])
