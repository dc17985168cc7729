"""Operands without their kernel: each text is read once for all kernels.

Their registers have a name, but neither number nor type.
"""

from __future__ import annotations

from functools import lru_cache

from pallasc.emulator.ptx.operands import OPERANDS, Operands, Scope
from pallasc.emulator.ptx.syntax import Operand, Register, is_register_name
from pallasc.emulator.ptx.tokens import Tokens

_MOST_OPERANDS = 1 << 15


@lru_cache(_MOST_OPERANDS)
def operands_of(text: str) -> tuple[Operand, ...]:
    """Return the operands in a text of a kernel whose registers all have plain names.

    Raises:
        UnsupportedError: something in it is not understood.
    """
    return tuple([_operand_of(each.rstrip()) for each in OPERANDS.findall(text)])


@lru_cache(_MOST_OPERANDS)
def _operand_of(text: str) -> Operand:
    return _Named(Tokens("")).from_text(text, Scope(), 0)


class _Named(Operands):
    def known(self, text: str, scope: Scope, line: int) -> Operand:
        return _operand_of(text)

    def named(self, name: str, scope: Scope) -> Operand:
        return Register(-1, "", name) if is_register_name(name) else super().named(name, scope)
