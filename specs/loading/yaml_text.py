"""Read YAML into plain data, with the position of each key and value.

YAML is read safely: only text, numbers, booleans, null, lists, and mappings are constructed. Plain
scalars follow the core schema of YAML 1.2; those that YAML 1.1 reads differently (`no`, `1_000`,
`010`, `2024-01-01`) are rejected as ambiguous. Anchors, aliases, and `<<` are allowed. A value
counts each time an alias repeats it, and the total is limited (`MOST_VALUES`). A JSON file is read
as YAML.

The parsers of libyaml and PyYAML yield one event at a time and do not recurse. PyYAML's composers
recurse, and build all values before these can be counted. So this module reads the events itself,
and limits the depth and the number of values. YAML 1.1, chapter 3.1, defines the events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

HALF = "contains a lone surrogate, which is only half of a character."
HALF_HINT = "Write the whole character, or its number, such as \\U0001f600."

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"(?P<sign>[-+]?)\.(?P<kind>inf|nan)", re.IGNORECASE)
_TAG_DIRECTIVE = re.compile(r"(?:^|[\r\n\x85\u2028\u2029])%TAG")
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?=[ \n]|$)", re.MULTILINE)
_JSON_SPECIAL = frozenset(("NaN", "Infinity", "-Infinity"))
"""Numbers that Python's json module writes."""

_AT_START = re.compile("could not find expected ':'|end of stream|'<stream end>'")
"""Problems that are reported where the key, text, or list begins, not where the parser stopped."""

_ALIGN = "Align this line with the line above"
_SYNTAX_HINTS = (
    ("but found '(<block|-|\\?)", f"{_ALIGN}."),
    ("mapping values are not allowed", f"{_ALIGN}, or put a space after the colon or dash there."),
    ("could not find expected ':'", "Put a colon and a space after the key."),
    ("unexpected end of stream", "A quote is not closed."),
    ("^(?!.*<document start>).*'<stream end>'", "A bracket is not closed."),
    ("but got '{'", 'Put a parameter in quotes: "{m}".'),
    ("but got '[]}]", "Remove this bracket, or open it."),
    ("',' or", "A bracket is not closed, or a comma is missing."),
    (
        "but found '[]}]",
        "Put a colon and a space before the opening bracket, or remove this closing bracket.",
    ),
    ("but found '(<scalar>|,)'", "Put the whole text in quotes, and close each quote."),
)
"""Patterns in a parser's message, each with a hint; the first that fits is used."""

_AMBIGUOUS = (
    (re.compile(r"yes|on", re.IGNORECASE), "Write true, or put it in quotes."),
    (re.compile(r"no|off", re.IGNORECASE), "Write false, or put it in quotes."),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?"), "Write it without '_', or in quotes."),
    (re.compile(r"[-+]?0[0-9_]+"), "Write it without the leading zero, or as 0o…, or in quotes."),
    (re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "Put it in quotes."),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"), "Put it in quotes."),
)


class Node(Struct):
    """A value with its position, and the values and positions of keys inside it.

    Attributes:
        line, column: its position, from 1.
        data: the value as plain data; an alias shares it.
        inside: the nodes of its items.
        keys: line and column of each of its keys.
        count: number of values in it, itself included.
    """

    line: int
    column: int
    data: Any = None
    inside: dict[str | int, Node] = field(default_factory=dict)
    keys: dict[str | int, tuple[int, int]] = field(default_factory=dict)
    count: int = 1


class Document(Struct):
    """Plain data with the position of each value and each key.

    Attributes:
        file: the path as the user gave it.
        root: the outermost value.
    """

    file: str
    root: Node

    @property
    def data(self) -> Any:
        """Content of the file."""
        return self.root.data

    def place(self, path: PathParts, at_key: bool = False) -> Location:
        """Return the position of a value, of its key, or of its nearest ancestor."""
        node = self.root
        for depth, part in enumerate(path, 1):
            if at_key and depth == len(path) and part in node.keys:
                return Location(self.file, *node.keys[part])
            if part not in node.inside:
                break
            node = node.inside[part]
        return Location(self.file, node.line, node.column)


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

    # This comes before parsing because libyaml takes quadratic time for many %TAG directives.
    if directive := _TAG_DIRECTIVE.search(text):
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
    kind = "JSON" if file.endswith(".json") else "YAML"
    if hasattr(error, "problem_mark"):
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context
        if _AT_START.search(problem):
            mark = error.context_mark or mark
        return SpecError(
            f"not {kind}: {problem}.",
            location=Location(file, mark.line + 1, mark.column + 1) if mark else Location(file),
            hint=_syntax_hint(text, mark.line, mark.column, problem) if mark else None,
        )
    line = text.count("\n", 0, error.position) + 1
    return SpecError(
        f"not {kind}: character {error.character:#x} is not allowed.",
        location=Location(file, line),
    )


def _syntax_hint(text: str, line: int, column: int, problem: str) -> str | None:
    lines = text.split("\n")
    current = lines[line] if line < len(lines) else ""
    if len(current) > _LONGEST_LINE:
        return None
    if "\t" in current:
        return "Indent with spaces; YAML has no tabs."
    if re.search(r"[\[{,:]\s*[\w{}]+\[[^\"']*[\]}]", current):
        return 'Put arrays in quotes: "bf16[{m}, 4096]".'
    if problem.startswith("mapping values") and ": " in current[:column]:
        return "Put text that contains a colon in quotes."
    if "<scalar>" in problem and current.count('"') % 2 and "'" not in current:
        return "A quote is not closed."
    return next((hint for part, hint in _SYNTAX_HINTS if re.search(part, problem)), None)


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
        or text.lower() in ("true", "false")
        or any(pattern.fullmatch(text) for pattern in (_INT, _FLOAT, _SPECIAL))
        or any(pattern.fullmatch(text) for pattern, _ in _AMBIGUOUS)
    )


class _Reader:
    """Converts the events of a parser to nodes.

    Counts values, so that aliases cannot multiply without end.
    """

    def __init__(self, events: Iterator[Any], file: str, most_values: int) -> None:
        self._events = events
        self._file = file
        self._most_values = most_values
        self._count = self._depth = 0
        self._anchors: dict[str, Node | None] = {}

    def read(self) -> Document:
        """Return the only document."""
        next(self._events)  # the start of the stream
        if type(next(self._events)).__name__ != "DocumentStartEvent":
            raise SpecError(
                "the file is empty.",
                location=Location(self._file),
                hint="pallasc init writes an example.",
            )
        root = self._node(next(self._events))
        next(self._events)  # the end of the document
        after = next(self._events)
        if type(after).__name__ == "DocumentStartEvent":
            raise self._error(after, "a file must be one document; a second one begins here.")
        return Document(self._file, root)

    def _until(self, end: str) -> Iterator[Any]:
        while type(event := next(self._events)).__name__ != end:
            yield event

    def _add(self, count: int, event: Any) -> None:
        self._count += count
        if self._count > self._most_values:
            raise self._error(event, f"more than {self._most_values} values, aliases counted.")

    def _node(self, event: Any) -> Node:
        kind, anchor = type(event).__name__, event.anchor
        if kind == "AliasEvent":
            return self._anchored(event)
        node = Node(event.start_mark.line + 1, event.start_mark.column + 1)
        before = self._count
        self._add(1, event)
        if anchor in self._anchors:
            raise self._error(event, f"anchor {anchor!r} is defined twice.")
        if anchor:
            self._anchors[anchor] = None
        if kind == "ScalarEvent":
            node.data = self._scalar(event)
        else:
            self._collection(event, node)
        node.count = self._count - before
        if anchor:
            self._anchors[anchor] = node
        return node

    def _anchored(self, alias: Any) -> Node:
        if alias.anchor not in self._anchors:
            raise self._error(alias, f"not YAML: found undefined alias {alias.anchor!r}.")
        node = self._anchors[alias.anchor]
        if node is None:
            raise self._error(alias, "an alias refers to a value that contains it.")
        self._add(node.count, alias)
        return node

    def _collection(self, event: Any, node: Node) -> None:
        if event.tag not in (*_UNTAGGED, _LIST, _MAPPING):
            raise self._tag_error(event)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(event, "lists and mappings are nested too deeply.")
        if type(event).__name__ == "MappingStartEvent":
            self._mapping(event, node)
        else:
            items = [self._node(item) for item in self._until("SequenceEndEvent")]
            node.inside = dict(enumerate(items))
            node.data = [item.data for item in items]
        self._depth -= 1

    def _mapping(self, start: Any, node: Node) -> None:
        sources: list[Node] = []
        written: Any = None
        for event in self._until("MappingEndEvent"):
            if getattr(event, "value", None) == "<<" and _is_plain(event):
                sources += self._sources(self._node(next(self._events)))
                continue
            key = self._key(event)
            if key in node.keys:
                first = Location(self._file, *node.keys[key])
                message = f"key {show(key)} is given twice, first at {first}."
                raise self._error(event, message, "Remove one of them.")
            node.keys[key] = event.start_mark.line + 1, event.start_mark.column + 1
            written = next(self._events)
            node.inside[key] = self._node(written)
        is_empty = getattr(written, "value", None) == "" and _is_plain(written)
        if start.flow_style and len(node.keys) == 1 and is_empty:
            raise self._error(
                start, f"{{{key}}} is a mapping in YAML.", f'Write "{{{key}}}" in quotes.'
            )
        for source in sources:  # the first source with a key wins
            node.inside = {**source.inside, **node.inside}
            node.keys = {**source.keys, **node.keys}
        node.data = {key: item.data for key, item in node.inside.items()}

    def _sources(self, merged: Node) -> list[Node]:
        """Return the mappings of a `<<`."""
        sources = [*merged.inside.values()] if isinstance(merged.data, list) else [merged]
        for source in sources:
            if not isinstance(source.data, dict):
                where = Location(self._file, source.line, source.column)
                raise SpecError("'<<' takes a mapping.", location=where, hint="Write <<: *anchor.")
        return sources

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
            if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
                raise self._error(event, "this number is too long.")
            return text
        for pattern, hint in _AMBIGUOUS:
            if pattern.fullmatch(text):
                message = f"{text}: YAML 1.1 and YAML 1.2 read this differently."
                raise self._error(event, message, hint)
        if _INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        if text in _JSON_SPECIAL and self._file.endswith(".json"):
            return float(text)
        special = _SPECIAL.fullmatch(text)
        return float(special["sign"] + special["kind"]) if special else text

    def _tag_error(self, event: Any) -> SpecError:
        name = event.tag.replace("tag:yaml.org,2002:", "!!")
        return self._error(event, f"the tag {name} is not allowed.", "Specs are plain data.")

    def _where(self, event: Any) -> Location:
        mark = event.start_mark
        return Location(self._file, mark.line + 1, mark.column + 1)

    def _error(self, event: Any, message: str, hint: str | None = None) -> SpecError:
        return SpecError(message, location=self._where(event), hint=hint)


def _is_plain(event: Any) -> bool:
    """Return True for a scalar without quotes or a tag."""
    return event.tag in _UNTAGGED and event.implicit[0]
