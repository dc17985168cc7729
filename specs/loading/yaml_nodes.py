"""Compose YAML into nodes, within bounds: depth and number are limited while the text is parsed.

The parsers of libyaml and PyYAML give one event at a time and do not recurse; PyYAML's composers
do, and build everything before anybody can count. Source of the events: YAML 1.1, chapter 3.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from pallasc.errors import Location, SpecError

MOST_VALUES = 100_000
"""Values in one file, aliases counted as often as they are used."""

DEEPEST = 100
"""Lists and mappings inside each other."""

PLAIN = "pallasc:plain"
"""The tag of a scalar without quotes or tag."""

TEXT = "tag:yaml.org,2002:str"
LIST = "tag:yaml.org,2002:seq"
MAPPING = "tag:yaml.org,2002:map"

_UNTAGGED = (None, "!")
_CONTROL = ("StreamStartEvent", "StreamEndEvent", "DocumentEndEvent")


class Node(Struct, eq=False):
    """A scalar, a list, or a mapping.

    Attributes:
        id: `scalar`, `sequence` or `mapping`.
        tag: what it is said to be.
        value: text; nodes; or pairs of nodes.
        line, column: where it starts, from 1.
        is_flow: written with brackets.
    """

    id: str
    tag: str
    value: Any
    line: int
    column: int
    is_flow: bool = False


def compose(events: Iterable[Any], file: str, most_values: int = MOST_VALUES) -> Node | None:
    """Return the root node of the only document, None where there is none.

    Args:
        events: of a parser, which may raise `yaml.YAMLError`.
        file: for the messages.
        most_values: values that the document may have.

    Raises:
        SpecError: a second document, an alias without anchor, or more or deeper than allowed.
    """
    composer = _Composer(file, most_values)
    for event in events:
        composer.take(event)
    return composer.root


class _Composer:
    def __init__(self, file: str, most_values: int) -> None:
        self.root: Node | None = None
        self._file = file
        self._most_values = most_values
        self._documents = 0
        self._count = 0
        self._open: list[Node] = []
        self._anchors: dict[str, Node] = {}

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise self._error(event, "a file must be one document; a second one begins here.")
        elif kind == "AliasEvent":
            self._alias(event)
        elif kind == "ScalarEvent":
            self._add(event, Node("scalar", _scalar_tag(event), event.value, *_start(event)))
        elif kind == "SequenceStartEvent":
            self._start("sequence", LIST, event)
        elif kind == "MappingStartEvent":
            self._start("mapping", MAPPING, event)
        elif kind not in _CONTROL:
            self._end()

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise self._error(event, f"not YAML: found undefined alias {event.anchor!r}.")
        self._put(event, self._anchors[event.anchor])

    def _start(self, kind: str, tag: str, event: Any) -> None:
        if len(self._open) > DEEPEST:
            raise self._error(event, "lists and mappings are nested too deeply.")
        tag = tag if event.tag in _UNTAGGED else event.tag
        node = Node(kind, tag, [], *_start(event), bool(event.flow_style))
        self._add(event, node)
        self._open.append(node)

    def _end(self) -> None:
        node = self._open.pop()
        if node.id == "mapping":
            node.value = list(zip(node.value[::2], node.value[1::2], strict=True))

    def _add(self, event: Any, node: Node) -> None:
        if event.anchor is not None:
            other = self._anchors.setdefault(event.anchor, node)
            if other is not node:
                raise self._error(event, f"anchor {event.anchor!r} is defined twice.")
        self._put(event, node)

    def _put(self, event: Any, node: Node) -> None:
        self._count += 1
        # Keys are counted here as well; the reader counts exactly.
        if self._count > 2 * self._most_values + 1:
            message = f"more than {self._most_values} values, aliases counted."
            raise self._error(event, message)
        if self._open:
            self._open[-1].value.append(node)
        else:
            self.root = node

    def _error(self, event: Any, message: str) -> SpecError:
        return SpecError(message, location=Location(self._file, *_start(event)))


def _start(event: Any) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1


def _scalar_tag(event: Any) -> str:
    if event.tag not in _UNTAGGED:
        return str(event.tag)
    return PLAIN if event.implicit[0] else TEXT
