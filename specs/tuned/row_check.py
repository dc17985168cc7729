"""The check of a row: whether it was edited since pallasc wrote it.

It is over what the figures of a row are of: the model, the values of its key and of what it uses,
and the digest of what was measured. Names of parameters may change, as may all else. No command
reads it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from pallasc.specs.canonical import canonical_json
from pallasc.specs.tuning import Row

_DIGITS = 8


def row_check(row: Row) -> str:
    """Return the check of a row as it is."""
    of = [row.gpu, list(row.key), list(row.use.values()), row.measured_as or row.artifact]
    return hashlib.sha256(canonical_json(of)).hexdigest()[:_DIGITS]


def checked(row: Row) -> Row:
    """Return a row with its check."""
    return replace(row, check=row_check(row))
