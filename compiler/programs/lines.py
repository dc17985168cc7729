"""Lines of a lowered module, each with the source line that made it, to explain a changed key.

The format is compressed JSON. `places` is a list of source lines such as `layers.py:88`. `lines`
has a pair for each line of the module: the first digits of a digest of the line without locations,
and the index of its place, -1 for none.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

from pallasc.errors import CorruptError

_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
_COMPILER = re.escape(str(Path(__file__).parents[1]))
_HIDDEN = re.compile(
    rf"{_COMPILER}/|/site-packages/(jax|jaxlib|numpy)/|/lib/python3[^/]*/[^/]+$|^<"
)
_DIGITS = 12
_LARGEST_BYTES = 1 << 28


def module_lines(plain: str, located: str, base_dir: str) -> bytes:
    """Return the lines of a module.

    Args:
        plain: the module's text without locations.
        located: the text with locations inside the lines, lowered again; "" to omit the places.
        base_dir: folder to which paths are relative.
    """
    places: dict[str, int] = {}
    lines = []
    with_places = located.splitlines()
    for index, line in enumerate(plain.splitlines()):
        found = _place(with_places[index], base_dir) if index < len(with_places) else ""
        number = places.setdefault(found, len(places)) if found else -1
        lines.append([sha256(line.encode()).hexdigest()[:_DIGITS], number])
    data = {"places": [*places], "lines": lines}
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode())


def _place(line: str, base_dir: str) -> str:
    for file, number in _PLACE.findall(line):
        if not _HIDDEN.search(file):
            inside = os.path.relpath(file, base_dir) if os.path.isabs(file) else file
            return f"{os.path.basename(file) if inside.startswith('..') else inside}:{number}"
    return ""


def first_change(recorded: bytes, now: bytes) -> str:
    """Return where a module changed, `layers.py:88`; "" if the place is unknown.

    Raises:
        CorruptError: the recorded lines are damaged.
    """
    before, after = _read(recorded), _read(now)
    is_changed = False
    for index, (text, place) in enumerate(after["lines"]):
        others = before["lines"]
        is_changed = is_changed or index >= len(others) or others[index][0] != text
        if is_changed and place >= 0:  # a constant has no place; a later line that uses it may
            return str(after["places"][place])
    return ""


def _read(data: bytes) -> dict[str, list[Any]]:
    try:
        text = zlib.decompressobj().decompress(data, _LARGEST_BYTES)
        read: dict[str, list[Any]] = json.loads(text)
        for digest, place in read["lines"]:
            if type(digest) is not str or not -1 <= place < len(read["places"]):
                raise ValueError("a wrong line")
    except (zlib.error, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptError(f"the recorded lines of a module are damaged: {error}") from error
    return read
