"""Refuse messages with fields that the schema here does not know: they might change a launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pallasc.errors import CompileError


def refuse_unknown_fields(message: Any, *, deep: bool = True) -> None:
    """Check that every field set in `message` is one that the schema knows.

    Raises:
        CompileError: one is not; the message names it by number.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):
        raise CompileError(
            f"the executable sets field {unknown.field_number} of {message.DESCRIPTOR.name}, "
            "which is not known here",
            hint="Install a supported JAX version (`pallasc doctor` lists them).",
        )
    if deep:
        for inner in _submessages(message):
            refuse_unknown_fields(inner)


def _submessages(message: Any) -> Iterator[Any]:
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.name in _UNREAD:
            continue
        yield from value if hasattr(value, "add") else [value]


_UNREAD = frozenset({"Shape", "AttributesMap", "Allocation", "Thunk"})
"""Messages that carry more than is read here, or that are checked on their own."""
