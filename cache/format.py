"""The store's format on disk: the locations of files, and the format of records.

    root       = any folder; it has one folder per store version, and only `v1` is read here
    v1         = { area "/" shard "/" name } packs tmp quarantine leases locks stat
    area       = "cas"               blobs: raw bytes, `name` is their SHA-256
               | "ac"                records of kind `artifact`, `name` is the action key
               | "man"               records of kind `manifest`, `name` is a set-name, or the
                                     own key of an entry without sources
    shard      = the first two digits of `name`
    name       = 64 lower-case hexadecimal digits
    set-name   = the first 32 digits of the request key, and the first 32 of the SHA-256 of
                 request-key SP read; `read` is the digest over the sources that were read
    packs      = "packs/" name                    a pack (`cache/packs.py`) of files of the
                                                  areas; `name` is the SHA-256 of the pack
    tmp        = "tmp/" token "-" random          not yet published; no reader looks here
    quarantine = "quarantine/" ( area | "packs" ) "-" name "-" random [ ".reason" ]
    leases     = "leases/" token "-" random       { action-key LF }; held records
    locks      = "locks/" name                    empty; held through flock, only an optimization
    stat       = "stat/digests"                   a record of kind `stat`
               | "stat/index"                     a record of kind `index`
               | "stat/uses"                      counts of builds, see `cache/uses.py`
               | "stat/tidied"                    empty; its time is the last tidying
    token      = host "-" pid "-" start           one process of one machine (`cache/files.py`)

    record     = header LF body
    header     = "pallasc-store" SP version SP kind SP name SP digest
    version    = "1"
    kind       = "artifact" | "manifest" | "stat" | "index"
    digest     = the SHA-256 of `body`, 64 lower-case hexadecimal digits
    body       = a JSON object: keys sorted, no spaces, ASCII only, no NaN or infinity

    artifact   = { "artifact": object, "blobs": { text: { "digest": name, "size": bytes } } }
    manifest   = object of the fields in `cache/manifests.py`: "action" is the action key that it
                 leads to, "record" the digest of the body of the record there, and
                 "about" = { "name": text, "target": text, "params": object, "seconds": number }
                 names the variant and the time it took to compile; "signed" see
                 `cache/manifests.py`; "check" has check results (`checks/stored_results.py`),
                 "lines" the source lines of an artifact (`analysis/lines.py`), each under a
                 separate key
    stat       = { "files": { path: [size, mtime_ns, ctime_ns, inode, digest] }, ["signed"] }
    index      = { "facts": object }              see `cache/inventory.py`

A file may be in its area, or in a pack, or both: a manifest in its area takes precedence; records
and blobs can be read from either place, since they are always verified.

A record's modification time is its last use; a pack's is the last use of anything in it. The index
is only a cache, derived from the records and manifests.

A reader knows version, kind and name before it opens a file, so every byte of the header is
compared and every byte of the body is hashed. No file that was changed, truncated, extended, or
exchanged is valid. A file that is not a record of this grammar is corrupt, never treated as an
older version.

History:
    1  the first version. Manifests have had "record" and "signed" since 0.2; a manifest with
       neither is read as before, and counts as missing where signatures are required. An older
       pallasc treats a manifest with "check" or "lines" as damaged and quarantines it. A pallasc
       that does not know packs does not read them, and compiles again.
       A request key has one manifest per set of sources, each under its set-name; earlier versions
       had one under the key and one per folder, which are no longer found. `pins`, `uses`,
       `index.sqlite`, `index.seal`, and `stat/totals` of an earlier pallasc are ignored, and its
       packs count as missing.

A store of another version is another folder next to `v1`; it is neither read nor changed.

No folder below the root may be a link, a mount, or another user's: see `cache/folders.py`.

In a folder that is group-writable and has the setgid bit, everything created belongs to the group.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from pallasc.cache.manifests import Digest, Manifest, check_text
from pallasc.errors import CorruptError

VERSION = 1
FOLDER = f"v{VERSION}"
MAGIC = "pallasc-store"
BLOBS, ARTIFACTS, MANIFESTS = "cas", "ac", "man"
PACKS = "packs"
FOLDERS = (
    BLOBS, ARTIFACTS, MANIFESTS, PACKS, "tmp", "quarantine", "leases", "locks", "stat",
)  # fmt: skip
KINDS = {ARTIFACTS: "artifact", MANIFESTS: "manifest"}
STAT, INDEX = "stat", "index"
MAX_RECORD_BYTES = 64 * 2**20
"""A longer record is rejected without reading it: real ones are a few kilobytes."""
MAX_BLOB_BYTES = 2**40
"""A record that names a larger blob is corrupt; sums of sizes stay below 64 bits."""


class StoredBlob(msgspec.Struct):
    """A blob in a record; `size` in bytes."""

    digest: Digest
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOB_BYTES)]


class StoredRecord(msgspec.Struct):
    """The body of an artifact's record; `artifact` is JSON that the store does not interpret."""

    artifact: msgspec.Raw
    blobs: dict[str, StoredBlob]

    def __post_init__(self) -> None:
        if memoryview(self.artifact)[0] != ord("{"):
            raise ValueError("`artifact` is not an object")


_FORMS: Mapping[str, type] = {KINDS[ARTIFACTS]: StoredRecord, KINDS[MANIFESTS]: Manifest}
_LONGEST_ERROR = 200
_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DECIMAL_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BINARY_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def sha256(data: bytes | msgspec.Raw) -> str:
    """Return the SHA-256 of `data` as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def is_name(name: object) -> bool:
    """Return True for a string that has the form of a key or digest."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str, *, what: str = "key") -> str:
    """Return `name` if it is a key or digest in the form of the store.

    Raises:
        CorruptError: `name` is anything but 64 lower-case hexadecimal digits.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CorruptError(
            f"{name!r} is not a {what} of the store",
            hint="A key or digest is 64 lower-case hexadecimal digits.",
        )
    return name


def relative_path(area: str, name: str) -> str:
    """Return the place of `name` below the version's folder: `ac/ab/ab…`."""
    return f"{area}/{name[:2]}/{name}"


def encode(kind: str, name: str, body: Mapping[str, object]) -> tuple[bytes, str]:
    """Return a record's bytes and the digest of its body.

    Raises:
        CorruptError: `body` cannot be written as JSON.
    """
    try:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptError(f"{kind} {name} cannot be written as JSON: {error}") from error
    data = text.encode("ascii")
    digest = sha256(data)
    return _header(kind, name, digest) + data, digest


def decode(kind: str, name: str, data: bytes, form: Any = None) -> tuple[Any, str]:
    """Return a record's body and its digest.

    The body has the type `form`; the default is a `StoredRecord` or a `Manifest`, depending on the
    kind.

    Raises:
        CorruptError: `data` is not byte for byte the record `name` of this kind and version.
    """
    start = data.find(b"\n") + 1
    text = data[start:]
    digest = sha256(text)
    if data[:start] != _header(kind, name, digest):
        raise CorruptError(f"{kind} {name}: {_fault(kind, name, data, digest)}")
    try:
        return _parsed(text, form or _FORMS[kind]), digest
    except (ValueError, RecursionError) as error:
        fault = str(error)[:_LONGEST_ERROR]
        raise CorruptError(f"{kind} {name}: its body is not valid: {fault}") from error


_decoder = functools.cache(msgspec.json.Decoder)


def _parsed(text: bytes, form: type) -> Any:
    try:
        return _decoder(form).decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # also for surrogates, which stand for bytes of paths
        body = json.loads(text.decode("ascii"))
        check_text(body)
        return msgspec.convert(body, form)


def check_file(area: str, name: str, data: bytes) -> tuple[Any, str]:
    """Return the body of a record or manifest, None for a blob, and the digest of either.

    Raises:
        CorruptError: the bytes do not match the name.
    """
    if area != BLOBS:
        return decode(KINDS[area], name, data)
    if (digest := sha256(data)) != name:
        raise CorruptError(f"blob {name}: its SHA-256 is {digest}")
    return None, digest


def _header(kind: str, name: str, digest: str) -> bytes:
    return f"{MAGIC} {VERSION} {kind} {name} {digest}\n".encode("ascii")


def _fault(kind: str, name: str, data: bytes, digest: str) -> str:
    if not data:
        return "the file is empty"
    header, expected = data.partition(b"\n")[0], _header(kind, name, digest)
    if header.rpartition(b" ")[0] == expected.rpartition(b" ")[0]:
        return f"the SHA-256 of its body is {digest}, which is not the one in its header"
    return f"its header is {header[:200]!r} instead of {expected[:-1]!r}"


def size(count: int, limit: int | None = None) -> str:
    """Format a number of bytes for people: `2.1 GB`.

    Args:
        count: the number.
        limit: the limit that it is compared with. If the limit is a whole number of MiB, it was
            specified that way, and both use binary units.
    """
    binary = (count if limit is None else limit) % (1 << 20) == 0
    for unit, name in _BINARY_UNITS if binary else _DECIMAL_UNITS:
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{count} bytes"
