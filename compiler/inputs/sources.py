"""Sources in manifests: the labels of files that kernels read, and how to find changed ones.

Labels, each with its value in a manifest's `opened`; null if the path does not exist:

* `file:<path>`: a file that was read; digest of its contents
* `folder:<path>`: a folder that was listed; digest of the names in it
* `is:<path>`: a path that was tested; whether it is a file, a folder, or something else
* `link:<path>`: a link that was read; digest of its target, or the kind of file if it is not a link
* `site:<path>`: a file that was read in the folder of installed packages, or with a trailing slash,
  a folder that was listed; tested paths and links have `is:site:<path>` and `link:site:<path>`

Paths below the spec's folder are relative to it. Links in them are not resolved, so a changed link
is noticed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.toolchain.identity import located_digest
from pallasc.compiler.toolchain.modules import Place, hidden, locate_module, site_folders
from pallasc.errors import PallascError

FILE, FOLDER, IS, LINK, INSTALLED = "file:", "folder:", "is:", "link:", "site:"
_SHADOWED = "different modules of Python are shadowed by files of the same name"


class SourceChange(Struct, frozen=True):
    """A source that differs from what a manifest recorded.

    Attributes:
        sentence: the change in words.
        label: label in `files` of the manifest; "" for sources that other fields list.
    """

    sentence: str
    label: str = ""


class CurrentSources(Struct, frozen=True):
    """The current state of the sources that manifests list.

    Attributes:
        place: folders in which files and modules are searched for.
        digests: computes digests of files.
        unchecked: if not None, missing packages do not count as changed, and their names are added
            here.
    """

    place: Place
    digests: FileDigests
    unchecked: set[str] | None = None

    def first_change(self, manifest: Manifest) -> SourceChange | None:
        """Return the first source that has changed, None if none has."""
        return next(self.changes(manifest), None)

    def changes(self, manifest: Manifest) -> Iterator[SourceChange]:
        """Yield each source that has changed."""
        try:
            labels, names = sorted(manifest.files), [*manifest.packages]
            locate = partial(locate_module, folders=self.place.folders)
            files = dict(zip(labels, map(self.place.locate, labels), strict=True))
            packages = dict(zip(names, map(locate, names), strict=True))
            importable = [*filter(locate, manifest.absent)]
            shadowed = None if manifest.hidden is None else hidden(self.place.folders)
            yield from self._files(manifest, files)
            yield from self._packages(manifest, packages)
            yield from self._opened(manifest)
            for name in importable:
                yield SourceChange(f"{name} was missing and can be imported now")
            if manifest.hidden != shadowed:
                yield SourceChange(_SHADOWED)
        except (OSError, ValueError) as error:  # a name that no file or package can have
            yield SourceChange(f"a source listed in its manifest cannot be read: {error}")

    def _files(
        self, manifest: Manifest, found: Mapping[str, Path | None]
    ) -> Iterator[SourceChange]:
        for label, path in found.items():
            now = None if path is None else digest_of(FILE, path, self.digests.digest)
            if now != manifest.files[label]:
                sentence = _file_sentence(label, path if now else None, self.place.base_dir)
                yield SourceChange(sentence, label)

    def _packages(
        self, manifest: Manifest, found: Mapping[str, Path | None]
    ) -> Iterator[SourceChange]:
        for name, path in found.items():
            now = None if path is None else located_digest(path, self.digests.digest)
            if now is None and self.unchecked is not None:
                self.unchecked.add(name)
            elif now != manifest.packages[name]:
                yield SourceChange(f"{name} {'is gone' if now is None else 'has changed'}")

    def _opened(self, manifest: Manifest) -> Iterator[SourceChange]:
        for label, recorded in sorted(manifest.opened.items()):
            now = digest_of(label, path_of(label, self.place.base_dir), self.digests.digest)
            package = package_in(label)
            if self.unchecked is not None and now is None and recorded is not None and package:
                self.unchecked.add(package)
            elif now != recorded:
                changed = "was read and has changed"
                if recorded is None or now is None:
                    changed = "has been created since" if recorded is None else "is gone"
                yield SourceChange(f"{name_of(label)} {changed}")


def _file_sentence(label: str, path: Path | None, base_dir: str) -> str:
    """Describe a changed file: `helper (lib/helper.py) has changed`, `kernel.py is gone`."""
    kind, _, name = label.partition(":")
    if path is None:
        return f"{name} is gone"
    if kind != "file":
        inside = path.relative_to(base_dir) if path.is_relative_to(base_dir) else path
        name = f"{name} ({inside})"
    return f"{name} has changed"


# ---- values of labels


def digest_of(label: str, path: Path, digest: Callable[[Path], str]) -> str | None:
    """Return the value of a label in a manifest.

    Args:
        label: a label from `label_of`.
        path: its path, from `path_of`.
        digest: returns the digest of a file's contents, or raises a `PallascError`.
    """
    kind = _kind(label)
    if kind in (IS, LINK):
        return state(kind, str(path))
    if kind == FOLDER or label.endswith(os.sep):
        return state(FOLDER, str(path))
    try:
        return digest(path)
    except PallascError:
        return state(IS, str(path))  # a folder, or an unreadable file


def state(kind: str, path: str) -> str | None:
    """Return a cheap description of a path, None if it does not exist."""
    if kind == FOLDER:
        return listing_digest(Path(path))
    try:
        if kind == LINK and os.path.islink(path):
            return f"link to {_sha256(os.readlink(path))}"
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def listing_digest(folder: Path) -> str | None:
    """Return the digest of the names in a folder except bytecode; None if it does not exist."""
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError):
        return None
    # Importing a module of the folder writes bytecode there.
    sources = [name for name in names if name != "__pycache__" and not name.endswith(".pyc")]
    return _sha256("\0".join(sources))


def _sha256(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


# ---- labels of paths


def _kind(label: str) -> str:
    return f"{label.partition(':')[0]}:"


def name_of(label: str) -> str:
    """Return the path in a label, for messages."""
    return label.partition(":")[2].removeprefix(INSTALLED)


def package_in(label: str) -> str:
    """Return the installed package that a label is in, "" for other paths."""
    place = label.removeprefix(IS).removeprefix(LINK)
    return place.removeprefix(INSTALLED).partition(os.sep)[0] if place.startswith(INSTALLED) else ""


def label_of(kind: str, path: str, base_dir: str) -> str:
    """Return a label that stays valid when the spec's folder, or Python's, is moved."""
    for folder in site_folders():
        if path.startswith(folder):
            place = f"{INSTALLED}{path.removeprefix(folder)}"
            if kind in (IS, LINK):
                return f"{kind}{place}"
            return f"{place}{os.sep}" if kind == FOLDER else place
    return f"{kind}{_relative(path, base_dir)}"


def _relative(path: str, base_dir: str) -> str:
    """Return a path relative to the spec's folder if it is inside, links kept."""
    real = os.path.realpath(base_dir)
    base = next((base for base in (base_dir, real) if _holds(base, path)), "")
    return os.path.relpath(path, base) if base else path


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def contains_inputs(path: str, base_dir: str) -> bool:
    """Return True if a path contains the spec's folder or a folder of installed packages."""
    return any(_holds(path, place) for place in (base_dir, *site_folders()))


def path_of(label: str, base_dir: str) -> Path:
    """Return the current path of a label; it need not exist."""
    place = label.removeprefix(IS).removeprefix(LINK)
    if not place.startswith(INSTALLED):
        return Path(base_dir) / label.partition(":")[2]
    name = place.removeprefix(INSTALLED)
    places = [Path(folder) / name for folder in site_folders()]
    return next((place for place in places if os.path.lexists(place)), places[0])
