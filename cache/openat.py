"""Open, make and remove folders, each through the descriptor of the folder above it.

No link is followed, and nothing blocks on a pipe. `cache/folders.py` says what counts as a folder
of the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from pallasc.cache import format

FOLDER_MODE = 0o777
"""Before the umask."""
SHARED = stat.S_ISGID | stat.S_IWGRP
"""A folder with both bits is shared by its group, and so is all that is made in it."""

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NO_FOLDER = {errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES}
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class RefusedError(OSError):
    """A path that should be a folder of the store is something else; it was left alone."""


def close(descriptor: int) -> None:
    """Close a folder; errors do not matter, as nothing was written to it."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def is_shard(name: str) -> bool:
    """Tell whether a name is that of a shard: two hexadecimal digits."""
    return len(name) == 2 and format.is_name(name * 32)


def share(made: int, folder: int, rights: int) -> None:
    """Give the group of a shared folder its rights to what was made there, whatever the umask.

    Args:
        made: a descriptor of what is new.
        folder: a descriptor of the folder that it is in.
        rights: of the group, as mode bits.
    """
    # The umask also applies in a setgid folder, which only passes its group on.
    with contextlib.suppress(OSError):  # the file of another user, who has seen to it
        if os.fstat(folder).st_mode & SHARED == SHARED:
            mode = stat.S_IMODE(os.fstat(made).st_mode)
            if mode & rights != rights:
                os.fchmod(made, mode | rights)


def sync(descriptor: int, path: Path) -> None:
    """Make the names in an open folder durable, where the file system can.

    Raises:
        OSError: if the disk fails.
    """
    try:
        with naming(path):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def make_root(path: Path) -> None:
    """Make the folder that a store lies in, and those above it; links of the user are followed."""
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
    """Make a folder in another, synced into it."""
    try:
        os.mkdir(name, FOLDER_MODE, dir_fd=above)
    except FileExistsError:
        return  # whatever it is, it is looked at when it is opened
    with contextlib.suppress(OSError):
        made = os.open(name, FOLDER, dir_fd=above)
        try:
            share(made, above, 0o070)
        finally:
            close(made)
    sync(above, Path(name))


def checked(name: str) -> str:
    """Return a name, which must not lead to another folder."""
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise RefusedError(errno.EINVAL, "not a name of the store", name)
    return name


def fault_of(status: os.stat_result, version: os.stat_result) -> str:
    """Return why a folder is not the store's own, "" if it is; `version`: the folder above."""
    if status.st_dev != version.st_dev:
        return "on another file system"
    if status.st_uid in (os.geteuid(), 0, version.st_uid):
        return ""
    if version.st_mode & SHARED == SHARED and status.st_gid == version.st_gid:
        return ""
    return f"a folder of another user, {status.st_uid}"


def no_shards(descriptor: int, area: str) -> list[tuple[str, str]]:
    """Return what has the name of a shard in an area, but is not a folder."""
    with os.scandir(descriptor) as entries:
        return [
            (f"{area}/{entry.name}", kind_of(entry.name, descriptor))
            for entry in entries
            if is_shard(entry.name) and not entry.is_dir(follow_symlinks=False)
        ]


def refusal(error: OSError, name: str, above: int) -> OSError:
    """Return the error of opening a folder, or a `RefusedError` if something else is there."""
    if error.errno in _NO_FOLDER and (kind := kind_of(name, above)):
        return RefusedError(error.errno, kind, error.filename)
    return error


def kind_of(name: str, above: int) -> str:
    """Return what is under a name, "" for a folder, or if that cannot be found out."""
    with contextlib.suppress(OSError):
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
        return _KINDS.get(stat.S_IFMT(mode), "")
    return ""


def mount_of(descriptor: int) -> str:
    """Return the mount that an open folder lies in, "" where the kernel does not say."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
        for line in file:
            if line.startswith(b"mnt_id:"):
                return line.decode("ascii", "replace")
    return ""


def mounts_below(descriptor: int) -> list[str]:
    """Return the mount points below an open folder, as /proc lists them.

    The fifth field of a line of mountinfo is the mount point, with blanks and backslashes in octal:
    proc_pid_mountinfo(5).
    """
    mounts = []
    with contextlib.suppress(OSError):
        folder = os.fsencode(os.readlink(f"/proc/self/fd/{descriptor}"))
        above = re.sub(rb"[ \t\n\\]", lambda blank: b"\\%03o" % ord(blank[0]), folder) + b"/"
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                point = line.split(b" ", 5)[4]
                if point.startswith(above):
                    mounts.append(os.fsdecode(point.removeprefix(above)))
    return mounts


def remove_tree(above: int, name: str) -> None:
    """Remove a folder with everything in it, each folder through its descriptor.

    Raises:
        RefusedError: a mount lies in it.
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
    """Have errors name the whole path instead of what is relative to a descriptor."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, RefusedError):
            error.filename, error.filename2 = str(path), None
        raise
