"""Errors raised by pallasc. Each class has the exit code with which the command line ends.

The message names the failure, the value that caused it, and the next step. `str(error)` is the text
that users see; a traceback is printed only with `--traceback`.
"""

from __future__ import annotations

from dataclasses import dataclass

_HEAD_CHARACTERS, _TAIL_CHARACTERS = 4_000, 2_000


@dataclass(frozen=True, slots=True)
class Location:
    """A position in a file: 1-based `line` and `column`; 0 means unknown."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


class PallascError(Exception):
    """Base class of all pallasc errors.

    Args:
        message: the failure and the value that caused it.
        location: position in the user's file, if known.
        hint: next step for the user, one sentence.
        reason: the message without its leading variant name, if it starts with one.
        kind: category of failures whose messages differ only in values, such as "registers";
            failures of one category are reported together.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        hint: str | None = None,
        reason: str = "",
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        self.hint = hint
        self.reason = reason
        self.kind = kind

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        hint = f"\n  {self.hint}" if self.hint else ""
        return f"{where}{self.message}{hint}"


class CompileError(PallascError):
    """A kernel failed to compile, or compiled to something other than requested."""


class UnsupportedError(CompileError):
    """The function contains something that a cubin launch cannot do, such as a host callback."""


class CheckError(PallascError):
    """A check found a difference between two results that must be equal."""


class SpecError(PallascError):
    """A spec, target, or argument is invalid, and the user has to correct it.

    Attributes:
        field: the invalid field of a kernel, such as `static.tile`, if the code that raises the
            error does not know the field's position in the spec.
    """

    exit_code = 2
    field = ""


class NotCachedError(PallascError):
    """Something is missing from the store, or differs from the lock file or a tuning table."""

    exit_code = 3


class ToolError(PallascError):
    """A tool, package, or device is missing, or its version is untested."""

    exit_code = 4


class DeviceError(ToolError):
    """The driver or GPU is missing, too old, or lacks a required feature.

    Attributes:
        names_variant: True if the message names the variant that could not be launched.
    """

    names_variant = False


class DriverError(DeviceError):
    """A call of the CUDA driver failed.

    Args:
        message: the failed call, with the driver's name and text for the error.
        code: the driver's error number, e.g. 700 for an illegal address.
        hint: what to do next.
    """

    def __init__(self, message: str, *, code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class OutOfMemoryError(DriverError):
    """The GPU does not have enough free memory."""


class SelectionError(DeviceError):
    """No variant of a kernel matches the GPU and the arrays, or more than one does."""


class ArgumentError(PallascError):
    """An array, stream, or option passed to a kernel is invalid for that kernel."""

    exit_code = 2


class CorruptError(PallascError):
    """Content does not match its digest, format, or signature."""

    exit_code = 5


class BudgetError(PallascError):
    """A variant uses more of a resource than its spec allows."""

    exit_code = 5


def message_of(error: BaseException) -> str:
    """Return the message of an exception raised by user code, which may be huge or unreadable."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - the exception's own `__str__` may raise anything
        return f"its message cannot be read: {type(failure).__name__}"
    return bounded(text)


def summary_of(error: BaseException) -> str:
    """Return the class and message of an exception raised by user code."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def bounded(text: str) -> str:
    """Cut the middle out of a text that is too long to print."""
    cut = len(text) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
    if cut <= 0:
        return text
    head, tail = text[:_HEAD_CHARACTERS], text[-_TAIL_CHARACTERS:]
    return f"{head}… ({cut:,} characters cut) …{tail}"
