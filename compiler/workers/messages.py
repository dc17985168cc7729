"""Messages between the command line process and its workers: JSON objects; `channel` frames them.

To a worker: `{"op": "context", …}` once, then `{"op": "compile", "variant": …, "request": …}`; or
`{"op": "listen"}` once, then `{"op": "collect", "path": …}`. From it, `{"ready": true}` to the
first, and one answer for each request: `{"ok": true, …}` or `{"ok": false, "error": …}`. Bytes
travel as base64, and only where no store holds them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pallasc import errors
from pallasc.compiler.workers.diagnostics import MOST
from pallasc.errors import CompileError, PallascError
from pallasc.specs.wire import location_from_json, location_to_json


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line; the order of keys is kept."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the message on a line.

    Raises:
        ValueError: it is not a JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not a {type(message).__name__}")
    return message


def is_answer(message: Mapping[str, Any], op: str) -> bool:
    """Tell whether a message answers a request: its fields are there and of the right types.

    The user's code runs in the process that answers, so nothing of it is taken for granted.

    Args:
        message: what came.
        op: what was asked for.
    """
    if message.get("ok") is False:
        error = message.get("error")
        return isinstance(error, dict) and all(n in error and _fits(n, error) for n in _ERROR)
    present = all(name in message for name in _REQUIRED.get(op, ()))
    return message.get("ok") is True and present and all(_fits(name, message) for name in message)


_ERROR = ("type", "message", "hint", "location", "exit_code")
_REQUIRED = {
    "compile": ("action", "status", "seconds", "warnings", "uncached"),
    "collect": ("specs", "uncached"),
}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is str for item in value)


def _is_optional_text(value: Any) -> bool:
    return value is None or type(value) is str


def _is_place(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and [type(item) for item in value] == [str, int, int]
    )


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "action": lambda value: type(value) is str and re.fullmatch("[0-9a-f]{64}", value) is not None,
    "blobs": lambda value: isinstance(value, dict) and _is_texts([*value, *value.values()]),
    "conflict": lambda value: type(value) is str,
    "diagnostics": lambda value: isinstance(value, list) and len(value) <= MOST,
    "digest": lambda value: type(value) is str and re.fullmatch("[0-9a-f]{64}", value) is not None,
    "exit_code": lambda value: type(value) is int and 0 < value < 256,
    "hint": _is_optional_text,
    "location": _is_place,
    "manifest": lambda value: isinstance(value, dict),
    "message": lambda value: type(value) is str,
    "missed": lambda value: isinstance(value, dict) and _is_texts([*value, *value.values()]),
    "not_stored": lambda value: type(value) is str,
    "printed": lambda value: type(value) is str,
    "record": lambda value: isinstance(value, dict),
    "seconds": lambda value: type(value) in (int, float) and 0 <= value < 1e9,
    "sources": lambda value: isinstance(value, dict) and isinstance(value.get("missed"), dict),
    "specs": lambda value: isinstance(value, list) and all(type(item) is dict for item in value),
    "spoilt": lambda value: type(value) is bool,
    "status": lambda value: value in ("hit", "compiled"),
    "stored": lambda value: type(value) is bool,
    "type": lambda value: type(value) is str,
    "uncached": lambda value: type(value) is str,
    "warnings": _is_texts,
}
"""What a field of an answer, or of an error in one, may be."""


def _fits(name: str, message: Mapping[str, Any]) -> bool:
    check = _FIELDS.get(name)
    return check is None or check(message[name])


def error_to_json(error: PallascError) -> dict[str, Any]:
    """Return an error of ours as plain data."""
    return {
        "type": next(k.__name__ for k in type(error).__mro__ if hasattr(errors, k.__name__)),
        "message": error.message,
        "hint": error.hint,
        "location": location_to_json(error.location) if error.location else None,
        "exit_code": error.exit_code,
    }


def error_from_json(data: Mapping[str, Any]) -> PallascError:
    """Return the error that `error_to_json` was given, of the nearest public class."""
    public = getattr(errors, str(data["type"]), None)
    kind = public if isinstance(public, type) and issubclass(public, PallascError) else None
    place = data["location"]
    error = (kind or CompileError)(
        data["message"],
        location=location_from_json(place) if place else None,
        hint=data["hint"],
    )
    error.exit_code = data["exit_code"]
    return error


def blobs_to_json(blobs: Mapping[str, bytes]) -> dict[str, str]:
    """Return blobs as base64."""
    return {key: base64.b64encode(data).decode() for key, data in blobs.items()}


def blobs_from_json(data: Mapping[str, str]) -> dict[str, bytes]:
    """Return the blobs that `blobs_to_json` was given."""
    return {key: base64.b64decode(text) for key, text in data.items()}
