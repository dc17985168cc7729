"""Lists the areas of a store: names, identities and sizes, without reading a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pallasc.cache import files, format
from pallasc.cache.folders import Folders
from pallasc.cache.openat import RefusedError, is_shard


class Fault(NamedTuple):
    """Something that could not be looked at, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(slots=True)
class Scan:
    """A walk through the areas of one store.

    Attributes:
        folders: of the store.
        faults: why something could not be looked at; empty after a complete walk.
        foreign: places in the areas that are not of the store's grammar.
    """

    folders: Folders
    faults: list[Fault] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def area(self, area: str) -> Iterator[tuple[str, files.Identity]]:
        """Yield name and identity of each file of an area, sorted by name."""
        for shard, _ in self._list(area):
            place = f"{area}/{shard}"
            if not is_shard(shard):
                self.foreign.append(place)
                continue
            for name, status in self._list(place, look=True):
                fits = name.startswith(shard) and format.is_name(name)
                if fits and status is not None and stat.S_ISREG(status.st_mode):
                    yield name, files.identity(status)
                elif status is not None:
                    self.foreign.append(f"{place}/{name}")

    def packs(self) -> Iterator[tuple[str, files.Identity, int]]:
        """Yield name and identity of each pack, and the size of what says what is missing there."""
        listed = {
            name: status
            for name, status in self._list(format.PACKS, look=True)
            if status is not None
        }
        for name, status in listed.items():
            digest = name.removesuffix(format.GONE)
            if not format.is_name(digest) or not stat.S_ISREG(status.st_mode):
                self.foreign.append(f"{format.PACKS}/{name}")
            elif name == digest:
                gone = listed.get(name + format.GONE)
                yield name, files.identity(status), 0 if gone is None else gone.st_size

    def _list(self, folder: str, *, look: bool = False) -> list[tuple[str, os.stat_result | None]]:
        """Return the names in a folder, with what lstat(2) says of them if asked for."""
        listing = []
        try:
            with self.folders.opened(folder) as descriptor, os.scandir(descriptor) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    status = self._look(folder, entry) if look else None
                    if status is not None or not look:
                        listing.append((entry.name, status))
        except FileNotFoundError:
            return []
        except RefusedError as error:
            if "/" in folder:
                self.foreign.append(folder)
            else:
                self._fault(folder, "cannot be listed", error)
        except OSError as error:
            self._fault(folder, "cannot be listed", error)
            return []
        return listing

    def _look(self, folder: str, entry: os.DirEntry[str]) -> os.stat_result | None:
        try:
            return entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._fault(f"{folder}/{entry.name}", "cannot be looked at", error)
            return None

    def _fault(self, place: str, what: str, error: OSError) -> None:
        self.faults.append(Fault(self.folders.path(place), f"{what}: {error.strerror or error}"))
