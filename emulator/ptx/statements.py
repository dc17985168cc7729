"""Classifies lines of PTX.

Most lines occur repeatedly, within a kernel and in similar kernels, so that each text is analyzed
once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from pallasc.emulator.ptx.syntax import Statement, names_in

_MOST_LINES = 1 << 16
_INSTRUCTION = re.compile(
    r"""\s*(?:@(?P<negated>!)?(?P<guard>[%$_A-Za-z][\w$]*)\s+)?
    (?P<opcode>[a-z][\w.:]*\w)
    (?:\s+(?P<operands>[^;:"/]*))?;\s*""",
    re.VERBOSE,
)
"""An instruction on one line, without strings, comments, or `::` in operands."""
_REGISTERS = re.compile(
    r"\.reg\s+\.(\w+)\s+([%$_A-Za-z][\w$]*(?:<\d+>)?(?:,\s*[%$\w]+(?:<\d+>)?)*);"
)
_LABEL = re.compile(r"\s*([%$_A-Za-z][\w$]*)\s*:\s*")


class Declaration(NamedTuple):
    """A declaration of registers; `%r<9>` declares all registers with a prefix."""

    type: str
    names: tuple[str, ...]


class Block(NamedTuple):
    """A block on one line: the registers that it declares, and its instructions."""

    registers: tuple[Declaration, ...]
    statements: tuple[Statement, ...]


class Mark(NamedTuple):
    """A brace, the name of a label, or "" for an empty line."""

    text: str


EMPTY = Mark("")


Item = Statement | Declaration | Block | Mark


@lru_cache(_MOST_LINES)
def item_of(line: str) -> Item | None:
    """Classify a line, None if that requires tokens."""
    text = line.strip()
    if text in ("", "{", "}"):
        return Mark(text) if text else EMPTY
    if (match := _INSTRUCTION.fullmatch(text)) is not None:
        return _statement(match, text)
    if (match := _REGISTERS.fullmatch(text)) is not None:
        return Declaration(match[1], tuple(map(str.strip, match[2].split(","))))
    if (match := _LABEL.fullmatch(text)) is not None:
        return Mark(match[1])
    if text.startswith("{ ") and text.endswith("; }") and text.count("{") == text.count("}"):
        return _block(text[2:-3])
    return None


def _statement(match: re.Match[str], text: str) -> Statement:
    negated, guard, opcode, operands = match.groups("")
    end = operands.find("}" if operands[:1] == "{" else ",")
    first = operands[:end] if end > 0 else operands
    if first[:1] == "%" and first[1:].isalnum():
        results: tuple[str, ...] = (first,)
    else:
        results = () if first[:1] == "[" else names_in(first)
    is_branch = opcode.startswith(("bra", "brx"))
    return Statement(text[:-1], bool(negated), guard or None, opcode, operands, results, is_branch)


def _block(text: str) -> Block | None:
    registers, statements = [], []
    for each in text.split(";"):
        item = item_of(f"{each};")
        if isinstance(item, Declaration):
            registers.append(item)
        elif isinstance(item, Statement):
            statements.append(item)
        else:
            return None
    return Block(tuple(registers), tuple(statements))
