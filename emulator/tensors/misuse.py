"""Errors of the emulator's pure functions, which have no access to the instruction or warp."""

from __future__ import annotations

from pallasc.errors import CheckError, UnsupportedError


class OperandError(CheckError):
    """An instruction has operands that the hardware does not allow.

    The machine converts it to a fault with a location; `rule` is the fault's rule.
    """

    def __init__(
        self, message: str, *, rule: str = "invalid-operand", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


def unsupported(what: str) -> UnsupportedError:
    """Return the error for something that the emulator does not support: an opcode, or a noun."""
    return UnsupportedError(f"the emulator does not support {what}")
