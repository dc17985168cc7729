"""The page of the instructions that the emulator executes: docs/opcodes.md."""

from __future__ import annotations

from collections.abc import Sequence

from pallasc.emulator.instructions.forms import FORMS, PARTS
from pallasc.emulator.instructions.refused import REFUSED
from pallasc.emulator.numbers.table import known_opcodes

_INTRO = """\
The artifact level of `pallasc check`, `pallasc run --emulate` and `pallasc.emulate` execute PTX.
They support the instructions below; chapters are those of PTX ISA 9.0. Any other instruction or
modifier is refused by name, and a variant that contains one is `not checked`. Each alternative of
each row is tested against values computed without the emulator.

In an instruction, `[...]` is optional, `(a|b)` is one of several, and a name between `<` and `>`
stands for:"""
_ARITHMETIC = """\
Chapters 9.7.1 to 9.7.8, and 9.7.9 for `prmt` and `cvt`. Where the manual allows an error, the
result is within that error."""
_REFUSED = """\
Instructions that are not supported, with an example of each. The list is not complete: an
instruction that is in none of these tables is refused as well."""


def opcodes_page(note: str) -> str:
    """Return the page."""
    executed = [[_code(form.pattern), form.note, form.chapter] for form in FORMS]
    arithmetic = [[_code(pattern), result] for pattern, result in known_opcodes()]
    refused = [[_code(opcode), what] for opcode, what in REFUSED]
    named = [
        [_code(f"<{name}>"), part if name == "n" else _code(part)] for name, part in PARTS.items()
    ]
    parts = [
        "# PTX instructions",
        note,
        _INTRO,
        _table(["name", "stands for"], named),
        "## Executed",
        _table(["instruction", "limits", "chapter"], executed),
        "## Executed: arithmetic",
        _ARITHMETIC,
        _table(["instruction", "result"], arithmetic),
        "## Refused",
        _REFUSED,
        _table(["instruction", "what it is"], refused),
    ]
    return "\n\n".join(parts) + "\n"


def _code(text: str) -> str:
    return f"`{text}`"


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    cells = [[_cell(cell) for cell in line] for line in body]
    lines = [list(head), ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    text = "" if text == "executed" else text.replace("|", "\\|")
    return text if text.startswith("`") else text.replace("*", "\\*")
