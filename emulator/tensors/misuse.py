"""What the pure parts of the emulator raise: they know neither instruction nor warp."""

from __future__ import annotations

from pallasc.errors import CheckError, UnsupportedError


class OperandError(CheckError):
    """An instruction's operands are such as the hardware does not allow.

    The machine makes a fault of it, which says where; `rule` is that of the fault.
    """

    def __init__(
        self, message: str, *, rule: str = "invalid-operand", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


def unsupported(what: str) -> UnsupportedError:
    """Return the error for something that the emulator does not support: an opcode, or a noun."""
    return UnsupportedError(f"the emulator does not support {what}")
