"""Data classes from untrusted JSON: each field is checked against its declared type.

A `Natural` is at least 0 and a `Positive` at least 1; both are below 2^63. In a union of data
classes, the field `kind` has the class's name in lower case. A module with such classes must not
import `annotations` from `__future__`: evaluating types from text would take milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pallasc.specs.untrusted_json import as_flag, as_list, as_object, as_text, as_whole

Natural = Annotated[int, "from 0"]
Positive = Annotated[int, "from 1"]

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
    if origin is list or Ellipsis in parts:
        return partial(_sequence, origin, _reader(parts[0]))
    if origin is tuple:
        return partial(_row, tuple, [_reader(part) for part in parts])
    if issubclass(kind, tuple):
        return partial(_row, kind._make, [_reader(part) for part in kind.__annotations__.values()])
    readers = {name: _reader(hint) for name, hint in kind.__annotations__.items()}
    known = fields(kind) if is_dataclass(kind) else ()
    optional = {field.name for field in known if field.default is not MISSING}
    return partial(_record, kind, readers, [name for name in readers if name not in optional])


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
    name = as_text(values.pop("kind"))
    if name not in kinds:
        raise TypeError(f"unknown kind {_short(name)}, expected one of {', '.join(kinds)}")
    return kinds[name](values)


def _sequence(kind: type, reader: _Reader, data: object) -> object:
    return kind(map(reader, as_list(data)))


def _row(make: Callable[[Any], object], readers: Sequence[_Reader], data: object) -> object:
    values = as_list(data)
    if len(values) != len(readers):
        raise TypeError(f"expected {len(readers)} values, got {len(values)}")
    return make(reader(value) for reader, value in zip(readers, values, strict=True))


def _optional(reader: _Reader, data: object) -> object:
    return None if data is None else reader(data)


def _choice(choices: Sequence[object], data: object) -> object:
    if data not in choices or type(data) is not type(choices[0]):
        raise TypeError(f"expected one of {choices}, got {_short(data)}")
    return data


def _natural(data: object) -> int:
    if type(data) is int and 0 <= data < 1 << 63:
        return data
    raise TypeError(f"expected a whole number from 0, got {_short(data)}")


def _positive(data: object) -> int:
    if type(data) is int and 1 <= data < 1 << 63:
        return data
    raise TypeError(f"expected a whole number from 1, got {_short(data)}")


def _short(value: object) -> str:
    return repr(value)[:80]


_PLAIN: Mapping[Any, _Reader] = {
    int: as_whole,
    bool: as_flag,
    str: as_text,
    Any: lambda data: data,
    Natural: _natural,
    Positive: _positive,
}
