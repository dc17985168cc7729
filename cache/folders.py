"""The folders of a store: all that the store opens, moves or removes goes through here.

A store may be shared, or restored from an archive, so there may be anything in the place of its
folders: a link to somebody's home, a mount, a pipe. Every folder is opened from the one above it,
without following links, and used through its descriptor. So nothing outside the store is ever
listed, moved or removed, even if a folder is exchanged meanwhile. Only the store's root may be a
link, because the user names it.

A folder is the store's own if it is a folder, in the mount of the version's folder (where there is
no /proc to ask, on its file system), and belongs to this user, to root, to the owner of the folder
above the areas, or, where that folder is shared by its group (mode 2775), to anybody with the same
group.

A place is a text below the version's folder: `tmp/x`, `ac/ab/ab…`, `index.sqlite`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from pallasc.cache import format
from pallasc.cache.openat import (
    FILE,
    FOLDER,
    RefusedError,
    checked,
    close,
    fault_of,
    is_shard,
    make_folder,
    make_root,
    mount_of,
    mounts_below,
    naming,
    no_shards,
    refusal,
    remove_tree,
    sync,
)
from pallasc.errors import CorruptError, ToolError

_SHARDED = (format.BLOBS, format.ARTIFACTS, format.MANIFESTS)
_MOST_NAMED = 5


class Folders:
    """The folders below one version's folder. Making the object touches nothing.

    Descriptors for reading are cached while the object lives; writing, moving and removing open the
    folders anew. Errors name the whole path.

    Args:
        folder: the version's folder, `root/v1`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._text = str(folder)
        self._cached: dict[str, tuple[int, os.stat_result]] = {}
        self._stale: list[int] = []
        self._own: dict[str, tuple[int, int]] = {}

    def __del__(self) -> None:
        """Close what was kept."""
        cached = [descriptor for descriptor, _ in self._cached.values()]
        for descriptor in (*cached, *self._stale):
            close(descriptor)

    def path(self, place: str) -> Path:
        """Return the path of a place, for messages."""
        return self.folder / place

    @contextlib.contextmanager
    def opened(self, folder: str = "", *, make: bool = False) -> Iterator[int]:
        """Give a descriptor of a folder, "" for the version's own.

        Args:
            folder: its place.
            make: make it, and those above it, where they are missing.

        Raises:
            RefusedError: something else lies there.
            OSError: it is missing, or the file system refuses.
        """
        descriptor = self._open(folder, make)
        try:
            yield descriptor
        finally:
            close(descriptor)

    def open_file(self, place: str, flags: int = os.O_RDONLY) -> int:
        """Open a file for reading, through a cached descriptor of its area; pipes do not block.

        Raises:
            RefusedError: something else is in the place of a folder above it.
            OSError: it is missing, or the file system refuses.
        """
        folder, _, name = place.rpartition("/")
        below = -1
        try:
            above, below = self._reading(folder)
            return os.open(checked(name), flags | FILE, dir_fd=above)
        except OSError as error:
            if error.errno == errno.ENOENT and self._has_moved(folder):
                return self.open_file(place, flags)
            if not isinstance(error, RefusedError):
                error.filename = f"{self._text}/{place}"
            raise
        finally:
            if below >= 0:
                close(below)

    def names(self, folder: str = "") -> list[str]:
        """Return the names in a folder, sorted; none where it is missing.

        Raises:
            RefusedError: something else lies there.
            OSError: it cannot be listed.
        """
        try:
            with self.opened(folder) as descriptor, naming(self.path(folder)):
                return sorted(os.listdir(descriptor))
        except FileNotFoundError:
            return []

    def status(self, place: str) -> os.stat_result:
        """Return what lstat(2) says of a file.

        Raises:
            RefusedError: something else is in the place of a folder above it.
            OSError: it is missing, or the file system refuses.
        """
        with self._above(place) as (descriptor, name):
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)

    def touch(self, place: str, *, time_ns: int | None = None) -> None:
        """Set the times of a file, to now by default; errors as of `status`.

        A build touches each artifact that it uses, so a shard's mount is checked only once.
        """
        times = {} if time_ns is None else {"ns": (time_ns, time_ns)}
        folder, _, name = place.rpartition("/")
        above, below = self._reading(folder)
        try:
            if below >= 0:
                self._check_mount(folder, below)
            os.utime(checked(name), **times, dir_fd=above, follow_symlinks=False)
        except OSError as error:
            error.filename = str(self.path(place))
            raise
        finally:
            if below >= 0:
                close(below)

    def unlink(self, place: str) -> None:
        """Remove a file's name, or a link itself; errors as of `status`."""
        with self._above(place) as (descriptor, name):
            os.unlink(name, dir_fd=descriptor)

    def rename(self, place: str, to: str) -> None:
        """Move something, replacing what is there; the folder of `to` is made.

        Raises:
            RefusedError: something else is in the place of a folder above one of them.
            OSError: it is missing, or the file system refuses.
        """
        with self._above(place) as (source, old), self._above(to, make=True) as (target, new):
            os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)

    def link(self, place: str, to: str) -> None:
        """Give a file a second name, which must be free; errors as of `rename`."""
        with self._above(place) as (source, old), self._above(to, make=True) as (target, new):
            os.link(old, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def remove_tree(self, place: str) -> None:
        """Remove a folder with all that is in it; no link is followed, no mount entered.

        Raises:
            OSError: a mount lies in it, or the file system refuses; a part may be gone.
        """
        with self._above(place) as (descriptor, name):
            remove_tree(descriptor, name)

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable, where the file system can.

        Raises:
            OSError: if the disk fails.
        """
        with contextlib.suppress(PermissionError), self.opened(folder) as descriptor:
            sync(descriptor, self.path(folder))

    def check(self, *, readable: bool = False) -> None:
        """Check that nothing else is in the place of the store's folders.

        Args:
            readable: the store must be readable, or not exist.

        Raises:
            CorruptError: something else is; the message names it.
            ToolError: the store itself cannot be listed.
        """
        try:
            faults = [f"{self.path(place)} is {reason}" for place, reason in self.refused()]
        except ToolError:
            if readable:
                raise
            return
        if not faults:
            return
        more = f"; and {len(faults) - _MOST_NAMED:,} more" if len(faults) > _MOST_NAMED else ""
        raise CorruptError(
            f"this is not a store that pallasc made: {'; '.join(faults[:_MOST_NAMED])}{more}. "
            "Nothing was read, changed or removed there.",
            hint="See where it comes from. To move it aside: pallasc cache verify --repair, with "
            "the same store.",
        )

    def refused(self) -> Iterator[tuple[str, str]]:
        """Yield place and kind of each thing in the place of a folder of the store.

        Raises:
            CorruptError: the version's folder itself is refused.
            ToolError: it cannot be listed.
        """
        try:
            descriptor = self._open("", False)
        except FileNotFoundError:
            return
        except RefusedError as error:
            raise CorruptError(
                f"{self.folder} is {error.strerror}; nothing was read or changed there.",
                hint="Remove it, or name another folder with --store or PALLASC_CACHE_DIR.",
            ) from error
        except OSError as error:
            raise ToolError(
                f"the store {self.folder} cannot be read: {error.strerror or error}.",
                hint="Name another folder with --store or PALLASC_CACHE_DIR.",
            ) from error
        try:
            mounts = mounts_below(descriptor)
            for area in format.FOLDERS:
                yield from self._refused_in(area, mounts)
        finally:
            close(descriptor)

    # ---- inside

    def _refused_in(self, area: str, mounts: list[str]) -> Iterator[tuple[str, str]]:
        try:
            with self.opened(area) as descriptor:
                if area in _SHARDED:
                    yield from no_shards(descriptor, area)
                    shards = (place.rpartition("/") for place in mounts)
                    yield from (
                        (f"{area}/{name}", "a mount")
                        for above, _, name in shards
                        if above == area and is_shard(name)
                    )
        except RefusedError as error:
            yield area, str(error.strerror)
        except OSError:  # it is missing, or that is told where it is used
            return

    @contextlib.contextmanager
    def _above(self, place: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Give a descriptor of the folder that a file lies in, and the file's name."""
        folder, _, name = place.rpartition("/")
        with self.opened(folder, make=make) as descriptor, naming(self.path(place)):
            yield descriptor, checked(name)

    def _open(self, folder: str, make: bool) -> int:
        descriptor = self._version(make)
        try:
            version, mount, place = os.fstat(descriptor), mount_of(descriptor), ""
            for name in folder.split("/") if folder else ():
                place = f"{place}/{name}" if place else name
                below = self._open_below(descriptor, name, place, version, make=make)
                close(descriptor)
                descriptor = below
                if mount_of(descriptor) != mount:
                    raise RefusedError(errno.EXDEV, "a mount", str(self.path(place)))
        except BaseException:
            close(descriptor)
            raise
        return descriptor

    def _version(self, make: bool) -> int:
        """Open the version's folder; the user may have named a root that is a link."""
        root = self.folder.parent
        if make:
            make_root(root)
        with naming(root):
            above = os.open(root, FOLDER & ~os.O_NOFOLLOW)
        try:
            return self._open_below(above, self.folder.name, "", os.fstat(above), make=make)
        finally:
            close(above)

    def _open_below(
        self, above: int, name: str, place: str, version: os.stat_result, *, make: bool = False
    ) -> int:
        try:
            descriptor = os.open(checked(name), FOLDER, dir_fd=above)
        except OSError as error:
            error.filename = f"{self._text}/{place}"
            if error.errno == errno.ENOENT and make:
                with naming(self.path(place)):
                    make_folder(name, above)
                return self._open_below(above, name, place, version)
            raise refusal(error, name, above) from None
        try:
            fault = fault_of(os.fstat(descriptor), version)
            if fault:
                raise RefusedError(errno.EPERM, fault, str(self.path(place)))
        except BaseException:
            close(descriptor)
            raise
        return descriptor

    def _reading(self, folder: str) -> tuple[int, int]:
        """Return a descriptor of a folder, and the one to close afterwards, -1 for none.

        That of an area is kept; that of a shard is not, there are too many.
        """
        area, _, shard = folder.partition("/")
        if area not in self._cached:  # a store that a remote fills looks for thousands in vain
            os.stat(f"{self._text}/{area}", follow_symlinks=False)
        above, _ = self._cached.get(area) or self._keep(area)
        if not shard:
            return above, -1
        try:
            # Its owner matters only where something is written: what is read is verified.
            below = os.open(checked(shard), FOLDER, dir_fd=above)
        except OSError as error:
            error.filename = f"{self._text}/{folder}"
            raise refusal(error, shard, above) from None
        return below, below

    def _check_mount(self, folder: str, below: int) -> None:
        """Refuse a shard that is a mount; checked once, as long as it is the same folder."""
        status = os.fstat(below)
        seen = status.st_dev, status.st_ino
        if self._own.get(folder) != seen:
            area = folder.partition("/")[0]
            above, _ = self._cached.get(area) or self._keep(area)
            if mount_of(below) != mount_of(above):
                raise RefusedError(errno.EXDEV, "a mount", str(self.path(folder)))
            self._own[folder] = seen

    def _keep(self, area: str) -> tuple[int, os.stat_result]:
        opened = self._open(area, False)
        made = opened, os.fstat(opened)
        cached = self._cached.setdefault(area, made)
        if cached is not made:  # another thread was first
            close(opened)
        return cached

    def _has_moved(self, folder: str) -> bool:
        """Tell whether the cached descriptor of an area is out of date; if so, drop it."""
        area = folder.partition("/")[0]
        if area not in self._cached:
            return False
        descriptor, held = self._cached[area]
        with contextlib.suppress(OSError):
            named = os.stat(f"{self._text}/{area}", follow_symlinks=False)
            if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
                return False
        del self._cached[area]
        self._stale.append(descriptor)  # another thread may be using it
        return True
