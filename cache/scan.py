"""What lies in the areas of a store: names, identities and sizes, without reading a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pallasc.cache import files, format
from pallasc.errors import ToolError


class Fault(NamedTuple):
    """Something that could not be looked at, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def check_folder(folder: Path) -> None:
    """Make sure that a folder can be listed, or is not there.

    Raises:
        ToolError: something else has its name, or the file system refuses.
    """
    try:
        with os.scandir(folder):
            return
    except FileNotFoundError:
        return
    except OSError as error:
        raise ToolError(
            f"the store {folder} cannot be read: {error.strerror or error}.",
            hint="Name another folder with --store or PALLASC_CACHE_DIR.",
        ) from error


@dataclass(slots=True)
class Scan:
    """A walk through the areas of one store.

    Attributes:
        folder: the version's folder.
        faults: why something could not be looked at; empty after a complete walk.
        foreign: paths in the areas that are not of the store's grammar.
    """

    folder: Path
    faults: list[Fault] = field(default_factory=list)
    foreign: list[Path] = field(default_factory=list)

    def area(self, area: str) -> Iterator[tuple[str, files.Identity]]:
        """Give name and identity of each file of an area, sorted by name."""
        for shard in self._list(self.folder / area):
            if not self._is_shard(shard):
                self.foreign.append(Path(shard.path))
                continue
            for entry in self._list(Path(shard.path)):
                found = self._look(shard.name, entry)
                if found is not None:
                    yield entry.name, found

    def _list(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._fault(folder, "cannot be listed", error)
            return []

    def _is_shard(self, entry: os.DirEntry[str]) -> bool:
        if len(entry.name) != 2 or not format.is_name(entry.name * 32):
            return False
        try:
            return entry.is_dir(follow_symlinks=False)
        except OSError as error:
            self._fault(Path(entry.path), "cannot be looked at", error)
            return True

    def _look(self, shard: str, entry: os.DirEntry[str]) -> files.Identity | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fault(Path(entry.path), "cannot be looked at", error)
            return None
        fits = entry.name.startswith(shard) and format.is_name(entry.name)
        if not fits or not stat.S_ISREG(status.st_mode):
            self.foreign.append(Path(entry.path))
            return None
        return files.identity(status)

    def _fault(self, path: Path, what: str, error: OSError) -> None:
        self.faults.append(Fault(path, f"{what}: {error.strerror or error}"))
