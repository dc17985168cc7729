"""Objects in an HTTP cache of Bazel: `bazel+http://`, `bazel+https://`.

A pack lies under `/cas/<SHA-256>`, since that is its name anyway. Every other object lies under
`/ac/<SHA-256 of its name>` as an `ActionResult`: its bytes are the standard output, or the output
file `data` in `/cas/` where they are many, and the packs that an index needs are its output files.
So a cache that checks an ActionResult, as bazel-remote does, gives an index only while all of its
packs are there, and keeps them as long as the index is used.

Such a cache knows neither versions nor listings, and may throw away what it likes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pallasc.cache.remote import layout
from pallasc.cache.remote.action_result import (
    Output,
    Result,
    decode_result,
    encode_result,
    paths_of,
)
from pallasc.cache.remote.address import Address
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.objects import Got, Item, OnBytes, too_large
from pallasc.cache.remote.obstore_objects import ObstoreObjects
from pallasc.errors import CorruptError

_INLINE_BYTES = 64 * 2**10
_DATA = "data"
_OVERHEAD_BYTES = 2**20
"""What an ActionResult may have beside its standard output."""


class BazelObjects:
    """The objects of one address; see the module and `objects.Objects`."""

    has_versions = False
    has_listing = False
    has_ranges = False

    def __init__(
        self, address: Address, *, environ: Mapping[str, str] = os.environ, timeout_s: float = 60.0
    ) -> None:
        self._address = address
        web = replace(address, scheme=address.scheme.removeprefix("bazel+"))
        self._web = ObstoreObjects(web, environ=environ, timeout_s=timeout_s)

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        """Return a whole object."""
        if _is_pack(name):
            return self._web.get(_content(name), limit_bytes=limit_bytes, on_bytes=on_bytes)
        got = self._web.get(
            _action(name), limit_bytes=limit_bytes + _OVERHEAD_BYTES, on_bytes=on_bytes
        )
        try:
            result = decode_result(got.data)
        except CorruptError:
            return Got(got.data, "")  # it is no record either, which its reader tells and heals
        blob = paths_of(result).get(_DATA)
        if blob is None:
            return self._limited(name, result.stdout, limit_bytes)
        if not layout.is_digest(blob.digest):
            return Got(b"", "")
        place = f"cas/{blob.digest}"
        return self._web.get(place, limit_bytes=limit_bytes, on_bytes=on_bytes)

    def _limited(self, name: str, data: bytes, limit_bytes: int) -> Got:
        if len(data) > limit_bytes:
            raise too_large(f"{self._address}/{name}", len(data), limit_bytes)
        return Got(data, "")

    def get_part(self, name: str, start: int, size: int, *, on_bytes: OnBytes) -> bytes:
        """Refuse: caches of Bazel give whole objects."""
        raise RemoteError(f"{self._address}/{name}: caches give no ranges", Failure.NO_RANGES)

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        """Write an object, in the place of an older one; `needs` are packs written before."""
        if _is_pack(name):
            self._web.put(_content(name), data)
            return
        outputs = [
            Output(f"packs/{pack.rpartition('/')[2]}", pack.rpartition("/")[2], size)
            for pack, size in (needs or {}).items()
        ]
        stdout = data
        if len(data) > _INLINE_BYTES:
            digest, stdout = layout.sha256(data), b""
            self._web.put(f"cas/{digest}", data)
            outputs.append(Output(_DATA, digest, len(data)))
        self._web.put(_action(name), encode_result(Result(stdout, outputs)))

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object; a cache of Bazel knows no versions."""
        self.put(name, data)
        return True

    def list(self, prefix: str) -> Iterator[Item]:
        """Refuse: caches of Bazel list nothing."""
        raise self._unsupported("lists nothing")

    def delete(self, name: str) -> None:
        """Refuse: a cache of Bazel throws away by itself what is not used."""
        raise self._unsupported("deletes nothing on request")

    def _unsupported(self, what: str) -> RemoteError:
        return RemoteError(
            f"{self._address}: a cache of Bazel {what}",
            Failure.UNSUPPORTED,
            hint="It throws away what was not used for long by itself.",
        )


def _is_pack(name: str) -> bool:
    return name.startswith(f"{layout.PACKS}/")


def _content(name: str) -> str:
    return f"cas/{name.rpartition('/')[2]}"


def _action(name: str) -> str:
    return f"ac/{layout.sha256(name.encode())}"
