"""Read YAML into plain data, with the position of each key and value.

YAML is read safely: only text, numbers, booleans, null, lists, and mappings are constructed. Plain
scalars follow the core schema of YAML 1.2; those that YAML 1.1 reads differently (`no`, `1_000`,
`010`, `2024-01-01`) are rejected as ambiguous. Anchors and aliases are allowed; `<<` is an ordinary
key. A value counts each time an alias repeats it, and the total is limited (`MOST_VALUES`).

The parsers of libyaml and PyYAML yield one event at a time and do not recurse. PyYAML's composers
recurse, and build all values before these can be counted. So this module reads the events itself,
and limits the depth and the number of values. YAML 1.1, chapter 3.1, defines the events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import PathParts
from pallasc.specs.spelling import show
from pallasc.specs.user_files import read_regular

MOST_VALUES = 100_000
"""Maximum number of values in one file; an alias counts each time it is used."""

_DEEPEST = 100
"""Maximum nesting of lists and mappings."""

MOST_BYTES = 8 * 2**20
"""Maximum size of one file."""

_LONGEST_NUMBER = 100
_LONGEST_LINE = 1000
"""Number of characters of a line that are searched for the cause of an error."""

_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_TAG_DIRECTIVE = re.compile(r"(?:^|[\r\n\x85\u2028\u2029])%TAG")
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?=[ \n]|$)", re.MULTILINE)
_AMBIGUOUS = re.compile(
    r"(?i:yes|on|no|off)|[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?|[-+]?0[0-9_]+"
    r"|[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"
)


Position = tuple[int, int]
"""Line and column, from 1."""

_Spot = tuple[int, str | int]
"""The `id` of a list or mapping in a document, and an index or key of it."""


class Document(Struct):
    """Plain data with the position of each value and each key.

    Attributes:
        file: the path as the user gave it.
        data: the content; aliases share it.
        start: position of the outermost value; zeros if the positions are unknown.
        inside: positions of each value in a list or mapping, and of its key.
    """

    file: str
    data: Any
    start: Position = (0, 0)
    inside: dict[_Spot, tuple[Position, Position]] = {}

    def place(self, path: PathParts, at_key: bool = False) -> Location:
        """Return the position of a value, of its key, or of its nearest ancestor."""
        item, position = self.data, self.start
        for depth, part in enumerate(path, 1):
            if (id(item), part) not in self.inside:
                break
            position = self.inside[id(item), part][at_key and depth == len(path)]
            item = item[part]
        return Location(self.file, *position)


def read_document(file: str, shown: str | None = None) -> Document:
    """Read a YAML or JSON file; values of a JSON file have no positions.

    Args:
        file: the path.
        shown: the path to show in messages, by default `file`.

    Raises:
        SpecError: the file cannot be read, or is neither JSON nor YAML in the form that specs
            allow.
    """
    text = decoded(read_regular(file, most_bytes=MOST_BYTES), shown or file)
    parse = _parse_json if file.endswith(".json") else parse_document
    return parse(text, shown or file)


def _parse_json(text: str, file: str) -> Document:
    try:
        data = json.loads(text)
        json.dumps(data, ensure_ascii=False).encode()  # no lone surrogates
    except (ValueError, RecursionError) as error:
        place = Location(file, getattr(error, "lineno", 0), getattr(error, "colno", 0))
        reason = getattr(error, "msg", None) or error
        raise SpecError(f"not JSON: {reason}.", location=place) from None
    return Document(file, data)


def parse_document(text: str, file: str, *, most_values: int = MOST_VALUES) -> Document:
    """Parse YAML text with at most `most_values` values; `file` is for messages only.

    Raises:
        SpecError: as for `read_document`.
    """
    import yaml

    # This comes before parsing because libyaml takes quadratic time for many %TAG directives.
    if directive := _TAG_DIRECTIVE.search(text):
        line = text.count("\n", 0, directive.end()) + 1
        raise SpecError("tags are not allowed.", location=Location(file, line))
    loader: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        return _Reader(yaml.parse(text, Loader=loader), file, most_values).read()
    except yaml.MarkedYAMLError as error:
        raise _not_yaml(error, text, file) from None
    except yaml.YAMLError as error:
        raise SpecError(f"not YAML: {error}", location=Location(file)) from None


def decoded(content: bytes, file: str, hint: str = "Save the file as UTF-8.") -> str:
    """Decode a file and drop its byte order mark; `file` and `hint` are for the message.

    Raises:
        SpecError: the file is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SpecError(
            f"byte {content[error.start]:#04x} is not UTF-8.",
            location=Location(file, line),
            hint=hint,
        ) from None


def check_merged(text: str, file: str, what: str, hint: str) -> None:
    """Check that a generated file has no conflict markers of git.

    Raises:
        SpecError: there are markers.
    """
    if conflict := _CONFLICT.search(text):
        line = text.count("\n", 0, conflict.start()) + 1
        message = f"the {what} holds the marks of a merge conflict."
        raise SpecError(message, location=Location(file, line), hint=hint)


def _not_yaml(error: Any, text: str, file: str) -> SpecError:
    """Convert a syntax error of a YAML parser."""
    mark = error.problem_mark or error.context_mark
    problem = error.problem
    if error.context:
        problem = f"{error.context} that begins in line {error.context_mark.line + 1}, {problem}"
    lines = text.split("\n")
    line = lines[mark.line] if mark.line < len(lines) else ""
    hint = "Check the indentation, each quote and bracket, and the space after each colon."
    if "\t" in line:
        hint = "Indent with spaces; YAML has no tabs."
    elif re.search(r"[\[{,:]\s*[\w{}]+\[[^\"']*[\]}]", line[:_LONGEST_LINE]):
        hint = 'Put arrays in quotes: "bf16[{m}, 4096]".'
    place = Location(file, mark.line + 1, mark.column + 1)
    return SpecError(f"not YAML: {problem}.", location=place, hint=hint)


def reads_as_text(text: str) -> bool:
    """Return True if every YAML reader reads a plain scalar as text."""
    return not (
        text in _WORDS
        or text.lower() in ("true", "false")
        or any(pattern.fullmatch(text) for pattern in (_INT, _FLOAT, _SPECIAL, _AMBIGUOUS))
    )


class _Reader:
    """Converts the events of a parser to plain data.

    It limits the number of values, which nested aliases would multiply.
    """

    def __init__(self, events: Iterator[Any], file: str, most_values: int) -> None:
        self._events = events
        self._file = file
        self._most_values = most_values
        self._count = self._depth = 0
        self._anchors: dict[str | None, tuple[Any, int] | None] = {}
        self._inside: dict[_Spot, tuple[Position, Position]] = {}

    def read(self) -> Document:
        """Return the only document."""
        next(self._events)  # the start of the stream
        if type(next(self._events)).__name__ != "DocumentStartEvent":
            raise SpecError(
                "the file is empty.",
                location=Location(self._file),
                hint="pallasc init writes an example.",
            )
        first = next(self._events)
        data = self._value(first)
        next(self._events)  # the end of the document
        after = next(self._events)
        if type(after).__name__ == "DocumentStartEvent":
            raise self._error(after, "a file must be one document; a second one begins here.")
        return Document(self._file, data, _position(first), self._inside)

    def _until(self, end: str) -> Iterator[Any]:
        while type(event := next(self._events)).__name__ != end:
            yield event

    def _add(self, count: int, event: Any) -> None:
        self._count += count
        if self._count > self._most_values:
            raise self._error(event, f"more than {self._most_values} values, aliases counted.")

    def _value(self, event: Any) -> Any:
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._anchored(event)
        before = self._count
        self._add(1, event)
        self._anchors[event.anchor] = None
        if kind == "ScalarEvent":
            value = self._scalar(event)
        else:
            self._check_tag(event)
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error(event, "lists and mappings are nested too deeply.")
            value = self._mapping(event) if kind == "MappingStartEvent" else self._list()
            self._depth -= 1
        self._anchors[event.anchor] = value, self._count - before
        return value

    def _anchored(self, alias: Any) -> Any:
        if alias.anchor not in self._anchors:
            raise self._error(alias, f"not YAML: found undefined alias {alias.anchor!r}.")
        anchored = self._anchors[alias.anchor]
        if anchored is None:
            raise self._error(alias, "an alias refers to a value that contains it.")
        value, count = anchored
        self._add(count, alias)
        return value

    def _list(self) -> list[Any]:
        items: list[Any] = []
        for event in self._until("SequenceEndEvent"):
            self._inside[id(items), len(items)] = (_position(event),) * 2
            items.append(self._value(event))
        return items

    def _mapping(self, start: Any) -> dict[str, Any]:
        items: dict[str, Any] = {}
        written: Any = None
        for event in self._until("MappingEndEvent"):
            key = self._key(event)
            if key in items:
                first = Location(self._file, *self._inside[id(items), key][1])
                message = f"key {show(key)} is given twice, first at {first}."
                raise self._error(event, message, "Remove one of them.")
            written = next(self._events)
            self._inside[id(items), key] = _position(written), _position(event)
            items[key] = self._value(written)
        is_empty = getattr(written, "value", None) == "" and written.implicit[0]
        if start.flow_style and len(items) == 1 and is_empty:
            message = f"{{{key}}} is a mapping with an empty value in YAML."
            raise self._error(start, message, f'Write "{{{key}}}" in quotes, or {{{key}: null}}.')
        return items

    def _key(self, event: Any) -> str:
        if type(event).__name__ != "ScalarEvent":
            raise self._error(event, "a key must be text.", 'Put "{…}" in quotes.')
        key = self._scalar(event)
        if not isinstance(key, str):
            raise self._error(event, f"a key must be text, got {show(key)}.", "Put it in quotes.")
        return key

    def _scalar(self, event: Any) -> Any:
        self._check_tag(event)
        text: str = event.value
        if not event.implicit[0]:  # in quotes
            return text
        if text in _WORDS:
            return _WORDS[text]
        if len(text) > _LONGEST_NUMBER:
            if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
                raise self._error(event, "this number is too long.")
            return text
        if _AMBIGUOUS.fullmatch(text):
            message = f"{text}: YAML 1.1 and YAML 1.2 read this differently."
            hint = "Put text in quotes; write true, false, and numbers without '_' or leading 0."
            raise self._error(event, message, hint)
        if _INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        return float(text.replace(".", "")) if _SPECIAL.fullmatch(text) else text

    def _check_tag(self, event: Any) -> None:
        if event.tag is not None:
            name = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise self._error(event, f"the tag {name} is not allowed.", "Specs are plain data.")

    def _error(self, event: Any, message: str, hint: str | None = None) -> SpecError:
        return SpecError(message, location=Location(self._file, *_position(event)), hint=hint)


def _position(event: Any) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1
