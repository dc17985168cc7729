"""Pins: artifacts that stay, whatever the size of the store.

A pin is a file `pins/` action-key, a record of kind `pin`: `{ "label": text, "created": seconds }`.
Its name alone pins: a damaged pin still holds, only its label is lost.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass

from pallasc.cache import files, format
from pallasc.cache.manifests import is_seconds
from pallasc.cache.store import Store
from pallasc.errors import CorruptError, NotCachedError, ToolError

FOLDER = "pins"


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned artifact; `created` in seconds since the epoch, 0 if that is lost."""

    key: str
    label: str = ""
    created: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return the pin as JSON."""
        return asdict(self)


def pin(store: Store, action_key: str, *, label: str = "", now_s: float | None = None) -> Pin:
    """Keep an artifact from eviction; a second pin replaces the label.

    Raises:
        CorruptError: the key is not one.
        NotCachedError: the store has no whole artifact under this key.
        ToolError: the pin cannot be written.
    """
    made = Pin(format.check_name(action_key), label, time.time() if now_s is None else now_s)
    try:
        _write(store, made)
    except OSError as error:
        place = store.folder / FOLDER / made.key
        raise ToolError(f"{place}: cannot be pinned: {error.strerror or error}") from error
    # Looked up only now: an eviction may have come before the pin was there.
    if store.get_artifact(made.key, verify=True) is None:
        unpin(store, made.key)
        raise NotCachedError(
            f"the store has no artifact {made.key}", hint="Build it first, then pin it."
        )
    return made


def unpin(store: Store, key_or_label: str) -> list[Pin]:
    """Remove the pin of an action key, or all pins with a label; return what was removed.

    Raises:
        ToolError: a pin cannot be removed, or the pins cannot be listed.
    """
    gone = [pin for pin in pins(store) if key_or_label and key_or_label in (pin.key, pin.label)]
    for removed in gone:
        try:
            with contextlib.suppress(FileNotFoundError):
                store.folders.unlink(f"{FOLDER}/{removed.key}")
        except OSError as error:
            place = store.folder / FOLDER / removed.key
            raise ToolError(f"{place}: cannot be removed: {error.strerror or error}") from error
    return gone


def pins(store: Store) -> list[Pin]:
    """Return all pins, sorted by action key.

    Raises:
        ToolError: they cannot be listed.
    """
    try:
        names = store.folders.names(FOLDER)
    except OSError as error:
        raise ToolError(
            f"{store.folder / FOLDER}: cannot be listed: {error.strerror or error}"
        ) from error
    return [_read(store, name) for name in names if format.is_name(name)]


def held_by_pins(store: Store) -> frozenset[str]:
    """Return the action keys that are pinned.

    Raises:
        OSError: if they cannot be listed.
    """
    return frozenset(name for name in store.folders.names(FOLDER) if format.is_name(name))


def mend(store: Store, action_key: str) -> None:
    """Write a damaged pin anew. It holds what it held; its label and its time are lost.

    Raises:
        CorruptError: the key is not one.
        OSError: if the pin cannot be written.
    """
    key = format.check_name(action_key)
    try:
        _write(store, Pin(key))
    except IsADirectoryError:
        files.remove_any(store.folders, f"{FOLDER}/{key}")
        _write(store, Pin(key))


def decode(key: str, data: bytes) -> Pin:
    """Return the pin that the bytes of `pins/` key say.

    Raises:
        CorruptError: if they are not such a record.
    """
    body, _ = format.decode(format.PIN, format.check_name(key), data)
    label, created = body.get("label"), body.get("created")
    if body.keys() != {"label", "created"} or not isinstance(label, str) or not is_seconds(created):
        raise CorruptError(f"{format.PIN} {key}: not an object of a label and a time")
    return Pin(key, label, float(created))  # type: ignore[arg-type]


def _write(store: Store, made: Pin) -> None:
    body = {"label": made.label, "created": made.created}
    data, _ = format.encode(format.PIN, made.key, body)
    with files.temporary(store.folders, data) as place:
        files.publish_last(store.folders, place, f"{FOLDER}/{made.key}")
    store.folders.sync(FOLDER)


def _read(store: Store, key: str) -> Pin:
    with contextlib.suppress(OSError, CorruptError):
        place = f"{FOLDER}/{key}"
        file = files.read(store.folders, place, limit_bytes=format.MAX_RECORD_BYTES)
        if file is not None and not file.fault:
            return decode(key, file.data)
    return Pin(key)
