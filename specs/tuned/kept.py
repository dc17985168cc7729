"""Rows of buckets that stay as they are: keys use them that were not measured to the end now.

The row of a bucket is also that of the key that it is named after, and of each key of the bucket
that has no row of its own. It is replaced where that first key was measured, or, where the spec has
no such key, where all those others were. A row that stays still serves what it suits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pallasc.specs.canonical import canonical_text
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Row, Tune, bucket_key

Key = tuple[Scalar, ...]


def kept_rows(
    old: Sequence[Row], measured: Collection[Key], tune: Tune, keys: Collection[Key] | None
) -> dict[str, Row]:
    """Return the rows of buckets that stay, by the canonical JSON of their keys.

    Args:
        old: the rows of the kernel on the model that was measured.
        measured: the keys that were measured to the end and have a configuration.
        tune: of the spec.
        keys: all keys of the spec; None where they are not known, and any may be one.
    """
    if not tune.buckets:
        return {}
    done, own = set(map(_text, measured)), {_text(row.key): row for row in old}
    waiting = {
        _text(around)
        for key in keys or ()
        if _text(key) not in done
        and (around := bucket_key(key, tune.by, tune.buckets, tune.rounding)) is not None
        and (_text(key) == _text(around) or _text(key) not in own)
    }
    return {
        name: row
        for name, row in own.items()
        if name not in done and (keys is None or name in waiting)
    }


def _text(key: Key) -> str:
    return canonical_text(list(key))
