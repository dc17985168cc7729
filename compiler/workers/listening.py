"""Record warnings, log records and the standard error output while a variant is made.

While a Python spec is executed, its standard output, too. For compiling processes. All of it is
still written. Warnings of a module while it is imported belong to every variant that reaches it.
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

from pallasc.compiler.toolchain.modules import module_of
from pallasc.compiler.workers.diagnostics import (
    STDERR,
    STDOUT,
    Diagnostic,
    Stage,
    lines_of,
    merged,
    stable,
)

_OURS = "pallasc.compiler."
_KINDS = {1: STDOUT, 2: STDERR}
"""The kind of text by file descriptor."""
_MOST_READ_BYTES = 1 << 20
"""Of a longer output, only the end is read."""


@dataclass(slots=True)
class Listener:
    """What a process has recorded.

    Attributes:
        imported: the diagnostics of modules while they were imported, by name.
    """

    imported: dict[str, list[Diagnostic]] = field(default_factory=dict)

    def forget_unloaded(self) -> None:
        """Forget the diagnostics of modules that will be executed again."""
        self.imported = {n: each for n, each in self.imported.items() if n in sys.modules}

    @contextlib.contextmanager
    def hearing(self, base_dir: str, *, outputs: tuple[int, ...] = (2,)) -> Iterator[Hearing]:
        """Listen until the end of the block.

        Args:
            base_dir: the folder of the variant's spec, which texts are freed of.
            outputs: the file descriptors to listen to, of 1 and 2.
        """
        with warnings.catch_warnings():
            pass  # forgets which warnings were shown already, so that they come again
        hearing = Hearing(self, base_dir, outputs)
        plain_warn, plain_handle = warnings.showwarning, logging.Logger.callHandlers
        warnings.showwarning = hearing.showing(plain_warn)
        logging.Logger.callHandlers = hearing.logging(plain_handle)  # type: ignore[method-assign]
        try:
            yield hearing
        finally:
            logging.Logger.callHandlers = plain_handle  # type: ignore[method-assign]
            warnings.showwarning = plain_warn


class Hearing:
    """Records diagnostics while a variant is made.

    Args:
        listener: gets the diagnostics of modules while they are imported.
        base_dir: the folder of the variant's spec.
        outputs: the file descriptors to listen to.

    Attributes:
        stage: the current stage.
        importing: the module that is being imported, "" if none is.
    """

    def __init__(self, listener: Listener, base_dir: str, outputs: tuple[int, ...]) -> None:
        self.stage: Stage = "lower"
        self.importing = ""
        self._listener = listener
        self._folders = {
            base_dir.rstrip("/"): "",
            (tempfile.tempdir or tempfile.gettempdir()).rstrip("/"): "$TMPDIR",
        }
        self._base_dir = base_dir
        self._own: list[Diagnostic] = []
        self._echoed: list[str] = []
        self._read_to = {descriptor: _size(descriptor) for descriptor in outputs}

    def showing(self, plain: Callable[..., None]) -> Callable[..., None]:
        """Return a replacement for `warnings.showwarning`."""

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
        """Return a replacement for `Logger.callHandlers`."""

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                with contextlib.suppress(Exception):  # arguments may not fit the message
                    text = record.getMessage()
                    self._add(record.levelname, record.name, text)
                    self._echoed.append(f"{text}\n")
            plain(logger, record)

        return call_handlers

    def next_stage(self, stage: Stage = "lower", *, importing: str = "") -> None:
        """Read what was written until now, and begin a stage."""
        self._read()
        self.stage, self.importing = stage, importing

    def diagnostics(self, modules: Iterable[str] | None = None) -> tuple[Diagnostic, ...]:
        """Return what was recorded, with the import of `modules`, or of all modules for None."""
        self._read()
        imported = self._listener.imported
        names = sorted({*(imported if modules is None else modules)})
        return merged([*(d for name in names for d in imported.get(name, ())), *self._own])

    def _add(self, kind: str, source: str, text: str) -> None:
        module = self.importing if kind in _KINDS.values() else _importing(sys._getframe(2))
        diagnostic = Diagnostic(self.stage, kind, source, stable(text, self._folders))
        if diagnostic.text:
            imported = self._listener.imported
            (imported.setdefault(module, []) if module else self._own).append(diagnostic)

    def _read(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # A handler of the user's may have put a prefix in front of it.
        echoed = {line for echo in self._echoed for line in echo.splitlines() if line.strip()}
        for descriptor, read_to in self._read_to.items():
            text = _since(descriptor, read_to)
            self._read_to[descriptor] = _size(descriptor)
            for echo in self._echoed:
                text = re.sub(f"^{re.escape(echo)}", "", text, count=1, flags=re.MULTILINE)
            for message in lines_of(text):
                if not any(message.endswith(line) for line in echoed):
                    self._add(_KINDS[descriptor], "", message)
        self._echoed.clear()


def _importing(frame: FrameType | None) -> str:
    """Return the user's innermost module that is being imported, "" if there is none."""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            name = module_of(frame.f_globals)
            return "" if name.startswith(_OURS) or name == "__main__" else name
        frame = frame.f_back
    return ""


def _shown_file(filename: str, base_dir: str) -> str:
    """Return a file's path below the spec's folder or a folder of `sys.path`."""
    places = [base_dir, *sorted(filter(None, sys.path), key=len, reverse=True)]
    for place in places:
        if filename.startswith(f"{place.rstrip('/')}/"):
            return filename[len(place.rstrip("/")) + 1 :]
    return os.path.basename(filename)


def _size(descriptor: int) -> int:
    """Return the size of an output, 0 if it is not a file."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _since(descriptor: int, start: int) -> str:
    """Return what was written to an output after its first `start` bytes."""
    size = _size(descriptor)
    if size < start:
        start = 0  # the build has cut it (`worker_process.Log`)
    start = max(start, size - _MOST_READ_BYTES)
    try:
        return os.pread(descriptor, size - start, start).decode("utf-8", "replace")
    except OSError:
        return ""


def tracing_anew(number: int) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX traces everything anew, a different one for each number.

    Otherwise JAX does not call a function again that it traced for an earlier variant, and its
    warnings are lost.
    """
    context: contextlib.AbstractContextManager[Any] = _user_context()(number)
    return context


@cache
def _user_context() -> Any:
    import jax

    return jax.make_user_context(0)
