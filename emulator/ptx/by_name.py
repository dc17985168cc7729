"""Operands independent of their kernel: each text is parsed once for all kernels.

Their registers have a name, but no number or type.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pallasc.emulator.ptx.operands import OPERANDS, Operands, Scope
from pallasc.emulator.ptx.syntax import (
    Address,
    Arguments,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    Vector,
    is_register_name,
)
from pallasc.emulator.ptx.tokens import Tokens
from pallasc.errors import UnsupportedError

_MOST_OPERANDS = 1 << 16


def by_name(statement: Statement) -> tuple[tuple[Operand, ...], Register | None] | None:
    """Return the operands and the guard of a statement; None if they depend on the kernel.

    All registers of the kernel's outermost scope must have plain names.
    """
    if statement.by_name is None:
        guard = statement.guard
        try:
            found = tuple([_operand_of(o.rstrip()) for o in OPERANDS.findall(statement.operands)])
        except UnsupportedError:
            return None  # it is rejected later, with its line
        condition = None if guard is None else Register(-1, "", guard, statement.negated)
        statement.by_name = found, condition
    return statement.by_name


@lru_cache(_MOST_OPERANDS)
def _operand_of(text: str) -> Operand:
    return _Named(Tokens("")).from_text(text, Scope(), 0)


def renamed(
    operands: tuple[Operand, ...], names: Mapping[str, Register]
) -> tuple[Operand, ...] | None:
    """Return operands with registers of an inner scope; None if they depend on the kernel."""
    found = []
    for operand in operands:
        each: Operand = operand
        if isinstance(operand, Symbol | Register):
            each = names.get(operand.name, operand)
        elif isinstance(operand, Vector):
            if (elements := renamed(operand.elements, names)) is None:
                return None
            each = Vector(elements)
        elif isinstance(operand, Address) and isinstance(operand.base, Symbol | Register):
            base = names.get(operand.base.name, operand.base)
            each = Address(base, operand.offset, operand.coordinates)
        is_negated = isinstance(operand, Register) and operand.negated
        has_more = isinstance(operand, Address) and operand.coordinates
        if is_negated or has_more or isinstance(operand, Pair | Arguments):
            return None
        found.append(each)
    return tuple(found)


class _Named(Operands):
    def known(self, text: str, scope: Scope, line: int) -> Operand:
        return _operand_of(text)

    def named(self, name: str, scope: Scope) -> Operand:
        return Register(-1, "", name) if is_register_name(name) else super().named(name, scope)
