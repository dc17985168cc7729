"""The folders of a store: the only module through which the store opens, moves, or removes files.

A store may be shared, or restored from an archive, so anything may be in place of its folders: a
link to a user's home, a mount, a pipe. Every folder is opened from its parent, without following
links, and used through its descriptor. So nothing outside the store is ever listed, moved, or
removed, even if a folder is replaced at the same time. Only the store's root may be a link, because
the user names it.

The version's folder is `root/v1`. An area is a folder directly in it, such as `tmp` or `ac`, and
may have shards, such as `ac/ab`. Areas and shards belong to the store only if they are folders on
the same mount as the version's folder (without /proc: the same file system). Their owner must be
this user, root, or the owner of the version's folder. If the version's folder is shared by its
group (mode 2775), folders of that group may have any owner.

A place is a path below the version's folder: `tmp/x`, `ac/ab/ab…`, `stat/index`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

from pallasc.cache import format
from pallasc.errors import CorruptError, ToolError

_SHARDED = (format.BLOBS, format.ARTIFACTS, format.MANIFESTS)
_MOST_NAMED = 5
_SHARDS = 3 * 256
_SHARE_OF_LIMIT = 4
FOLDER_MODE = 0o777
"""Mode of a new folder, before the umask is applied."""
SHARED = stat.S_ISGID | stat.S_IWGRP
"""A folder with both bits is shared by its group, and so is everything created in it."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NO_FOLDER = {errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class RefusedError(OSError):
    """A path that should be a folder of the store is something else; it was not touched."""


def close(descriptor: int) -> None:
    """Close a folder; errors do not matter, since nothing was written to it."""
    try:  # noqa: SIM105 - each file that is read closes a folder, and `suppress` takes longer
        os.close(descriptor)
    except OSError:
        pass


def is_shard(name: str) -> bool:
    """Return True if a name is a shard's: two hexadecimal digits."""
    return len(name) == 2 and format.is_name(name * 32)


def share(made: int, folder: int, rights: int) -> None:
    """Give the group of a shared folder its permissions on a new file or folder, despite the umask.

    Args:
        made: a descriptor of the new file or folder.
        folder: a descriptor of the folder that contains it.
        rights: the group's mode bits.
    """
    # A setgid folder passes on its group, but not its permissions: the umask still applies.
    with contextlib.suppress(OSError):  # fails for another user's file, which is shared already
        if os.fstat(folder).st_mode & SHARED == SHARED:
            mode = stat.S_IMODE(os.fstat(made).st_mode)
            if mode & rights != rights:
                os.fchmod(made, mode | rights)


def make_root(path: Path) -> None:
    """Make the folder of a store and its parents; links are followed, since the user named them."""
    if path.is_dir():
        return
    make_root(path.parent)
    with naming(path):
        above = os.open(path.parent, FOLDER & ~os.O_NOFOLLOW)
        try:
            make_folder(path.name, above)
        finally:
            close(above)


def make_folder(name: str, above: int) -> None:
    """Make a folder in `above`."""
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=above)
    except FileExistsError:
        return  # if it is not a folder, opening it is refused
    with contextlib.suppress(OSError):
        made = os.open(name, FOLDER, dir_fd=above)
        try:
            share(made, above, 0o070)
        finally:
            close(made)


def checked(name: str) -> str:
    """Return a name after checking that it does not lead to another folder."""
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise RefusedError(errno.EINVAL, "not a name of the store", name)
    return name


def fault_of(status: os.stat_result, version: os.stat_result) -> str:
    """Return why a folder is not the store's, "" if it is; `version` is the version's folder."""
    if status.st_dev != version.st_dev:
        return "on another file system"
    if status.st_uid in (os.geteuid(), 0, version.st_uid):
        return ""
    if version.st_mode & SHARED == SHARED and status.st_gid == version.st_gid:
        return ""
    return f"a folder of another user, {status.st_uid}"


def refusal(error: OSError, name: str, above: int) -> OSError:
    """Return the error from opening a folder, or a `RefusedError` if something else is there."""
    if error.errno in _NO_FOLDER and (kind := kind_of(name, above)):
        return RefusedError(error.errno, kind, error.filename)
    return error


def kind_of(name: str, above: int) -> str:
    """Return the kind of a file, "" for a folder or if the kind is unknown."""
    with contextlib.suppress(OSError):
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        return _KINDS.get(stat.S_IFMT(mode), "")
    return ""


def mount_of(descriptor: int) -> str:
    """Return the mount that contains an open folder, "" if Linux does not report it."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        return next((line.decode() for line in file if line.startswith(b"mnt_id:")), "")
    return ""


def remove_tree(above: int, name: str) -> None:
    """Remove a folder with everything in it, each folder through its descriptor.

    Raises:
        RefusedError: the folder contains a mount.
        OSError: the file system refuses; a part may be gone.
    """
    descriptor = os.open(name, FOLDER, dir_fd=above)
    try:
        if mount_of(descriptor) != mount_of(above):
            raise RefusedError(errno.EXDEV, "a mount", name)
        for entry in os.listdir(descriptor):
            if stat.S_ISDIR(os.stat(entry, dir_fd=descriptor, follow_symlinks=False).st_mode):
                remove_tree(descriptor, entry)
            else:
                os.unlink(entry, dir_fd=descriptor)
    finally:
        close(descriptor)
    os.rmdir(name, dir_fd=above)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make errors name the whole path instead of the part below a descriptor."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, RefusedError):
            error.filename, error.filename2 = str(path), None
        raise


class Folders:
    """The folders below one version's folder. Creating the object does not access the disk.

    Descriptors for reading are cached while the object exists, up to a quarter of the process's
    limit; writing, moving, and removing open the folders again. Errors name the whole path.

    Args:
        folder: the version's folder, `root/v1`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._text = str(folder)
        self._cached: dict[str, tuple[int, os.stat_result]] = {}
        self._stale: list[int] = []
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most_cached = _SHARDS if limit < 0 else min(_SHARDS, limit // _SHARE_OF_LIMIT)

    def __del__(self) -> None:
        """Close the cached descriptors."""
        cached = [descriptor for descriptor, _ in self._cached.values()]
        for descriptor in (*cached, *self._stale):
            close(descriptor)

    def path(self, place: str) -> Path:
        """Return the path of a place, for messages."""
        return self.folder / place

    @contextlib.contextmanager
    def opened(self, folder: str = "", *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of a folder, "" for the version's own.

        Args:
            folder: its place.
            make: create it and its parents if they are missing.

        Raises:
            RefusedError: something else is there.
            OSError: the folder is missing, or the file system refuses.
        """
        descriptor = self._open(folder, make)
        try:
            yield descriptor
        finally:
            close(descriptor)

    def open_file(self, place: str, flags: int = os.O_RDONLY) -> int:
        """Open a file for reading, through a cached descriptor of its area; pipes do not block.

        Raises:
            RefusedError: a parent folder is something else.
            OSError: the file is missing, or the file system refuses.
        """
        folder, _, name = place.rpartition("/")
        kept, below = self._cached.get(folder), -1
        try:
            if kept is not None:
                above = kept[0]
            else:
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
        """Return the sorted names in a folder; an empty list if it is missing.

        Raises:
            RefusedError: something else is there.
            OSError: the folder cannot be listed.
        """
        try:
            with self.opened(folder) as descriptor, naming(self.path(folder)):
                return sorted(os.listdir(descriptor))
        except FileNotFoundError:
            return []

    def status(self, place: str) -> os.stat_result:
        """Return the status of a file, as lstat(2) does.

        Raises:
            RefusedError: a parent folder is something else.
            OSError: the file is missing, or the file system refuses.
        """
        with self._above(place) as (descriptor, name):
            return os.stat(name, dir_fd=descriptor, follow_symlinks=False)

    def touch(self, place: str, *, time_ns: int | None = None) -> None:
        """Set the times of a file, by default to now; raises the same errors as `status`."""
        times = {} if time_ns is None else {"ns": (time_ns, time_ns)}
        folder, _, name = place.rpartition("/")
        above, below = self._reading(folder)
        try:
            os.utime(checked(name), **times, dir_fd=above, follow_symlinks=False)
        except OSError as error:
            error.filename = str(self.path(place))
            raise
        finally:
            if below >= 0:
                close(below)

    def unlink(self, place: str) -> None:
        """Remove a file's name, or a link itself; raises the same errors as `status`."""
        with self._above(place) as (descriptor, name):
            os.unlink(name, dir_fd=descriptor)

    def rename(self, place: str, to: str) -> None:
        """Move a file, replacing an existing one; the folder of `to` is created.

        Raises:
            RefusedError: a parent folder of one of the places is something else.
            OSError: the file is missing, or the file system refuses.
        """
        with self._above(place) as (source, old), self._above(to, make=True) as (target, new):
            os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)

    def link(self, place: str, to: str) -> None:
        """Give a file a second name, which must be free; raises the same errors as `rename`."""
        with self._above(place) as (source, old), self._above(to, make=True) as (target, new):
            os.link(old, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def remove_tree(self, place: str) -> None:
        """Remove a folder with everything in it; links and mounts are not followed.

        Raises:
            OSError: a file system is mounted in it, or the file system refuses; a part may be gone.
        """
        with self._above(place) as (descriptor, name):
            remove_tree(descriptor, name)

    def check(self, *, readable: bool = False) -> None:
        """Check that the store's folders are folders.

        Args:
            readable: the store must be readable, or not exist.

        Raises:
            CorruptError: something else is in place of a folder; the message names it.
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
            hint="Find out what made it. To move it aside: pallasc cache verify --repair, with the "
            "same store.",
        )

    def refused(self) -> Iterator[tuple[str, str]]:
        """Yield place and kind of everything that replaces a folder of the store.

        Raises:
            CorruptError: the version's folder itself is refused.
            ToolError: the version's folder cannot be listed.
        """
        try:
            close(self._open("", False))
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
        for area in format.FOLDERS:
            try:
                with self.opened(area) as descriptor, os.scandir(descriptor) as entries:
                    for entry in entries if area in _SHARDED else ():
                        if is_shard(entry.name) and not entry.is_dir(follow_symlinks=False):
                            yield f"{area}/{entry.name}", kind_of(entry.name, descriptor)
            except RefusedError as error:
                yield area, str(error.strerror)
            except OSError:  # missing; or its use will report the error
                continue

    # ---- inside

    @contextlib.contextmanager
    def _above(self, place: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of a file's folder, and the file's name."""
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
        """Open the version's folder; the root may be a link, since the user names it."""
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
        """Return a descriptor of a folder, and the descriptor to close afterwards, -1 for none.

        Descriptors of areas, and of the first shards that are read, are cached.
        """
        kept = self._cached.get(folder)
        if kept is not None:
            return kept[0], -1
        area, _, shard = folder.partition("/")
        if shard:
            opened = self._open_shard(area, shard)
            if len(self._cached) >= self._most_cached:
                return opened, opened
        else:
            # A build with a remote looks for thousands of files in a new store. If the area is
            # missing, this fails faster than opening it.
            os.stat(f"{self._text}/{area}", follow_symlinks=False)
            opened = self._open(area, False)
        made = opened, os.fstat(opened)
        kept = self._cached.setdefault(folder, made)
        if kept is not made:  # another thread was faster
            close(opened)
        return kept[0], -1

    def _open_shard(self, area: str, shard: str) -> int:
        above, _ = self._reading(area)
        try:
            # The owner matters only for writing, since all data that is read is verified.
            return os.open(checked(shard), FOLDER, dir_fd=above)
        except OSError as error:
            error.filename = f"{self._text}/{area}/{shard}"
            raise refusal(error, shard, above) from None

    def _has_moved(self, folder: str) -> bool:
        """Return True if the cached descriptor of a folder is outdated; it is then dropped."""
        area = folder.partition("/")[0]
        moved = [each for each in (area, folder) if each in self._cached and self._is_other(each)]
        for each in {*moved}:
            self._stale.append(self._cached.pop(each)[0])  # another thread may be using it
        return bool(moved)

    def _is_other(self, folder: str) -> bool:
        held = self._cached[folder][1]
        with contextlib.suppress(OSError):
            named = os.stat(f"{self._text}/{folder}", follow_symlinks=False)
            return (named.st_dev, named.st_ino) != (held.st_dev, held.st_ino)
        return True
