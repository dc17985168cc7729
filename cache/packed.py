"""The packs of a store: found, opened, read; what counts as missing in them.

A pack lies under its name in `packs/`, and beside it, in `name.gone`, the files in it that were
found damaged since: a line each, appended, so that they are missing for every later reader. A
line that is not understood means nothing: the file in the pack is found damaged once more.
"""

from __future__ import annotations

import contextlib
import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pallasc.cache import files, format
from pallasc.cache.folders import Folders
from pallasc.cache.packs.format import AREAS, packed_name, unpacked_name
from pallasc.cache.packs.reader import Pack, open_pack
from pallasc.errors import CorruptError

FOLDER, GONE = format.PACKS, format.GONE
_APPEND = os.O_WRONLY | os.O_APPEND


class OpenPack(NamedTuple):
    """A pack, and the packed names of what counts as missing in it."""

    pack: Pack
    gone: set[bytes]

    def has(self, packed: bytes) -> bool:
        """Tell whether it holds a file that does not count as missing."""
        return self.pack.has(packed) and packed not in self.gone

    def listed(self, area: str) -> list[str]:
        """Return the names of an area's files that do not count as missing, sorted."""
        code = AREAS.index(area)
        names = (packed for packed in self.pack.packed_names() if packed[0] == code)
        return [packed[1:].hex() for packed in names if packed not in self.gone]


class Packed:
    """The packs of one store, opened when something is asked for that no other file has.

    Args:
        folders: of the store.
        tell: is called with each fault: the pack's place, and what is wrong, in words.
        read_only: leave what is damaged where it is.
    """

    def __init__(
        self, folders: Folders, tell: Callable[[str, str], None], *, read_only: bool = False
    ) -> None:
        self._read_only = read_only
        self._folders = folders
        self._path = str(folders.path(FOLDER))
        self._tell = tell
        self._seen: tuple[int, int] | None = None
        self._open: dict[str, OpenPack] = {}
        self._refused: set[str] = set()
        self._held: dict[str, OpenPack] = {}

    @property
    def packs(self) -> Mapping[str, OpenPack]:
        """Return the packs that can be read, by name; they are listed again where they changed.

        Raises:
            OSError: they cannot be listed.
        """
        self._refresh()
        return self._open

    def read(self, area: str, name: str, *, known: bool = False) -> files.Content | None:
        """Return a file that a pack holds; whether it fits its name is not verified.

        Args:
            area: of the file.
            name: of the file.
            known: look only into packs that are open already.

        Raises:
            OSError: a pack cannot be read.
        """
        if not known:
            self._refresh()
        packed = packed_name(area, name)
        for digest, opened in self._open.items():
            if opened.has(packed):
                data = self._read(digest, opened, area, name)
                if data is not None:
                    self._prefer(digest)
                    return files.Content(data, files.IN_PACK)
        return None

    def holders(self, area: str, name: str) -> list[str]:
        """Return the names of the packs that hold a file.

        Raises:
            OSError: they cannot be listed.
        """
        self._refresh()
        packed = packed_name(area, name)
        return [digest for digest, opened in self._open.items() if opened.has(packed)]

    def names(self, area: str) -> set[str]:
        """Return the names of an area's files that packs hold.

        Raises:
            OSError: they cannot be listed.
        """
        self._refresh()
        return {name for opened in self._open.values() for name in opened.listed(area)}

    def beginning(self, area: str, prefix: str) -> set[str]:
        """Return the names of an area's files in packs that begin with an even number of digits.

        Raises:
            OSError: they cannot be listed.
        """
        self._refresh()
        start = packed_name(area, prefix.ljust(64, "0"))[: 1 + len(prefix) // 2]
        found = set()
        for opened in self._open.values():
            names = opened.pack.packed_names()
            for at in range(bisect_left(names, start), len(names)):
                if not names[at].startswith(start):
                    break
                if names[at] not in opened.gone:
                    found.add(names[at][1:].hex())
        return found

    def read_all(self, digest: str, area: str) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of each file of an area in a pack, as far as they can be read.

        Raises:
            OSError: the pack cannot be read.
        """
        opened = self.packs.get(digest)
        if opened is None:
            return
        for name in opened.listed(area):
            data = self._read(digest, opened, area, name)
            if data is not None:
                yield name, data

    def forget(self, area: str, name: str) -> None:
        """Have a file count as missing in all packs; never raises for the disk."""
        with contextlib.suppress(OSError):
            for digest in self.holders(area, name):
                self._forget(digest, self._open[digest], [packed_name(area, name)])

    def touch(self, area: str, name: str, touched: set[str]) -> bool:
        """Note that a pack which holds a file was used now; tell whether there is one.

        Args:
            area: of the file.
            name: of the file.
            touched: packs whose time was set by this user already; it is added here.

        Raises:
            FileNotFoundError: the pack was removed this moment.
            OSError: the time of the pack cannot be set.
        """
        holders = self.holders(area, name)
        if holders and touched.isdisjoint(holders):
            self._folders.touch(f"{FOLDER}/{holders[0]}")
            touched.add(holders[0])
        return bool(holders)

    def relist(self) -> None:
        """List and open the packs anew at the next use."""
        self._open, self._refused, self._seen = dict(self._held), set(), None

    def hold(self, pack: Pack) -> None:
        """Have a pack count as one of the store's for as long as this object lives."""
        self._held[pack.digest] = OpenPack(pack, set())
        self.relist()

    def _refresh(self) -> None:
        """List the packs if the folder has changed; open new ones, close those that are gone."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            self._open, self._seen = dict(self._held), None
            return
        seen = status.st_ino, status.st_mtime_ns
        if seen == self._seen:
            return
        names = [name for name in self._folders.names(FOLDER) if format.is_name(name)]
        opened = {name: pack for name in names if (pack := self._opened(name)) is not None}
        self._open, self._seen = {**self._held, **opened}, seen

    def _opened(self, digest: str) -> OpenPack | None:
        if digest in self._open:
            return self._open[digest]
        if digest in self._refused:
            return None
        place = f"{FOLDER}/{digest}"
        identity = None
        try:
            descriptor = self._folders.open_file(place)
            try:
                status = os.fstat(descriptor)
                identity = files.identity(status)
                if not stat.S_ISREG(status.st_mode):
                    raise CorruptError("not a regular file")
            except BaseException:
                os.close(descriptor)
                raise
            pack = open_pack(descriptor, digest=digest)
            return OpenPack(pack, set(read_gone(self._folders, digest)))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            self._refused.add(digest)
            self._tell(place, f"is corrupt and counts as missing: {error.message}")
            if not self._read_only:
                put_away(self._folders, digest, error.message, identity)
            return None
        except OSError as error:
            self._refused.add(digest)
            self._tell(place, f"cannot be read: {error.strerror or error}")
            return None

    def _read(self, digest: str, opened: OpenPack, area: str, name: str) -> bytes | None:
        try:
            return opened.pack.read(area, name)
        except CorruptError as error:
            place = opened.pack.find(area, name)
            lost = opened.pack.names_in(-1 if place is None else place.frame)
            self._forget(digest, opened, [packed_name(*names) for names in lost])
            self._tell(
                f"{FOLDER}/{digest}",
                f"is damaged, and {len(lost):,} files in it count as missing: {error.message}",
            )
            return None

    def _forget(self, digest: str, opened: OpenPack, packed: Iterable[bytes]) -> None:
        new = [name for name in packed if name not in opened.gone]
        opened.gone.update(new)
        if self._read_only:
            return
        lines = "".join("{} {}\n".format(*unpacked_name(name)) for name in new)
        with contextlib.suppress(OSError):  # then every reader finds it damaged
            descriptor = files.open_new(self._folders, f"{FOLDER}/{digest}{GONE}", _APPEND)
            try:
                os.write(descriptor, lines.encode("ascii"))
            finally:
                os.close(descriptor)

    def _prefer(self, digest: str) -> None:
        """Look into this pack first from now on: files of one variant lie in one pack."""
        opened = self._open
        if digest in opened and next(iter(opened)) != digest:
            self._open = {digest: opened[digest], **opened}


def read_gone(folders: Folders, digest: str) -> Iterator[bytes]:
    """Yield the packed names of the files that count as missing in a pack."""
    with contextlib.suppress(OSError):
        place = f"{FOLDER}/{digest}{GONE}"
        file = files.read(folders, place, limit_bytes=format.MAX_RECORD_BYTES)
        for line in (b"" if file is None else file.data).splitlines():
            area, _, name = line.decode("ascii", "replace").partition(" ")
            if area in AREAS and format.is_name(name):
                yield packed_name(area, name)


def put_away(folders: Folders, digest: str, reason: str, identity: files.Identity | None) -> None:
    """Move a pack to `quarantine/` and write down why; never raises for the disk."""
    aside = f"{files.QUARANTINE}/{FOLDER}-{digest}-{os.urandom(8).hex()}"
    files.put_away(folders, f"{FOLDER}/{digest}", aside, reason, identity)
    with contextlib.suppress(OSError):
        folders.unlink(f"{FOLDER}/{digest}{GONE}")
