"""What a compilation read, and what it looked for without finding it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pallasc.cache.stat_digest import file_holding

_READ = ("file:", "site:")
"""Prefixes of labels in `opened` whose contents were read."""


@dataclass(slots=True)
class Sources:
    """The inputs of a compilation.

    Attributes:
        files: source files by label: `module:<name>` if Python finds it by that name, else
            `file:<path relative to the spec's folder>`; `Place.locate` finds them again.
        packages: names of installed packages; dotted if in a shared namespace.
        unknown: modules without a file, which have no digest.
        absent: modules whose import failed.
        folders: folders that were searched for modules first.
        hidden: modules of Python that a file shadows; None if that was not checked.
        opened: other files and folders that were read, by the labels of `reads`.
        missed: environment variables, and files in the user's home (`~/…`), that were requested but
            are hidden from kernels, with the `file:line` of the request.
        unseen: actions that have no digest, in words.
        altered: labels of inputs that changed while the compilation ran.
    """

    files: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    folders: tuple[str, ...] = ()
    hidden: list[str] | None = None
    opened: dict[str, Path] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    altered: set[str] = field(default_factory=set)

    def changed_since(self, start_ns: int) -> list[str]:
        """Return the labels of inputs that were changed or removed since a time."""
        changed = [label for label, path in self.files.items() if _touched_ns(path) >= start_ns]
        read = (x for x, path in self.opened.items() if x.startswith(_READ) and path.is_file())
        changed += [label for label in read if _touched_ns(self.opened[label]) >= start_ns]
        return changed + sorted(self.altered)


def _touched_ns(path: Path) -> int:
    """Return when a file was last changed, `sys.maxsize` if unknown."""
    try:
        status = os.stat(file_holding(str(path)))
    except (OSError, ValueError):
        return sys.maxsize
    return max(status.st_mtime_ns, status.st_ctime_ns)
