"""Fields that hold an entry point, and the nodes of static arguments that do."""

from __future__ import annotations

from typing import NamedTuple

from pallasc.specs.entries import parse_entry
from pallasc.specs.fields import Place, Schema, expected
from pallasc.specs.templates import is_template, parse_template

NODES = ("$call", "$ref")
"""Keys of a mapping under `static` that make it more than data."""

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"


class EntryKind(NamedTuple):
    """An entry point, or where allowed a template that gives one."""

    template: bool = False

    def read(self, value: object, at: Place) -> str:
        """Return the entry point in its normal form, or the template, unfilled."""
        if not isinstance(value, str):
            raise expected("an entry point", value, at, "Write package.module:function.")
        with at.blamed():
            if self.template and is_template(value):
                parse_template(value)
                return value
            return str(parse_entry(value))

    def schema(self) -> Schema:
        """Return the schema."""
        entry: Schema = {"type": "string", "pattern": rf"^[^:]+:{IDENTIFIER}(\.{IDENTIFIER})*$"}
        if not self.template:
            return entry
        return {"anyOf": [entry, {"type": "string", "pattern": r"\{[^{}]+\}"}]}
