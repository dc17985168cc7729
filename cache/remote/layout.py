"""The format of a remote store: the names of its objects, and how its records are written.

    below the address:
    pallasc/v1/<namespace>/catalog          a record; the only object that ever changes
    pallasc/v1/<namespace>/index/<digest>   zstd of a record, see `cache/remote/index.py`
    pallasc/v1/<namespace>/costs/<digest>   what compilations took; `compiler` has the format
    pallasc/v1/packs/<digest>               a pack, see `cache/packs/format.py`
    .tmp/…                                  of `file://` only: not yet published

    namespace = digest over what partitions a remote: the versions of the toolchain's parts, salt
    digest    = 64 lower-case hexadecimal digits, SHA-256 of all bytes of the object
    record    = "pallasc-remote 1 " kind SP digest LF body
    kind      = "catalog" | "index"
    body      = a JSON object: keys sorted, no spaces, ASCII only; `digest` is its SHA-256

Every object but the catalog is named by its content and never changes. Packs are written before the
index that names them, and that before the catalog which names it: whatever is interrupted, a reader
finds only what is whole. What no catalog leads to is garbage (`cache/remote/garbage.py`).

Nothing is believed: each object must have the digest of its name, each file in a pack is verified
as one of a store of strangers, and a namespace only partitions: keys alone decide what a hit is.

History:
    1  the first version.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from pallasc.errors import CorruptError
from pallasc.specs.canonical import canonical_json, labelled_key

VERSION = 1
ROOT = f"pallasc/v{VERSION}"
PACKS = f"{ROOT}/packs"
CATALOG, INDEX = "catalog", "index"
MAX_CATALOG_BYTES = 16 * 2**20
MAX_INDEX_BYTES = 64 * 2**20
"""Of its content; that of 170,000 variants."""
MAX_COSTS_BYTES = 64 * 2**20
MAX_PACK_BYTES = 64 * 2**20
"""What is larger is refused unread; writers close a pack at `writer.PACK_BYTES`."""
_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_HEADER = re.compile(rb"pallasc-remote ([0-9]{1,9}) ([a-z]{1,20}) ([0-9a-f]{64})\n")


def namespace_of(facts: Mapping[str, str]) -> str:
    """Return the namespace for facts: versions by the name of the part, a salt."""
    return labelled_key({"kind": "pallasc remote namespace", **facts})


def is_digest(value: object) -> bool:
    """Tell whether this is the text of a SHA-256."""
    return type(value) is str and _NAME.fullmatch(value) is not None


def catalog_name(namespace: str) -> str:
    """Return the name of a namespace's catalog."""
    return f"{ROOT}/{namespace}/catalog"


def index_name(namespace: str, digest: str) -> str:
    """Return the name of an index."""
    return f"{ROOT}/{namespace}/index/{digest}"


def costs_name(namespace: str, digest: str) -> str:
    """Return the name of a snapshot of costs."""
    return f"{ROOT}/{namespace}/costs/{digest}"


def pack_name(digest: str) -> str:
    """Return the name of a pack."""
    return f"{PACKS}/{digest}"


def sha256(data: bytes) -> str:
    """Return the digest of an object."""
    return hashlib.sha256(data).hexdigest()


def encode(kind: str, body: Mapping[str, object]) -> bytes:
    """Return a record's bytes."""
    text = canonical_json(body)
    return b"pallasc-remote %d %s %s\n" % (VERSION, kind.encode(), sha256(text).encode()) + text


def decode(kind: str, data: bytes) -> dict[str, object]:
    """Return a record's body.

    Raises:
        CorruptError: it is not a whole record of this kind and version.
    """
    match = _HEADER.match(data)
    if match is None:
        raise CorruptError(f"the {kind} does not begin as one does")
    if int(match[1]) != VERSION:
        raise CorruptError(
            f"the {kind} is of version {int(match[1])}, and this pallasc reads {VERSION}",
            hint="Update pallasc.",
        )
    text = data[match.end() :]
    if match[2].decode() != kind or match[3].decode() != sha256(text):
        raise CorruptError(f"the {kind} is damaged, or cut short")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"the {kind} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise CorruptError(f"the {kind} is not a JSON object")
    return body
