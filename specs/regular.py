"""Read files of the user's whole, when they are files and of a size that can be read."""

from __future__ import annotations

import os
import stat

from pallasc.errors import SpecError

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_regular(file: str, *, most_bytes: int) -> bytes:
    """Return the content of a regular file; anything else is neither opened nor waited for.

    Raises:
        SpecError: there is no such file, it is something else, it is larger than `most_bytes`, or
            it cannot be read.
    """
    try:
        check_regular(file)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = os.open(file, flags)
        with open(descriptor, "rb") as stream:
            # It may have become something else since it was looked at.
            _check_kind(file, os.fstat(descriptor))
            content = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise SpecError(f"{file}: there is no such file.") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{file}: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > most_bytes:
        raise SpecError(f"{file}: the file is larger than {most_bytes} bytes.")
    return content


def check_regular(file: str) -> None:
    """Check that a path leads to a regular file.

    Raises:
        SpecError: it is a directory, a named pipe, a socket or a device.
        OSError: it cannot be looked at.
    """
    _check_kind(file, os.stat(file))


def _check_kind(file: str, status: os.stat_result) -> None:
    for is_kind, name in _KINDS:
        if is_kind(status.st_mode):
            raise SpecError(f"{file}: this is {name}, not a file.")
