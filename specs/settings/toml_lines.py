"""The lines of keys in TOML, which `tomllib` does not report."""

from __future__ import annotations

import re

from msgspec import Struct

from pallasc.errors import Location
from pallasc.specs.fields import PathParts


class TomlLines(Struct, frozen=True):
    """Finds the lines of keys in a TOML file.

    Attributes:
        file: the file, as messages name it.
        text: its text.
    """

    file: str
    text: str

    def value(self, path: PathParts) -> Location:
        """Return the place of a value."""
        return self.key(path)

    def key(self, path: PathParts) -> Location:
        """Return the place of the key that leads to a value."""
        start = line = 0
        for part in path:
            if isinstance(part, str):
                head = rf"""^[ \t]*(?:\[[^\n\]]*\.)?\[?["']?{re.escape(part)}["']?[ \t]*[=.\]]"""
                match = re.compile(head, re.MULTILINE).search(self.text, start)
                if match is not None:
                    start = match.start()
                    line = self.text.count("\n", 0, start) + 1
        return Location(self.file, line)
