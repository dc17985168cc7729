"""Canonical encodings of values: JSON, labeled keys, SHA-256 digests.

A key is the SHA-256 of a schema line followed by one line for each field, sorted by label:
`len(label):label len(value):value`. The lengths are in bytes, in ASCII decimal, so different sets
of fields never give the same input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

KEY_SCHEMA = b"pallasc key 1\n"


# Built once: with these options, `json.dumps` builds an encoder for each call.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical_text(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces, ASCII only."""
    return _ENCODER.encode(value)


def canonical_json(value: Any) -> bytes:
    """Return `value` as JSON with sorted keys and no spaces, as ASCII bytes."""
    return canonical_text(value).encode()


def plain(value: object) -> str:
    """Return a scalar as written in an id: `1024`, `true`, `null`, `bf16`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def variant_id(name: str, params: Iterable[tuple[str, object]], target: str) -> str:
    """Return the id of a variant: `matmul[m=1024,n=4096]@h100-sxm`."""
    text = ",".join(f"{key}={plain(value)}" for key, value in params)
    return f"{name}[{text}]@{target}" if text else f"{name}@{target}"


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def labelled_key(fields: Mapping[str, bytes | str]) -> str:
    """Return the key of the labeled `fields`, in hexadecimal."""
    try:
        # Fast path: most values are ASCII text, where character counts equal byte counts.
        lines = [f"{len(k)}:{k} {len(v)}:" + v for k, v in sorted(fields.items())]  # type: ignore[operator]
        data = "\n".join([*lines, ""]).encode("ascii")
    except (UnicodeEncodeError, TypeError):
        data = b"".join([_labelled(label, fields[label]) for label in sorted(fields)])
    return digest(KEY_SCHEMA + data)


def _labelled(label: str, value: bytes | str) -> bytes:
    # File names may not be UTF-8; surrogateescape restores their original bytes.
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    name = label.encode("utf-8", "surrogateescape")
    return b"%d:%s %d:%s\n" % (len(name), name, len(raw), raw)
