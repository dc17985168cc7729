"""Canonical encodings of values: JSON, labeled keys, SHA-256 digests; and reading untrusted JSON.

A key is the SHA-256 of a schema line followed by one line for each field, sorted by label:
`len(label):label len(value):value`. The lengths are in bytes, in ASCII decimal, so different sets
of fields never give the same input.

Untrusted JSON is bounded in size, depth, and numbers. `msgspec.convert` makes structs of it. A
module with structs must not import `annotations` from `__future__`: evaluating types from text
would take milliseconds. A `Natural` is at least 0 and a `Positive` at least 1; both are below 2^63.
A `Number` is at least 0.

Ids and records show a parameter's value by its label, which is a scalar: the value itself; the
`$name` of a mapping; or a list or mapping in one line without spaces, keys sorted: `[64,128]`,
`{tile_m:64,tile_n:128}`. If that line is too long, the label is `#` and the first eight digits of
the SHA-256 of the value's canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from msgspec import Meta, Raw, Struct

from pallasc.errors import CorruptError

Scalar = str | int | float | bool | None
"""A value that an id shows unchanged."""

if TYPE_CHECKING:
    Value = Scalar | list["Value"] | dict[str, "Value"]
    """JSON-like data: a possible value of a parameter."""
else:
    Value = Any  # for msgspec, which reads annotations and has no recursive types

NAME = "$name"
"""The key that names a mapping; not part of the mapping's value."""

_LONGEST_LABEL = 48

KEY_SCHEMA = b"pallasc key 1\n"


# Built once: with these options, `json.dumps` builds an encoder for each call.
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical_text(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces, ASCII only."""
    return _ENCODER.encode(value)


typed = canonical_text
"""Values with equal results are equal and have the same type: 1, 1.0, true, and "1" differ."""


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


def label_of(value: Value) -> Scalar:
    """Return the label of a value."""
    if not isinstance(value, list | dict):
        return value
    if isinstance(value, dict) and NAME in value:
        return str(value[NAME])
    line = _line(value)
    return line if len(line) <= _LONGEST_LABEL else f"#{digest(canonical_json(value))[:8]}"


def _line(value: Value) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_line, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_line(value[key])}' for key in sorted(value))}}}"
    return plain(value)


def digest(data: bytes | Raw) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def labelled_key(fields: Mapping[str, bytes | str]) -> str:
    """Return the key of the labeled `fields`, in hexadecimal."""
    lines = [labelled(label, fields[label]) for label in sorted(fields)]
    return digest(KEY_SCHEMA + b"".join(lines))


def labelled(label: str, value: bytes | str) -> bytes:
    """Return the line of a field in a key; a key's lines are sorted by label."""
    # File names may not be UTF-8; surrogateescape restores their original bytes.
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    name = label.encode("utf-8", "surrogateescape")
    return b"%d:%s %d:%s\n" % (len(name), name, len(raw), raw)


_MOST_DEEP = 64
_LEAST, _LARGEST = -(2**63), 2**64
_SUSPECT = re.compile(rb"\d{19}|\d[eE]")
"""Matches every number that is out of bounds, and some numbers that are not."""


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# Built once: with these options, `json.loads` builds a decoder for each call.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_json(data: bytes) -> object:
    """Parse a JSON text.

    Raises:
        CorruptError: the text is not JSON, is nested deeper than 64 levels, or has a number beyond
            64 bits.
    """
    try:
        value: object = _DECODER.decode(data.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{data[:60]!r} is not JSON: {error}") from error
    # These two tests accept most texts, and are faster than visiting each value.
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


_MOST = (1 << 63) - 1
Natural = Annotated[int, Meta(ge=0, le=_MOST)]
Positive = Annotated[int, Meta(ge=1, le=_MOST)]
Number = Natural | Annotated[float, Meta(ge=0)]


class StrictStruct(Struct, frozen=True, forbid_unknown_fields=True):
    """Data that is read from untrusted JSON with `msgspec.convert`, which checks every type."""
