"""Canonical encodings of values: JSON, labeled keys, SHA-256 digests; and reading untrusted JSON.

A key is the SHA-256 of a schema line followed by one line for each field, sorted by label:
`len(label):label len(value):value`. The lengths are in bytes, in ASCII decimal, so different sets
of fields never give the same input.

Untrusted JSON is bounded in size, depth, and numbers. The functions `as_…` return a value if it has
the required type, and raise TypeError otherwise. `read` checks each field of a data class against
its declared type. A `Natural` is at least 0 and a `Positive` at least 1; both are below 2^63. A
`Number` is at least 0. In a union of data classes, the field `kind` has the class's name in lower
case. A module with such classes must not import `annotations` from `__future__`: evaluating types
from text would take milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin

from pallasc.errors import CorruptError

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


def _unexpected(what: str, value: object) -> TypeError:
    return TypeError(f"expected {what}, got {_short(value)}")


def fault(error: Exception) -> str:
    """Return a description of an error that was raised while reading JSON."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


Scalar = str | int | float | bool | None
"""A value that an id shows unchanged."""

Natural = Annotated[int, "from 0"]
Positive = Annotated[int, "from 1"]
Number = int | float

_Reader = Callable[[object], Any]
_CAPITAL = re.compile("(?<!^)(?=[A-Z])")


def read(kind: Any, data: object) -> Any:
    """Convert JSON to a value of a type.

    Args:
        kind: the type: a data class, a `TypedDict`, a tuple, which is a list in JSON, a list, a
            union, or a plain type.
        data: the JSON.

    Raises:
        LookupError, TypeError: the data has another type, or a field is missing or unknown.
    """
    return _reader(kind)(data)


def read_known(kind: Any, data: object) -> Any:
    """Convert JSON to a data class like `read`, but ignore unknown fields."""
    known = {name: value for name, value in as_object(data).items() if name in kind.__annotations__}
    return read(kind, known)


@cache
def _reader(kind: Any) -> _Reader:
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return partial(_choice, parts)
    if origin in (Union, UnionType) and NoneType in parts:
        return partial(_optional, _reader(parts[0]))
    if origin in (Union, UnionType):
        return partial(_of_kind, {part.__name__.lower(): _reader(part) for part in parts})
    if origin is Mapping:
        return partial(_mapping, _reader(parts[1]))
    if origin is list or Ellipsis in parts:
        return partial(_sequence, origin, _reader(parts[0]))
    if origin is tuple:
        return partial(_row, lambda *values: values, [_reader(part) for part in parts], 0)
    if issubclass(kind, tuple):
        readers = [_reader(part) for part in kind.__annotations__.values()]
        return partial(_row, kind, readers, len(kind._field_defaults))
    named = {name: _reader(hint) for name, hint in kind.__annotations__.items()}
    known = fields(kind) if is_dataclass(kind) else ()
    needed = {own.name for own in known if own.default is own.default_factory is MISSING}
    return partial(_record, kind, named, [name for name in named if name in needed or not known])


def _record(
    kind: type, readers: Mapping[str, _Reader], needed: Sequence[str], data: object
) -> object:
    values: dict[str, object] = {}
    name = ""
    try:
        for name, value in as_object(data).items():
            values[name] = readers[name](value)
    except KeyError:
        if name in readers:
            raise
        raise TypeError(f"unknown field {_short(name)} of a {_label(kind)}") from None
    except TypeError as error:
        raise TypeError(f"{name} of a {_label(kind)}: {error}" if name else str(error)) from error
    for name in needed:
        if name not in values:
            raise TypeError(f"{name!r} is missing")
    return kind(**values)


def _label(kind: type) -> str:
    return _CAPITAL.sub(" ", kind.__name__).lower()


def _of_kind(kinds: Mapping[str, _Reader], data: object) -> object:
    values = dict(as_object(data))
    name = _PLAIN[str](values.pop("kind"))
    if name not in kinds:
        raise TypeError(f"unknown kind {_short(name)}, expected one of {', '.join(kinds)}")
    return kinds[name](values)


def _sequence(kind: type, reader: _Reader, data: object) -> object:
    return kind(map(reader, as_list(data)))


def _mapping(reader: _Reader, data: object) -> object:
    return {name: reader(value) for name, value in as_object(data).items()}


def _row(
    make: Callable[..., object], readers: Sequence[_Reader], optional: int, data: object
) -> object:
    values = as_list(data)
    if not len(readers) - optional <= len(values) <= len(readers):
        raise TypeError(f"expected {len(readers)} values, got {len(values)}")
    return make(*[reader(value) for reader, value in zip(readers, values, strict=False)])


def _optional(reader: _Reader, data: object) -> object:
    return None if data is None else reader(data)


def _choice(choices: Sequence[object], data: object) -> object:
    if data not in choices or type(data) is not type(choices[0]):
        raise _unexpected(f"one of {choices}", data)
    return data


def _plain(what: str, types: tuple[type, ...], least: int | None, data: object) -> Any:
    """Return data of one of these types; numbers are at least `least`, whole ones below 2^63."""
    if type(data) not in types:
        raise _unexpected(what, data)
    most = math.inf if float in types else (1 << 63) - 1
    if least is not None and isinstance(data, int | float) and not least <= data <= most:
        raise _unexpected(what, data)
    return data


def _short(value: object) -> str:
    return repr(value)[:80]


_PLAIN: Mapping[Any, _Reader] = {
    Any: lambda data: data,
    int: partial(_plain, "a whole number", (int,), None),
    bool: partial(_plain, "true or false", (bool,), None),
    str: partial(_plain, "text", (str,), None),
    Scalar: partial(_plain, "the value of a parameter", (NoneType, str, int, float, bool), None),
    Natural: partial(_plain, "a whole number from 0", (int,), 0),
    Positive: partial(_plain, "a whole number from 1", (int,), 1),
    Number: partial(_plain, "a number from 0", (int, float), 0),
}
