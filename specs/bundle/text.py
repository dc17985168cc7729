"""Read JSON that may come from strangers: bounded in size, depth and numbers."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from pallasc.errors import CorruptError

_MOST_DEEP = 64
_LEAST, _LARGEST = -(2**63), 2**64
_SUSPECT = re.compile(rb"\d{19}|\d[eE]")
"""What every number beyond these, or too large to be one, has in it."""


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# Made once: `json.loads` would make another one for each value.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_json(data: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        CorruptError: it is none, nested deeper than 64 levels, or has a number beyond 64 bits.
    """
    try:
        value = _DECODER.decode(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{data[:60]!r} is not JSON: {error}") from error
    # Most texts cannot be at fault, which is told faster than by looking at each of their values.
    if data.count(b"[") + data.count(b"{") >= _MOST_DEEP or _SUSPECT.search(data):
        _check(value)
    return value


def _check(value: Any) -> None:
    level = [value]
    for _ in range(_MOST_DEEP):
        deeper: list[Any] = []
        for item in level:
            if type(item) is dict:
                deeper += item.values()
            elif type(item) is list:
                deeper += item
            elif type(item) is int and not _LEAST <= item < _LARGEST:
                raise CorruptError("a number of a JSON text is beyond 64 bits")
            elif type(item) is float and not math.isfinite(item):
                raise CorruptError("a number of a JSON text is too large")
        if not deeper:
            return
        level = deeper
    raise CorruptError(f"a JSON text is nested deeper than {_MOST_DEEP} levels")
