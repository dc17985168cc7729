"""Paths of the user's machine on a worker's: the same, below a folder.

The whole path is kept below the folder, so that files lie to each other as they do at home, and so
that a text is made the one of home by taking the folder out of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pallasc.compiler.lowering.kernel_output import pack, unpack

_FREE_OF_PATHS = frozenset({"record", "blobs", "action", "digest"})
"""Fields of a reply that name no file; most of its bytes."""


def below(root: str, path: str) -> str:
    """Return where a path of home lies below `root`.

    Raises:
        ValueError: it is not absolute, or leaves the folder.
    """
    normal = os.path.normpath(path)
    if not os.path.isabs(path) or "\0" in path:
        raise ValueError(f"{path!r} is not an absolute path")
    return root + ("/" + normal.lstrip("/")).rstrip("/")


def at_home(reply: Mapping[str, object], root: str) -> dict[str, object]:
    """Return a reply with the paths of home in place of those below `root`."""
    result = {
        name: value if name in _FREE_OF_PATHS else text_at_home(value, root)
        for name, value in reply.items()
    }
    printed = result.get("printed")
    shown = unpack(printed)
    if root in shown:
        result["printed"] = pack(shown.replace(root, ""))
        manifest = result.get("manifest")
        if isinstance(manifest, dict):
            result["manifest"] = {**manifest, "printed": result["printed"]}
    return result


def text_at_home(value: object, root: str) -> object:
    """Return JSON with `root` taken out of all its texts."""
    if isinstance(value, str):
        return value.replace(root, "") if root in value else value
    if isinstance(value, Mapping):
        return {str(text_at_home(k, root)): text_at_home(v, root) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [text_at_home(item, root) for item in value]
    return value
