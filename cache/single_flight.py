"""Single flight: of several processes that need the same thing, one makes it and the others wait.

The lock only saves work: the store is correct without it. It is a `flock`, which the kernel drops
when its holder dies; a child made by `fork` shares it, a child of `spawn` or `subprocess` does not.
After a locking error, as on some network file systems, a process goes on without the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from pallasc.cache.files import check_regular, open_new
from pallasc.cache.folders import Folders

FOLDER = "locks"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


@contextlib.contextmanager
def single_flight(
    folders: Folders, place: str, *, timeout_s: float, on_error: Callable[[OSError], None]
) -> Iterator[bool]:
    """Hold the lock file at a place; True if it is held, False when going on without.

    Args:
        folders: of the store.
        place: the lock file; it exists only while somebody holds or wants it.
        timeout_s: how long to wait for a holder that lives but does not finish.
        on_error: is told why locking failed.
    """
    descriptor = None
    try:
        descriptor = _acquire(folders, place, time.monotonic() + timeout_s)
    except OSError as error:
        on_error(error)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _release(folders, place, descriptor)


def _acquire(folders: Folders, place: str, deadline_s: float) -> int | None:
    """Return a locked descriptor of the file that `place` names now, or None at the deadline."""
    while True:
        descriptor = _open(folders, place)
        held = False
        try:
            locked = _wait(descriptor, deadline_s)
            held = locked and _is_current(folders, place, descriptor)
        finally:
            if not held:
                os.close(descriptor)
        if held:
            return descriptor
        if not locked or time.monotonic() > deadline_s:
            return None


def _open(folders: Folders, place: str) -> int:
    try:
        return open_new(folders, place, os.O_RDWR)
    except PermissionError as error:
        # The file of another user of a shared store: flock asks for no more than an open file.
        try:
            return _opened(folders, place)
        except FileNotFoundError:
            raise error from None


def _opened(folders: Folders, place: str) -> int:
    """Open a lock file that is there; anything else is refused."""
    descriptor = folders.open_file(place)
    try:
        check_regular(descriptor, folders, place)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait(descriptor: int, deadline_s: float) -> bool:
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
        time.sleep(min(pause_s, left_s))  # flock(2) can wait, but not for a limited time
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _is_current(folders: Folders, place: str, descriptor: int) -> bool:
    """Tell whether the locked file still has its name: its last holder may have removed it."""
    try:
        named = folders.status(place)
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def _release(folders: Folders, place: str, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        if _is_current(folders, place, descriptor):
            folders.unlink(place)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def is_free(folders: Folders, place: str) -> bool:
    """Tell whether nobody holds a lock file, as after its process was killed.

    Raises:
        OSError: if it cannot be opened, or locks do not work here.
    """
    return _if_free(folders, place, os.close)


def remove_if_free(folders: Folders, place: str) -> bool:
    """Remove a lock file that nobody holds; False if somebody does, or it is gone.

    Raises:
        OSError: if it cannot be opened, or locks do not work here.
    """
    return _if_free(folders, place, lambda held: _release(folders, place, held))


def _if_free(folders: Folders, place: str, then: Callable[[int], None]) -> bool:
    try:
        descriptor = _opened(folders, place)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:
        os.close(descriptor)
        raise
    free = _is_current(folders, place, descriptor)
    then(descriptor)
    return free
