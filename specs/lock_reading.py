"""Read lock files, and say where a damaged one is wrong.

One in the form in which it is written is read line by line; ten thousand variants take a moment.
What an editor or a formatter made of it is read as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pallasc.errors import Location, SpecError
from pallasc.specs.lock import DIGEST, LOCK_SCHEMA, PLAIN, Component, Entry, Lock, update_command
from pallasc.specs.spelling import show

_CONFLICT = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?=[ \n]|$)", re.MULTILINE)
_DIGEST = re.compile(DIGEST)
_KEY = rf'(?:({PLAIN})|"([^"\\\n]+)")'
_VARIANT = re.compile(
    rf"^  {_KEY}: \{{action: ({DIGEST}), artifact: ({DIGEST}), request: ({DIGEST})\}}\n",
    re.MULTILINE,
)
_COMPONENT = re.compile(
    rf'^  {_KEY}: \{{(?:version: "([^"\\\n]*)", )?digest: ({DIGEST})\}}\n', re.MULTILINE
)


def read_lock(path: Path) -> Lock | None:
    """Return the lock that a file holds, None if there is no such file.

    Raises:
        SpecError: it cannot be read, or as `parse_lock`.
    """
    try:
        return parse_lock(path.read_text(encoding="utf-8-sig"), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SpecError(
            f"byte {error.object[error.start]:#04x} is not UTF-8.",
            location=Location(str(path), line),
            hint=f"Restore the file, or remove it and run: {update_command(path)}",
        ) from None


def parse_lock(text: str, file: str) -> Lock:
    """Return the lock that a text holds.

    Args:
        text: what the file holds.
        file: its name, for messages.

    Raises:
        SpecError: it is damaged, holds something twice, or was written by a later pallasc; the
            place is the line.
    """
    lock = _parse_own_form(text)
    if lock is None:
        lock = _parse_any_form(text, file)
    return lock


def _parse_own_form(text: str) -> Lock | None:
    """Return the lock of a text in the form that is written, None if it has any other.

    Lines of notes may have changed.
    """
    lines = text.split("\n", 20)
    notes = sum(len(line) + 1 for line in lines if line.startswith("#"))
    start = f"schema: {LOCK_SCHEMA}\ntoolchain:\n"
    head, found, body = text[notes:].partition("\nvariants:\n")
    if not found or not head.startswith(start):
        return None
    head = f"{head.removeprefix(start)}\n"
    toolchain = {a or b: Component(d, v) for a, b, v, d in _COMPONENT.findall(head)}
    variants = {a or b: Entry(*digests) for a, b, *digests in _VARIANT.findall(body)}
    whole = (len(toolchain), len(variants)) == (head.count("\n"), body.count("\n"))
    return Lock(toolchain, variants) if whole and body.endswith("\n") else None


def _parse_any_form(text: str, file: str) -> Lock:
    """Return the lock of a text in any form that YAML allows."""
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count("\n", 0, conflict.start()) + 1
        raise SpecError(
            "the lock holds the marks of a merge conflict.",
            location=Location(file, line),
            hint=f"Take either side whole, then run: {update_command(file)}",
        )
    return _Reader(file).read(_compose(text, file))


def _anew(file: str) -> str:
    return f"Restore it, or remove it and run: {update_command(file)}"


def _compose(text: str, file: str) -> Any:
    """Return YAML's nodes; libyaml is ten times as fast, where PyYAML was built with it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Location(file, mark.line + 1, mark.column + 1) if mark else Location(file)
        raise SpecError(
            f"not YAML: {error.problem or error.context}.", location=place, hint=_anew(file)
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(
            f"not YAML: {error.reason}.", location=Location(file, line), hint=_anew(file)
        ) from None
    except RecursionError:
        raise SpecError("lists and mappings lie too deep.", location=Location(file)) from None


class _Reader:
    """Turns nodes into a lock."""

    def __init__(self, file: str) -> None:
        self._file = file

    def read(self, node: Any) -> Lock:
        if node is None:
            raise SpecError(
                "the lock is empty.", location=Location(self._file), hint=_anew(self._file)
            )
        fields = {name: (value, key) for name, value, key in self._pairs(node, "a lock")}
        if "schema" not in fields:
            raise self._error(node, "'schema' is missing, so this is not a lock file of pallasc.")
        self._check_schema(fields.pop("schema")[0])
        for name in ("toolchain", "variants"):
            if name not in fields:
                raise self._error(node, f"{name!r} is missing.")
        (toolchain, _), (variants, _) = fields.pop("toolchain"), fields.pop("variants")
        for name, (_, key) in fields.items():
            raise self._error(key, f"unknown field {name!r}.")
        return Lock(
            {label: self._component(value) for label, value, _ in self._pairs(toolchain)},
            {name: self._entry(value) for name, value, _ in self._pairs(variants)},
        )

    def _check_schema(self, node: Any) -> None:
        if node.id != "scalar" or node.value != str(LOCK_SCHEMA):
            found = repr(node.value) if node.id == "scalar" else f"a {node.id}"
            raise SpecError(
                f"the lock has schema {found}, and this pallasc reads schema {LOCK_SCHEMA}.",
                location=self._place(node),
                hint="Install the pallasc that wrote it.",
            )

    def _component(self, node: Any) -> Component:
        fields = self._fields(node, "a component", digests=("digest",), optional=("version",))
        return Component(fields["digest"], fields.get("version", ""))

    def _entry(self, node: Any) -> Entry:
        return Entry(**self._fields(node, "a variant", digests=Entry._fields))

    def _fields(
        self, node: Any, what: str, *, digests: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> dict[str, str]:
        """Return the texts of a mapping that must hold just these fields."""
        fields = {}
        for name, value, key in self._pairs(node, what):
            if name not in (*digests, *optional):
                raise self._error(key, f"unknown field {name!r} of {what}.")
            if value.id != "scalar":
                raise self._error(value, f"{name!r} must be text, not a {value.id}.")
            if name in digests and not _DIGEST.fullmatch(value.value):
                shown = show(value.value)
                raise self._error(value, f"{shown} is not a digest of 64 hexadecimal digits.")
            fields[name] = value.value
        for name in digests:
            if name not in fields:
                raise self._error(node, f"{what} lacks {name!r}.")
        return fields

    def _pairs(self, node: Any, what: str = "this") -> Iterator[tuple[str, Any, Any]]:
        """Yield keys, values and the keys' nodes of a mapping whose keys are texts, each once."""
        if node.id != "mapping":
            raise self._error(node, f"{what} must be a mapping, not a {node.id}.")
        lines: dict[str, int] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise self._error(key, f"a key must be text, not a {key.id}.")
            if key.value in lines:
                first = lines[key.value]
                raise self._error(key, f"{key.value} is there twice, first in line {first}.")
            lines[key.value] = key.start_mark.line + 1
            yield key.value, value, key

    def _place(self, node: Any) -> Location:
        mark = node.start_mark
        return Location(self._file, mark.line + 1, mark.column + 1)

    def _error(self, node: Any, message: str) -> SpecError:
        return SpecError(message, location=self._place(node), hint=_anew(self._file))
