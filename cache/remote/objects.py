"""What a remote store must be able to do: objects by name, and one change that others cannot lose.

Names are relative to the address: `pallasc/v1/…`, digits, letters, `/`. Every method raises
`RemoteError` and nothing else for what a server, a network or a disk does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

from pallasc.cache.remote.failure import Failure, RemoteError

OnBytes = Callable[[bytes], None]
"""Is called with the bytes of an answer as they arrive, from the first one on."""

CHUNK_BYTES = 256 * 2**10


class Got(NamedTuple):
    """An object's bytes, and what tells this version of it from another, "" if nothing does."""

    data: bytes
    version: str


class Item(NamedTuple):
    """An object as a listing has it; `modified_s` in seconds since 1970."""

    name: str
    size: int
    modified_s: float


class Objects(Protocol):
    """A remote store's objects.

    Attributes:
        has_versions: `put_if` finds out whether another writer was first.
        has_listing: `list` and `delete` work.
        has_ranges: a part of an object can be asked for.
    """

    has_versions: bool
    has_listing: bool
    has_ranges: bool

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        """Return a whole object.

        Raises:
            RemoteError: MISSING, TOO_LARGE for more than `limit_bytes`, and others.
        """

    def get_part(self, name: str, start: int, size: int, *, on_bytes: OnBytes) -> bytes:
        """Return a part of an object; NO_RANGES where the server gives only whole ones."""

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        """Write an object, in the place of an older one.

        Args:
            name: of the object.
            data: its bytes.
            needs: bytes of the objects without which this one is worth nothing, by name; a server
                that knows of such things gives it only while all are there.
        """

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version, None for "does not exist".

        Returns:
            False if another writer was first; always True without `has_versions`.
        """

    def list(self, prefix: str) -> Iterator[Item]:
        """Give all objects whose name begins with `prefix`, which ends with a slash."""

    def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""


def too_large(name: str, size: int, limit_bytes: int) -> RemoteError:
    """Return the error for an object over its limit."""
    return RemoteError(
        f"{name}: {size:,} bytes is over the limit of {limit_bytes:,}", Failure.TOO_LARGE
    )
