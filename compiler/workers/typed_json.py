"""Dataclasses of messages as plain JSON, written and read by the types of their fields.

A field may be a scalar, a mapping with text as keys, a list, tuple or set, another dataclass, or of
a type in `_WRITERS`; `object` takes JSON as it stands. Reading refuses a value of another type.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pallasc import errors
from pallasc.errors import CompileError, Location, PallascError, SpecError, bounded
from pallasc.specs.spec import Spec, Variant
from pallasc.specs.wire import spec_from_json, spec_to_json, variant_from_json, variant_to_json


@dataclass(frozen=True, slots=True)
class _ErrorText:
    """An error of ours; `type` names the nearest public class."""

    type: str
    message: str
    hint: str | None
    location: Location | None
    exit_code: int
    field: str = ""
    kind: str = ""

    @staticmethod
    def of(error: PallascError) -> _ErrorText:
        public = next(k.__name__ for k in type(error).__mro__ if hasattr(errors, k.__name__))
        place = error.field if isinstance(error, SpecError) else ""
        hint = error.hint and bounded(error.hint)
        told = (bounded(error.message), hint, error.location, error.exit_code)
        return _ErrorText(public, *told, place, error.kind)

    def error(self) -> PallascError:
        if not 0 < self.exit_code < 256:
            raise ValueError(f"exit code {self.exit_code}")
        public = getattr(errors, self.type, None)
        kind = public if isinstance(public, type) and issubclass(public, PallascError) else None
        error = (kind or CompileError)(self.message, location=self.location, hint=self.hint)
        error.kind = self.kind
        error.exit_code = self.exit_code
        if isinstance(error, SpecError):
            error.field = self.field
        return error


_WRITERS: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (PallascError, lambda error: plain(_ErrorText.of(error))),
    (Variant, variant_to_json),
    (Spec, spec_to_json),
    (bytes, lambda data: base64.b64encode(data).decode()),
    (Path, str),
    (set, sorted),
)
_READERS: Mapping[object, Callable[[Any], object]] = {
    PallascError: lambda data: read_dataclass(_ErrorText, data).error(),
    Variant: variant_from_json,
    Spec: spec_from_json,
    bytes: lambda text: base64.b64decode(text, validate=True),
    Path: lambda text: Path(_read(str, text)),
}


def plain(value: object) -> object:
    """Return a value as plain JSON data."""
    if value is None or isinstance(value, str | int | float):  # most of a record
        return value
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def read_dataclass(kind: Any, data: object) -> Any:
    """Return a dataclass from a JSON object; unknown fields are ignored."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__}: not an object")
    values = {}
    for name, (hint, is_required) in _fields_of(kind).items():
        if is_required or name in data:
            values[name] = _read(hint, data[name])
    return kind(**values)


@cache
def _fields_of(kind: Any) -> dict[str, tuple[object, bool]]:
    """Return the type of each field of a dataclass, and whether it is required."""
    hints = get_type_hints(kind)
    return {
        each.name: (hints[each.name], each.default is each.default_factory is MISSING)
        for each in fields(kind)
    }


def _read(kind: Any, value: object) -> Any:
    """Return a value of JSON as the type of its field; one of another type is refused."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is object or (type(value) is kind and kind in (str, int, float, bool)):
        return value
    if origin is UnionType:  # `X | None`, nothing else
        return None if value is None else _read(inner[0], value)
    if kind in _READERS:
        return _READERS[kind](value)
    if is_dataclass(kind):
        return read_dataclass(kind, value)
    if isinstance(value, dict) and origin in (dict, Mapping):
        return {key: _read(inner[1], item) for key, item in value.items()}
    if isinstance(value, list) and origin in (tuple, list, set):
        return origin(_read(inner[0], item) for item in value)
    if (kind is float and type(value) is int) or (origin is Literal and value in inner):
        return value
    raise ValueError(f"{value!r:.80} is not {kind}")
