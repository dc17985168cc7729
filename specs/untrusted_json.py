"""Untrusted JSON: bounded in size, depth, and numbers, with checks of the expected types.

The functions `as_…` return a value if it has the required type, and raise TypeError otherwise.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pallasc.errors import CorruptError

_MOST_DEEP = 64
_LEAST, _LARGEST = -(2**63), 2**64
_SUSPECT = re.compile(rb"\d{19}|\d[eE]")
"""Matches every number that is out of bounds, and some that are not."""


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# Built once: with these options, `json.loads` builds a decoder for each call.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_json(data: bytes) -> object:
    """Parse a JSON text.

    Raises:
        CorruptError: it is not JSON, is nested deeper than 64 levels, or has a number beyond 64
            bits.
    """
    try:
        value: object = _DECODER.decode(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{data[:60]!r} is not JSON: {error}") from error
    # These two counts clear most texts, which is faster than visiting each value.
    if data.count(b"[") + data.count(b"{") >= _MOST_DEEP or _SUSPECT.search(data):
        _check(value)
    return value


def _check(value: object) -> None:
    level = [value]
    for _ in range(_MOST_DEEP):
        deeper: list[object] = []
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


def as_object(value: object) -> Mapping[str, object]:
    """Return a JSON object."""
    if not isinstance(value, Mapping):
        raise _unexpected("an object", value)
    return value


def as_list(value: object) -> Sequence[object]:
    """Return a JSON array; freshly compiled records have tuples."""
    if not isinstance(value, list | tuple):
        raise _unexpected("a list", value)
    return value


def as_text(value: object) -> str:
    """Return text."""
    if type(value) is not str:
        raise _unexpected("text", value)
    return value


def as_whole(value: object) -> int:
    """Return a whole number; true and false do not count as numbers."""
    if type(value) is not int:
        raise _unexpected("a whole number", value)
    return value


def as_flag(value: object) -> bool:
    """Return true or false."""
    if type(value) is not bool:
        raise _unexpected("true or false", value)
    return value


def _unexpected(what: str, value: object) -> TypeError:
    return TypeError(f"expected {what}, got {repr(value)[:80]}")


def fault(error: Exception) -> str:
    """Return a description of an error that was raised while reading JSON."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
