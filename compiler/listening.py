"""Hear what is said while a variant is made: warnings, logging, the standard error output.

For compiling processes. All of it still goes where it went. What a module says while it is imported
is said once a process, and belongs to every variant that reaches the module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any, TextIO

from pallasc.compiler.closure import module_of
from pallasc.compiler.diagnostics import (
    STDERR,
    Diagnostic,
    Stage,
    lines_of,
    merged,
    stable,
)

_OURS = "pallasc.compiler."
_MOST_READ_BYTES = 1 << 20
"""Of a longer output, only the end is looked at."""


@dataclass(slots=True)
class Listener:
    """What one process has heard.

    Attributes:
        imported: what modules said while they were imported, by name.
    """

    imported: dict[str, list[Diagnostic]] = field(default_factory=dict)

    @contextlib.contextmanager
    def hearing(self, base_dir: str) -> Iterator[Hearing]:
        """Listen until the end of the block.

        Args:
            base_dir: the folder of the variant's spec, which no text names.
        """
        with warnings.catch_warnings():
            pass  # so that what was said for an earlier variant is said again
        hearing = Hearing(self, base_dir)
        plain_warn, plain_handle = warnings.showwarning, logging.Logger.callHandlers
        warnings.showwarning = hearing.showing(plain_warn)
        logging.Logger.callHandlers = hearing.logging(plain_handle)  # type: ignore[method-assign]
        try:
            yield hearing
        finally:
            logging.Logger.callHandlers = plain_handle  # type: ignore[method-assign]
            warnings.showwarning = plain_warn


class Hearing:
    """What is said while one variant is made.

    Args:
        listener: keeps what modules say while they are imported.
        base_dir: the folder of the variant's spec.

    Attributes:
        stage: what is being done.
        importing: the module that the standard error output belongs to, where it is imported now.
    """

    def __init__(self, listener: Listener, base_dir: str) -> None:
        self.stage: Stage = "lower"
        self.importing = ""
        self._listener = listener
        self._folders = {
            base_dir.rstrip("/"): "",
            (tempfile.tempdir or tempfile.gettempdir()).rstrip("/"): "$TMPDIR",
        }
        self._base_dir = base_dir
        self._heard: list[Diagnostic] = []
        self._echoed: list[str] = []
        self._read_to = _stderr_size()

    def showing(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return what stands for `warnings.showwarning`."""

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            source = f"{_shown_file(filename, self._base_dir)}:{lineno}"
            self._add(category.__name__, source, str(message))
            self._echoed.append(warnings.formatwarning(message, category, filename, lineno, line))
            plain(message, category, filename, lineno, file, line)

        return show

    def logging(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return what stands for `Logger.callHandlers`."""

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                with contextlib.suppress(Exception):  # a message that does not fit its arguments
                    text = record.getMessage()
                    self._add(record.levelname, record.name, text)
                    self._echoed.append(f"{text}\n")
            plain(logger, record)

        return call_handlers

    def next_stage(self, stage: Stage = "lower", *, importing: str = "") -> None:
        """Take in what the standard error output has got, and note what is done next."""
        self._read_stderr()
        self.stage, self.importing = stage, importing

    def found(self, modules: Iterable[str]) -> tuple[Diagnostic, ...]:
        """Return what was said, and what the modules that a variant reaches said when imported."""
        self._read_stderr()
        imported = self._listener.imported
        said = [one for name in sorted({*modules}) for one in imported.get(name, ())]
        return merged([*said, *self._heard])

    def everything(self) -> tuple[Diagnostic, ...]:
        """Return what was said, and what any module said while it was imported."""
        return self.found(self._listener.imported)

    def _add(self, kind: str, source: str, text: str) -> None:
        module = self.importing if kind == STDERR else _importing(sys._getframe(2))
        heard = Diagnostic(self.stage, kind, source, stable(text, self._folders))
        if heard.text:
            (self._listener.imported.setdefault(module, []) if module else self._heard).append(
                heard
            )

    def _read_stderr(self) -> None:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        text = _stderr_since(self._read_to)
        self._read_to = _stderr_size()
        for echo in self._echoed:
            text = re.sub(f"^{re.escape(echo)}", "", text, count=1, flags=re.MULTILINE)
        # A handler of the user's may have put something in front of it.
        known = {line for echo in self._echoed for line in echo.splitlines() if line.strip()}
        self._echoed.clear()
        for said in lines_of(text):
            if not any(said.endswith(line) for line in known):
                self._add(STDERR, "", said)


def _importing(frame: FrameType | None) -> str:
    """Return the innermost module that is being imported, "" if none of the user's is."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = module_of(frame.f_globals)
            return "" if name.startswith(_OURS) or name == "__main__" else name
        frame = frame.f_back
    return ""


def _shown_file(filename: str, base_dir: str) -> str:
    """Return a file's name from the spec's folder, or from where modules are looked for."""
    places = [base_dir, *sorted(filter(None, sys.path), key=len, reverse=True)]
    for place in places:
        if filename.startswith(f"{place.rstrip('/')}/"):
            return filename[len(place.rstrip("/")) + 1 :]
    return os.path.basename(filename)


def _stderr_size() -> int:
    """Return how much the standard error output has got, 0 where it is no file."""
    try:
        status = os.fstat(2)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _stderr_since(start: int) -> str:
    """Return what the standard error output has got since it had `start` bytes."""
    size = _stderr_size()
    if size < start:
        start = 0  # it was cut meanwhile
    start = max(start, size - _MOST_READ_BYTES)
    try:
        return os.pread(2, size - start, start).decode("utf-8", "replace")
    except OSError:
        return ""


def tracing_anew(number: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX traces everything anew, another one for each number.

    Otherwise a function that was traced for an earlier variant is not called again, and what it
    says is lost.
    """
    context: contextlib.AbstractContextManager[Any] = _user_context()(number)
    return context


@cache
def _user_context() -> Any:
    import jax

    return jax.make_user_context(0)
