"""The tables of the index, as numbered migrations: a file of schema n has had the first n of them.

History:
    1  artifacts, variants, requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database


def _tables(database: Database) -> None:
    """Make the tables. A file's identity is `inode`, `mtime_ns` and `bytes` (`cache/files.py`)."""
    database.create_table(
        "artifacts",
        {
            "key": str,
            "inode": int,
            "mtime_ns": int,
            "bytes": int,
            "blobs": bytes,  # digests and sizes, see cache/about.py
            "blob_bytes": int,
            "cubin_bytes": int,
            "created_ns": int,
            "last_use_ns": int,
            "hits": int,
            "compile_s": float,
        },
        pk="key",
        defaults={"hits": 0, "compile_s": 0.0},
    )
    database.create_table(
        "variants",
        {"action": str, "name": str, "target": str, "params": str},
        pk=("action", "name", "target", "params"),
    )
    database.create_table(
        "requests",
        {"request": str, "inode": int, "mtime_ns": int, "bytes": int, "action": str},
        pk="request",
    )
    database.table("variants").create_index(["name"])
    database.table("requests").create_index(["action"])


MIGRATIONS: tuple[Callable[[Database], None], ...] = (_tables,)
