"""Read YAML into plain data, with the position of each key and value.

YAML is read safely: only text, numbers, booleans, null, lists, and mappings are constructed. Plain
scalars follow the core schema of YAML 1.2; those that YAML 1.1 reads differently (`no`, `1_000`,
`010`, `2024-01-01`) are rejected as ambiguous. Anchors, aliases, and `<<` work, up to a total
number of values. A JSON file is read as YAML.

The parsers of libyaml and PyYAML yield one event at a time and do not recurse. PyYAML's composers
do, and build everything before it can be counted, so this module composes nodes itself, within
bounds. Source of the events: YAML 1.1, chapter 3.1.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
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

_PLAIN = "pallasc:plain"
"""Tag of a scalar without quotes or a tag."""

_TEXT = "tag:yaml.org,2002:str"
_LIST = "tag:yaml.org,2002:seq"
_MAPPING = "tag:yaml.org,2002:map"
_UNTAGGED = (None, "!")
_CONTROL = ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent")

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

    document = Document(file)
    try:
        node = _compose(text, file, most_values)
    except yaml.YAMLError as error:
        raise _not_yaml(error, text, file) from None
    if node is None:
        raise SpecError(
            "the file is empty.", location=Location(file), hint="pallasc init writes an example."
        )
    document.data = _Reader(document, most_values).read(node, ())
    return document


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


def _compose(text: str, file: str, most_values: int) -> _Node | None:
    """Return the root node: libyaml parses valid text, PyYAML's own parser explains errors."""
    import yaml

    _check_directives(text, file)
    if file.endswith(".json"):
        text = text.replace("\t", " ")  # JSON allows tabs only between tokens
    is_short = len(text) <= _MOST_EXPLAINED
    if yaml.__with_libyaml__:
        with contextlib.suppress(*([yaml.YAMLError] if is_short else [])):
            return _Composer(file, most_values).document(yaml.parse(text, Loader=yaml.CSafeLoader))
    return _Composer(file, most_values).document(yaml.parse(text, Loader=yaml.SafeLoader))


def _check_directives(text: str, file: str) -> None:
    """Reject definitions of tags: no tag is allowed, and libyaml compares each with all others."""
    if directive := _TAG_DIRECTIVE.search(text):
        line = text.count("\n", 0, directive.end()) + 1
        raise SpecError("tags are not allowed.", location=Location(file, line))


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


class _Node(Struct, eq=False):
    """A scalar, a list, or a mapping.

    Attributes:
        id: `scalar`, `sequence`, or `mapping`.
        tag: the YAML tag.
        value: text, nodes, or pairs of nodes.
        line, column: start position, from 1.
        is_flow: True if written with brackets.
    """

    id: str
    tag: str
    value: Any
    line: int
    column: int
    is_flow: bool = False


class _Composer:
    def __init__(self, file: str, most_values: int) -> None:
        self._root: _Node | None = None
        self._file = file
        self._most_values = most_values
        self._documents = 0
        self._count = 0
        self._open: list[_Node] = []
        self._anchors: dict[str, _Node] = {}

    def document(self, events: Iterable[Any]) -> _Node | None:
        """Return the root node of the only document, None if there is none."""
        for event in events:
            self._take(event)
        return self._root

    def _take(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise self._error(event, "a file must be one document; a second one begins here.")
        elif kind == "AliasEvent":
            self._alias(event)
        elif kind == "ScalarEvent":
            self._add(event, _Node("scalar", _scalar_tag(event), event.value, *_start(event)))
        elif kind == "SequenceStartEvent":
            self._start("sequence", _LIST, event)
        elif kind == "MappingStartEvent":
            self._start("mapping", _MAPPING, event)
        elif kind not in _CONTROL:
            self._end()

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise self._error(event, f"not YAML: found undefined alias {event.anchor!r}.")
        self._put(event, self._anchors[event.anchor])

    def _start(self, kind: str, tag: str, event: Any) -> None:
        if len(self._open) > _DEEPEST:
            raise self._error(event, "lists and mappings are nested too deeply.")
        tag = tag if event.tag in _UNTAGGED else event.tag
        node = _Node(kind, tag, [], *_start(event), bool(event.flow_style))
        self._add(event, node)
        self._open.append(node)

    def _end(self) -> None:
        node = self._open.pop()
        if node.id == "mapping":
            node.value = list(zip(node.value[::2], node.value[1::2], strict=True))

    def _add(self, event: Any, node: _Node) -> None:
        if event.anchor is not None:
            other = self._anchors.setdefault(event.anchor, node)
            if other is not node:
                raise self._error(event, f"anchor {event.anchor!r} is defined twice.")
        self._put(event, node)

    def _put(self, event: Any, node: _Node) -> None:
        self._count += 1
        # Keys are also counted here; the reader counts exactly.
        if self._count > 2 * self._most_values + 1:
            message = f"more than {self._most_values} values, aliases counted."
            raise self._error(event, message)
        if self._open:
            self._open[-1].value.append(node)
        else:
            self._root = node

    def _error(self, event: Any, message: str) -> SpecError:
        return SpecError(message, location=Location(self._file, *_start(event)))


def _start(event: Any) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _scalar_tag(event: Any) -> str:
    if event.tag not in _UNTAGGED:
        return str(event.tag)
    return _PLAIN if event.implicit[0] else _TEXT


class _Reader:
    """Converts nodes to data and counts values, so that aliases cannot multiply without end."""

    def __init__(self, document: Document, most_values: int) -> None:
        self._document = document
        self._most_values = self._left = most_values
        self._open: list[Any] = []

    def read(self, node: _Node, path: PathParts) -> Any:
        self._document.values[path] = self._where(node)
        self._left -= 1
        if self._left < 0:
            raise self._error(node, f"more than {self._most_values} values, aliases counted.")
        if node.id == "scalar":
            return self._scalar(node)
        if node.tag not in (_LIST, _MAPPING):
            raise self._tag_error(node)
        if any(node is other for other in self._open):
            raise self._error(node, "an alias refers to what contains it.")
        if len(self._open) > _DEEPEST:
            raise self._error(node, "lists and mappings are nested too deeply.")
        self._open.append(node)
        data = self._sequence(node, path) if node.id == "sequence" else self._mapping(node, path)
        self._open.pop()
        return data

    def _sequence(self, node: _Node, path: PathParts) -> list[Any]:
        return [self.read(item, (*path, i)) for i, item in enumerate(node.value)]

    def _mapping(self, node: _Node, path: PathParts) -> dict[str, object]:
        self._check_forgotten_quotes(node)
        data: dict[str, object] = {}
        merged: dict[str, object] = {}
        sources = [
            self.read(source, path)
            for key_node, value_node in node.value
            if key_node.tag == _PLAIN and key_node.value == "<<"
            for source in self._merge_sources(value_node)
        ]
        for source in reversed(sources):  # the first source with a key wins
            merged.update(source)
        self._document.values[path] = self._where(node)
        for key_node, value_node in node.value:
            if key_node.tag == _PLAIN and key_node.value == "<<":
                continue
            key = self._key(key_node)
            if key in data:
                first = self._document.keys[(*path, key)]
                message = f"key {show(key)} is given twice, first at {first}."
                raise self._error(key_node, message, "Remove one of them.")
            self._document.keys[(*path, key)] = self._where(key_node)
            data[key] = self.read(value_node, (*path, key))
        return {**merged, **data}

    def _merge_sources(self, node: _Node) -> Iterator[Any]:
        sources = node.value if node.id == "sequence" else [node]
        for source in sources:
            if source.id != "mapping":
                raise self._error(source, "'<<' takes a mapping.", "Write <<: *anchor.")
            yield source

    def _key(self, node: _Node) -> str:
        if node.id != "scalar":
            raise self._error(node, "a key must be text.", 'Put "{…}" in quotes.')
        key = self._scalar(node)
        if not isinstance(key, str):
            raise self._error(node, f"a key must be text, got {show(key)}.", "Put it in quotes.")
        return key

    def _check_forgotten_quotes(self, node: _Node) -> None:
        if not node.is_flow or len(node.value) != 1:
            return
        key, value = node.value[0]
        if key.id == value.id == "scalar" and value.tag == _PLAIN and value.value == "":
            raise self._error(
                node,
                f"{{{key.value}}} is a mapping in YAML.",
                f'Write "{{{key.value}}}" in quotes.',
            )

    def _scalar(self, node: _Node) -> Any:
        if node.tag == _TEXT:
            return self._complete(node)
        if node.tag != _PLAIN:
            raise self._tag_error(node)
        return self._plain(node, node.value)

    def _complete(self, node: _Node) -> str:
        text = join_surrogates(node.value)
        if text is None:
            raise self._error(node, f"{show(node.value)} {HALF}", HALF_HINT)
        return text

    def _plain(self, node: _Node, text: str) -> Any:
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if len(text) > _LONGEST_NUMBER:
            return self._long(node, text)
        self._check_ambiguous(node, text)
        if _INT.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
        special = _SPECIAL.fullmatch(text)
        return float(special["sign"] + special["kind"]) if special else text

    def _long(self, node: _Node, text: str) -> str:
        if _INT.fullmatch(text) or _FLOAT.fullmatch(text):
            raise self._error(node, "this number is too long.")
        return text

    def _check_ambiguous(self, node: _Node, text: str) -> None:
        hint = next((hint for pattern, hint in _AMBIGUOUS if pattern.fullmatch(text)), None)
        if text.lower() in _YES | _NO:
            word = "true" if text.lower() in _YES else "false"
            hint = f'Write {word}, or "{text}" in quotes.'
        if hint is not None:
            raise self._error(node, f"{text}: YAML 1.1 and YAML 1.2 read this differently.", hint)

    def _tag_error(self, node: _Node) -> SpecError:
        name = node.tag.replace("tag:yaml.org,2002:", "!!")
        return self._error(node, f"the tag {name} is not allowed.", "Specs are plain data.")

    def _where(self, node: _Node) -> Location:
        return Location(self._document.file, node.line, node.column)

    def _error(self, node: _Node, message: str, hint: str | None = None) -> SpecError:
        return SpecError(message, location=self._where(node), hint=hint)
