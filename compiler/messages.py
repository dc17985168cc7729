"""Messages between the command line process and its workers: JSON, one object a line.

To a worker: `{"op": "context", …}` once, then `{"op": "compile", "variant": …, "request": …}`; or
`{"op": "listen"}` once, then `{"op": "collect", "path": …}`. From it, `{"ready": true}` to the
first, and one answer for each request: `{"ok": true, …}` or `{"ok": false, "error": …}`. Bytes
travel as base64, and only where no store holds them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from pallasc import errors
from pallasc.errors import CompileError, PallascError
from pallasc.specs.wire import location_from_json, location_to_json


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line; the order of keys is kept."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Return the message on a line.

    Raises:
        ValueError: it is no JSON object.
    """
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError(f"a message is a JSON object, not a {type(message).__name__}")
    return message


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
