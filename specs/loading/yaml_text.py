"""Read YAML into plain data, with the position of each key and value.

YAML is read safely: only text, numbers, booleans, null, lists, and mappings are constructed. Plain
scalars follow the core schema of YAML 1.2; those that YAML 1.1 reads differently (`no`, `1_000`,
`010`, `2024-01-01`) are rejected as ambiguous. Anchors, aliases, and `<<` work, up to a total
number of values. A JSON file is read as YAML.

The parsers of libyaml and PyYAML yield one event at a time and do not recurse. PyYAML's composers
do, and build everything before it can be counted, so this module reads the events, within bounds.
Source of the events: YAML 1.1, chapter 3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec import Struct, field

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import PathParts
from pallasc.specs.spelling import show
from pallasc.specs.user_files import read_regular

MOST_VALUES = 100_000
"""Maximum number of values in one file; an alias counts each time it is used."""

_DEEPEST = 100
"""Maximum nesting of lists and mappings."""

_TEXT = "tag:yaml.org,2002:str"
_LIST = "tag:yaml.org,2002:seq"
_MAPPING = "tag:yaml.org,2002:map"
_UNTAGGED = (None, "!")

MOST_BYTES = 8 * 2**20
"""Maximum size of one file."""

_MOST_EXPLAINED = 2**18
"""Longest text, in characters, that PyYAML's own parser reads again for its error messages; it is a
hundred times slower."""

_LONGEST_NUMBER = 100
_LONGEST_LINE = 1000
"""Longest line, in characters, that is searched for the cause of an error."""

HALF = "holds half of a character, which cannot be written."
HALF_HINT = "Write the character itself, or its number: \\U0001f600."

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"(?P<sign>[-+]?)\.(?P<kind>inf|nan)", re.IGNORECASE)
_TAG_DIRECTIVE = re.compile(r"(?:^|[\r\n\x85\u2028\u2029])%TAG")
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?=[ \n]|$)", re.MULTILINE)
_YES = frozenset(("yes", "on"))
_NO = frozenset(("no", "off"))
_AMBIGUOUS = (
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"), "Write it without '_', or in quotes."),
    (re.compile(r"[-+]?0[0-9_]+"), "Write it without the leading zero, or as 0o…, or in quotes."),
    (re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "Put it in quotes."),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"), "Put it in quotes."),
)


class Document(Struct):
    """Plain data with the position of each value and each key.

    Attributes:
        file: the path as the user gave it.
        data: content of the file.
    """

    file: str
    data: Any = None
    values: dict[PathParts, Location] = field(default_factory=dict)
    keys: dict[PathParts, Location] = field(default_factory=dict)

    def place(self, path: PathParts, at_key: bool = False) -> Location:
        """Return the position of a value, of its key, or of its nearest ancestor."""
        if at_key and path in self.keys:
            return self.keys[path]
        for length in range(len(path), -1, -1):
            if path[:length] in self.values:
                return self.values[path[:length]]
        return Location(self.file)


def read_document(file: str, shown: str | None = None) -> Document:
    """Read a YAML file.

    Args:
        file: the path.
        shown: the path to show in messages, by default `file`.

    Raises:
        SpecError: the file cannot be read, or is not YAML in the form that specs allow.
    """
    content = read_regular(file, most_bytes=MOST_BYTES)
    return parse_document(decoded(content, shown or file), shown or file)


def parse_document(text: str, file: str, *, most_values: int = MOST_VALUES) -> Document:
    """Parse YAML text with at most `most_values` values; `file` is for messages only.

    Raises:
        SpecError: as `read_document`.
    """
    import yaml

    if directive := _TAG_DIRECTIVE.search(text):  # libyaml compares each with all others
        line = text.count("\n", 0, directive.end()) + 1
        raise SpecError("tags are not allowed.", location=Location(file, line))
    if file.endswith(".json"):
        text = text.replace("\t", " ")  # JSON allows tabs only between tokens
    loaders: list[Any] = [yaml.CSafeLoader] if yaml.__with_libyaml__ else []
    if not loaders or len(text) <= _MOST_EXPLAINED:
        loaders.append(yaml.SafeLoader)
    failure: Any = None
    for loader in loaders:  # libyaml parses valid text, PyYAML's own parser explains errors
        try:
            return _Reader(yaml.parse(text, Loader=loader), file, most_values).read()
        except yaml.YAMLError as error:
            failure = error
    raise _not_yaml(failure, text, file) from None


def decoded(content: bytes, file: str, hint: str = "Save the file as UTF-8.") -> str:
    """Decode a file and drop its byte order mark; `file` and `hint` are for the message.

    Raises:
        SpecError: it is not UTF-8.
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
    """Convert an error of a YAML parser."""
    if hasattr(error, "problem_mark"):
        mark = error.problem_mark or error.context_mark
        where = Location(file, mark.line + 1, mark.column + 1) if mark else Location(file)
        return SpecError(
            f"not YAML: {error.problem or error.context}.",
            location=where,
            hint=_syntax_hint(text, mark.line if mark else 0),
        )
    line = text.count("\n", 0, error.position) + 1
    return SpecError(
        f"not YAML: character {error.character:#x} is not allowed.", location=Location(file, line)
    )


def _syntax_hint(text: str, line: int) -> str | None:
    lines = text.split("\n")
    current = lines[line] if line < len(lines) else ""
    if len(current) > _LONGEST_LINE:
        return None
    if "\t" in current:
        return "Indent with spaces; YAML has no tabs."
    if re.search(r"[\[{,:]\s*[\w{}]+\[[^\"']*[\]}]", current):
        return 'Put arrays in quotes: "bf16[{m}, 4096]".'
    if current.count("{") and '"' not in current:
        return 'Put a parameter in quotes: "{m}".'
    return None


def join_surrogates(text: str) -> str | None:
    """Return text with surrogate pairs joined, None if half of a pair is alone.

    JSON escapes a character beyond 16 bits as two surrogates (RFC 8259, section 7). Python keeps
    bytes of a file name that are not UTF-8 as single surrogates.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


def reads_as_text(text: str) -> bool:
    """Return True if every YAML reader reads a plain scalar as text."""
    return not (
        text in _NULL
        or text.lower() in {"true", "false"} | _YES | _NO
        or any(pattern.fullmatch(text) for pattern in (_INT, _FLOAT, _SPECIAL))
        or any(pattern.fullmatch(text) for pattern, _ in _AMBIGUOUS)
    )


class _Reader:
    """Converts the events of a parser to data; an alias reads the events of its anchor again.

    Counts values, so that aliases cannot multiply without end.
    """

    def __init__(self, events: Iterator[Any], file: str, most_values: int) -> None:
        self._events = events
        self._taken: list[Any] = []
        self._next = 0
        self._document = Document(file)
        self._most_values = self._left = most_values
        self._anchors: dict[str, int] = {}
        self._open: list[Any] = []

    def read(self) -> Document:
        """Return the only document."""
        self._take()
        if self._peek() != "DocumentStartEvent":
            raise SpecError(
                "the file is empty.",
                location=Location(self._document.file),
                hint="pallasc init writes an example.",
            )
        self._take()
        self._document.data = self._value(())
        self._take()
        if self._peek() == "DocumentStartEvent":
            message = "a file must be one document; a second one begins here."
            raise self._error(self._take(), message)
        return self._document

    def _peek(self) -> str:
        """Return the kind of the next event, such as `ScalarEvent`."""
        if self._next == len(self._taken):
            self._taken.append(next(self._events))
        return type(self._taken[self._next]).__name__

    def _take(self) -> Any:
        if self._next == len(self._taken):
            self._taken.append(next(self._events))
        event = self._taken[self._next]
        self._next += 1
        if not self._anchors and getattr(event, "anchor", None) is None:
            self._taken.clear()  # only the events of anchors are read again
            self._next = 0
        return event

    def _value(self, path: PathParts) -> Any:
        kind = self._peek()
        if kind == "AliasEvent":
            return self._replayed(partial(self._value, path))
        start = self._next
        event = self._take()
        self._document.values[path] = self._where(event)
        self._left -= 1
        if self._left < 0:
            raise self._error(event, f"more than {self._most_values} values, aliases counted.")
        if event.anchor and self._anchors.setdefault(event.anchor, start) != start:
            raise self._error(event, f"anchor {event.anchor!r} is defined twice.")
        if kind == "ScalarEvent":
            return self._scalar(event)
        if event.tag not in (*_UNTAGGED, _LIST, _MAPPING):
            raise self._tag_error(event)
        if any(event is other for other in self._open):
            raise self._error(event, "an alias refers to what contains it.")
        if len(self._open) > _DEEPEST:
            raise self._error(event, "lists and mappings are nested too deeply.")
        self._open.append(event)
        data = self._sequence(path) if kind == "SequenceStartEvent" else self._mapping(event, path)
        self._open.pop()
        return data

    def _replayed(self, read: Callable[[], Any]) -> Any:
        """Read the events of the next alias's anchor."""
        alias = self._take()
        if alias.anchor not in self._anchors:
            raise self._error(alias, f"not YAML: found undefined alias {alias.anchor!r}.")
        after, self._next = self._next, self._anchors[alias.anchor]
        data = read()
        self._next = after
        return data

    def _sequence(self, path: PathParts) -> list[Any]:
        items: list[Any] = []
        while self._peek() != "SequenceEndEvent":
            items.append(self._value((*path, len(items))))
        self._take()
        return items

    def _mapping(self, start: Any, path: PathParts) -> dict[str, object]:
        data: dict[str, object] = {}
        sources: list[dict[str, object]] = []
        value_event: Any = None
        while (kind := self._peek()) != "MappingEndEvent":
            event = self._take()
            if kind == "ScalarEvent" and event.value == "<<" and _is_plain(event):
                sources += self._merged(path)
                continue
            key = self._key(event)
            if key in data:
                first = self._document.keys[(*path, key)]
                message = f"key {show(key)} is given twice, first at {first}."
                raise self._error(event, message, "Remove one of them.")
            self._document.keys[(*path, key)] = self._where(event)
            value_event = None if self._peek() == "AliasEvent" else self._taken[self._next]
            data[key] = self._value((*path, key))
        self._take()
        if (
            start.flow_style
            and list(data.values()) == [None]
            and getattr(value_event, "value", 0) == ""
        ):
            raise self._error(
                start, f"{{{key}}} is a mapping in YAML.", f'Write "{{{key}}}" in quotes.'
            )
        merged: dict[str, object] = {}
        for source in reversed(sources):  # the first source with a key wins
            merged.update(source)
        return {**merged, **data}

    def _merged(self, path: PathParts) -> list[dict[str, object]]:
        """Return the mappings of a `<<`; the positions of keys given next to it stay."""
        own, self._document = self._document, Document(self._document.file)
        sources = self._sources(path)
        for places, found in (
            (own.values, self._document.values),
            (own.keys, self._document.keys),
        ):
            for place, where in found.items():
                places.setdefault(place, where)
        self._document = own
        return sources

    def _sources(self, path: PathParts) -> list[dict[str, object]]:
        if self._peek() == "AliasEvent":
            sources: list[dict[str, object]] = self._replayed(partial(self._sources, path))
            return sources
        if self._peek() != "SequenceStartEvent":
            return [self._source(path)]
        self._take()
        sources = []
        while self._peek() != "SequenceEndEvent":
            sources.append(self._source(path))
        self._take()
        return sources

    def _source(self, path: PathParts) -> dict[str, object]:
        source = self._value(path)
        if not isinstance(source, dict):
            where = self._document.values[path]
            raise SpecError("'<<' takes a mapping.", location=where, hint="Write <<: *anchor.")
        return source

    def _key(self, event: Any) -> str:
        if type(event).__name__ != "ScalarEvent":
            raise self._error(event, "a key must be text.", 'Put "{…}" in quotes.')
        key = self._scalar(event)
        if not isinstance(key, str):
            raise self._error(event, f"a key must be text, got {show(key)}.", "Put it in quotes.")
        return key

    def _scalar(self, event: Any) -> Any:
        if _is_plain(event):
            return self._plain(event, event.value)
        if event.tag not in (*_UNTAGGED, _TEXT):
            raise self._tag_error(event)
        return self._complete(event)

    def _complete(self, event: Any) -> str:
        text = join_surrogates(event.value)
        if text is None:
            raise self._error(event, f"{show(event.value)} {HALF}", HALF_HINT)
        return text

    def _plain(self, event: Any, text: str) -> Any:
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if len(text) > _LONGEST_NUMBER:
            return self._long(event, text)
        self._check_ambiguous(event, text)
        if _INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        special = _SPECIAL.fullmatch(text)
        return float(special["sign"] + special["kind"]) if special else text

    def _long(self, event: Any, text: str) -> str:
        if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
            raise self._error(event, "this number is too long.")
        return text

    def _check_ambiguous(self, event: Any, text: str) -> None:
        hint = next((hint for pattern, hint in _AMBIGUOUS if pattern.fullmatch(text)), None)
        if text.lower() in _YES | _NO:
            word = "true" if text.lower() in _YES else "false"
            hint = f'Write {word}, or "{text}" in quotes.'
        if hint is not None:
            raise self._error(event, f"{text}: YAML 1.1 and YAML 1.2 read this differently.", hint)

    def _tag_error(self, event: Any) -> SpecError:
        name = event.tag.replace("tag:yaml.org,2002:", "!!")
        return self._error(event, f"the tag {name} is not allowed.", "Specs are plain data.")

    def _where(self, event: Any) -> Location:
        mark = event.start_mark
        return Location(self._document.file, mark.line + 1, mark.column + 1)

    def _error(self, event: Any, message: str, hint: str | None = None) -> SpecError:
        return SpecError(message, location=self._where(event), hint=hint)


def _is_plain(event: Any) -> bool:
    """Return True for a scalar without quotes or a tag."""
    return event.tag in _UNTAGGED and event.implicit[0]
