"""One text for one value: canonical JSON, labelled keys, SHA-256 digests.

A key is the SHA-256 over a schema line and then, for each field in order of its label,
`len(label):label len(value):value`, lengths in ASCII decimal of the bytes behind them. So no two
different sets of fields give the same input.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY_SCHEMA = b"pallasc key 1\n"


def canonical_json(value: Any) -> bytes:
    """Return `value` as JSON with sorted keys and no spaces, ASCII only."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def labelled_key(fields: Mapping[str, bytes | str]) -> str:
    """Return the key over the labelled `fields`, in hexadecimal."""
    state = hashlib.sha256(KEY_SCHEMA)
    for label in sorted(fields):
        value = fields[label]
        raw = value.encode() if isinstance(value, str) else value
        name = label.encode()
        state.update(b"%d:%s %d:" % (len(name), name, len(raw)))
        state.update(raw)
        state.update(b"\n")
    return state.hexdigest()
