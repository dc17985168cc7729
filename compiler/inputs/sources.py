"""What a compilation read: files and packages, and what it looked for in vain."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

_READ = ("file:", "site:")
"""How the labels of `opened` begin whose contents count."""


@dataclass(slots=True)
class Sources:
    """What a closure consists of.

    Attributes:
        files: source files by label: `module:<name>` for what Python finds by that name, else
            `file:<path relative to the spec's folder>`; `closure.locate` finds it again.
        packages: names of installed packages; dotted for one in a shared namespace.
        unknown: modules that have no file, and so no digest.
        absent: modules that were asked for in vain.
        folders: where modules were looked for first.
        hidden: modules of Python that a file in front of them hides; None where nobody looked.
        opened: other files and folders that were read, by the labels of `reads`.
        missed: environment variables, and files of the user's home (`~/…`), that were asked for and
            that kernels do not get to see, with the place of who asked: `file:line`.
        unseen: sentences about what was done that has no digest.
        altered: labels of what was no longer, at the end, as it was when it was looked at.
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
        """Return the labels of what was read and changed after a time, or is gone."""
        changed = [label for label, path in self.files.items() if _touched_ns(path) >= start_ns]
        read = (n for n, path in self.opened.items() if n.startswith(_READ) and path.is_file())
        changed += [label for label in read if _touched_ns(self.opened[label]) >= start_ns]
        return changed + sorted(self.altered)


def _touched_ns(path: Path) -> int:
    """Return when a file was last changed, infinitely late if that cannot be said."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return sys.maxsize
    return max(status.st_mtime_ns, status.st_ctime_ns)
