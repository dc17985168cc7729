"""Errors that pallasc raises, one tree; each class knows the exit code of the command line.

The message says what failed, with which value, and what to do next. `str(error)` is what a user
sees: no traceback goes with it unless `--traceback` was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

_HEAD_CHARACTERS, _TAIL_CHARACTERS = 4_000, 2_000


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file: 1-based `line` and `column`; 0 stands for "not known"."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


class PallascError(Exception):
    """Base of every error of pallasc.

    Args:
        message: what failed, with which value.
        location: where in the user's file it failed, if that is known.
        hint: what to do next, one sentence.
        reason: what failed, where the message begins with the name of a variant: without that name.
        kind: what several variants may fail of, where messages hold values of one: "registers".
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
    """A kernel failed to compile, or its result is not what was requested."""


class UnsupportedError(CompileError):
    """The compiled function contains a step that cannot be launched from a cubin."""


class CheckError(PallascError):
    """A check found a difference between two results that had to be equal."""


class SpecError(PallascError):
    """A spec, a target or an argument is wrong: the user's text must change.

    Attributes:
        field: what of a kernel is wrong, `static.tile`, where only the spec knows its place.
    """

    exit_code = 2
    field = ""


class NotCachedError(PallascError):
    """Something is not in the store, or not as the lock file or a table says."""

    exit_code = 3


class ToolError(PallascError):
    """A tool, a package or a device is missing, or its version was not tested."""

    exit_code = 4


class DeviceError(ToolError):
    """The driver or the GPU is missing, too old, or cannot do what is asked.

    Attributes:
        names_variant: the message says which variant could not be launched.
    """

    names_variant = False


class DriverError(DeviceError):
    """A call of the CUDA driver failed.

    Args:
        message: what failed, with the driver's name and text of the error.
        code: the driver's number of it, 700 for an illegal address.
        hint: what to do next.
    """

    def __init__(self, message: str, *, code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class OutOfMemoryError(DriverError):
    """The GPU has not enough free memory."""


class SelectionError(DeviceError):
    """No variant of a kernel fits the GPU and the arrays, or more than one does."""


class ArgumentError(PallascError):
    """An array, a stream or an option that was given to a kernel does not fit it."""

    exit_code = 2


class CorruptError(PallascError):
    """Content does not match its digest, its format or its signature."""

    exit_code = 5


class BudgetError(PallascError):
    """A variant uses more of a resource than its spec allows."""

    exit_code = 5


def message_of(error: BaseException) -> str:
    """Return the message of an exception of the user's code, which may be huge or unreadable."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - the exception's own `__str__` may raise anything
        return f"its message cannot be read: {type(failure).__name__}"
    return bounded(text)


def summary_of(error: BaseException) -> str:
    """Return the class and the message of an exception of the user's code."""
    message = message_of(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def bounded(text: str) -> str:
    """Return a text without its middle if it is too long to print."""
    cut = len(text) - _HEAD_CHARACTERS - _TAIL_CHARACTERS
    if cut <= 0:
        return text
    head, tail = text[:_HEAD_CHARACTERS], text[-_TAIL_CHARACTERS:]
    return f"{head}… ({cut:,} characters cut) …{tail}"
