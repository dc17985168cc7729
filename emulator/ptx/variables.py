"""Variables and parameters of a PTX file."""

from __future__ import annotations

import re

from pallasc.emulator.ptx.syntax import Variable
from pallasc.emulator.ptx.tokens import Tokens

_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def read_variable(tokens: Tokens, space: str) -> Variable:
    """Parse `.align 8 .b8 name[16] = {...};` or a parameter, without the token that ends it."""
    alignment, width, is_pointer = 0, 1, False
    token = tokens.next()
    while token.text.startswith("."):
        is_pointer = is_pointer or token.text == ".ptr"
        if token.text == ".align":
            stated = tokens.integer()
            alignment = alignment if is_pointer else stated  # `.ptr .align` is the target's
        elif token.text not in (".ptr", ".global", ".shared", ".const", ".visible"):
            width = _SIZES.get(re.sub(r"\D", "", token.text), 0)
            if not width:
                raise tokens.refusal(token)
        token = tokens.next()
    count = 1
    while tokens.accept("["):
        count *= 0 if tokens.peek().text == "]" else tokens.integer()
        tokens.expect("]")
    data = _initial(tokens, width) if tokens.accept("=") else b""
    if space != "param":
        tokens.expect(";")
    return Variable(token.text, space, width * count, alignment or width, data)


def _initial(tokens: Tokens, width: int) -> bytes:
    """Parse the initial value of a variable: a number or a list of numbers (PTX ISA 9.0, 5.4.4)."""
    if not tokens.accept("{"):
        return (tokens.integer() % (1 << 8 * width)).to_bytes(width, "little")
    values = []
    while not tokens.accept("}"):
        values.append(tokens.integer() % (1 << 8 * width))
        tokens.accept(",")
    return b"".join(value.to_bytes(width, "little") for value in values)
