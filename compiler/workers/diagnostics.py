"""Warnings and other output of a variant that was traced, lowered, and compiled successfully.

A diagnostic is a Python warning, a `logging` record at WARNING or above, or some lines of standard
error, which C++ and child processes write to as well. A manifest stores the diagnostics of its
compilation, so that a hit repeats them. An artifact has none, so that it is the same with and
without diagnostics. If a variant is lowered and its artifact is already stored, the diagnostics of
XLA's compilation come from a manifest under a separate key (`store_for_action`).

JSON of a diagnostic: `{"stage": "lower" | "compile", "kind": …, "source": …, "text": …, "count":
n}`. All texts are bounded, and have no addresses, times, or folders (`stable`). Lines of XLA that
are unrelated to the kernel are left out (`_NOISE`).
"""

from __future__ import annotations

import os
import re
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from pallasc.cache.manifests import LONGEST_TEXT, MOST_DIAGNOSTICS, Diagnostic, Manifest
from pallasc.compiler.toolchain.modules import module_of
from pallasc.specs.canonical import labelled_key

if TYPE_CHECKING:
    import logging
    from types import FrameType

    from pallasc.cache.store import Store

Stage = Literal["lower", "compile"]

_NOISE = (
    # XLA's alarms about slow operations, and the lines after them: they depend on the machine's
    # load.
    r"slow_operation_alarm\.cc:\d+\]|^\*{20,}$|\] Very slow compile\? If you want to file a bug"
    r"|^The operation took \S+$|^This isn't necessarily a bug; constant-folding is"
    r"|^If you'd like to file a bug, run with envvar XLA_FLAGS=",
    # absl prints this once per process, before its first message.
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    # There is no GPU, which is normal for pallasc.
    r"cuda_(?:executor|diagnostics|platform)\.cc:\d+\].*(?:cuInit|CUDA_ERROR_|kernel driver)",
    # Several copies of XLA in one process register the same factory.
    r"Attempting to register factory for plugin \S+ when one has already been registered",
    # For every kernel, XLA asks its LLVM for a newer PTX version than LLVM knows.
    r"^'[+-](?:ptx|sm_)\w+' is not a recognized feature for this target",
)
"""Lines of XLA in JAX 0.10 to 0.12 that are unrelated to a kernel; most depend on the machine."""
_IS_NOISE = re.compile("|".join(_NOISE))

# W0000 00:00:1763798400.123456   12345 file.cc:12] text   (absl and glog)
_ABSL = re.compile(r"^([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ (?=\S+:\d+\])", re.MULTILINE)
# 2026-01-31 08:00:00.123456: W file.cc:12] text           (TensorFlow)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def stable(text: str, folders: Mapping[str, str]) -> str:
    """Remove addresses, times, and folders, which differ between runs, and bound the length.

    Args:
        text: the message.
        folders: path without a trailing slash -> its replacement; "" also removes the slash.
    """
    text = _CONTROL.sub("", text[: 50 * LONGEST_TEXT]).replace("\r\n", "\n").strip("\n")
    text = _ABSL.sub(r"\1 ", text)
    for pattern in (_TIME, _ADDRESS):
        text = pattern.sub("…", text)
    for folder in sorted(filter(None, folders), key=len, reverse=True):
        text = text.replace(f"{folder}/", f"{folders[folder]}/" if folders[folder] else "")
        alone = re.compile(rf"{re.escape(folder)}(?![\w.-])")
        text = (folders[folder] or ".").join(alone.split(text))
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def lines_of(text: str) -> list[str]:
    """Split output into messages: each is a line with the indented lines that follow it."""
    messages: list[str] = []
    for line in text.splitlines():
        if messages and line[:1] in " \t" and line.strip():
            messages[-1] += f"\n{line.rstrip()}"
        elif line.strip():
            messages.append(line.rstrip())
    return [message for message in messages if not _IS_NOISE.search(message)]


def merged(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Merge and count equal diagnostics, in the order of first appearance; limit their number."""
    counts: dict[Diagnostic, int] = {}
    for diagnostic in diagnostics:
        plain = replace(diagnostic, count=1)
        counts[plain] = counts.get(plain, 0) + diagnostic.count
    distinct = [replace(diagnostic, count=count) for diagnostic, count in counts.items()]
    return tuple(distinct[:MOST_DIAGNOSTICS])


# ---- listening, in a worker

_OURS = "pallasc.compiler."
_KINDS = {1: "stdout", 2: "stderr"}
"""The kind of text by file descriptor."""
_MOST_READ_BYTES = 1 << 20
"""Maximum number of bytes read; only the end of a longer output is read."""


class Listener:
    """Records warnings, log records, and output while a variant is compiled.

    Attributes:
        stage: the current stage.
        importing: the module that is being imported, "" if none is.
    """

    def __init__(self) -> None:
        self.stage: Stage = "lower"
        self.importing = ""
        self._imported: dict[str, list[Diagnostic]] = {}  # from the import of each module
        self._own: list[Diagnostic] = []
        self._folders: dict[str, str] = {}
        self._read_to: dict[int, int] = {}

    def forget_unloaded(self) -> None:
        """Forget the diagnostics of modules that will be executed again."""
        self._imported = {n: each for n, each in self._imported.items() if n in sys.modules}

    @contextmanager
    def listening(self, base_dir: str, *, outputs: tuple[int, ...] = (2,)) -> Iterator[None]:
        """Record the diagnostics of a variant until the end of the block.

        Args:
            base_dir: the folder of the variant's spec; it is removed from texts.
            outputs: which of descriptors 1 and 2 to record.
        """
        # Imported only here, since a hit imports this module but needs neither of these.
        import logging
        import tempfile

        with warnings.catch_warnings():
            pass  # forgets which warnings were shown already, so that they come again
        self.stage, self.importing, self._own = "lower", "", []
        temporary = (tempfile.tempdir or tempfile.gettempdir()).rstrip("/")
        self._folders = {base_dir.rstrip("/"): "", temporary: "$TMPDIR"}
        self._read_to = {descriptor: _output_since(descriptor, 0)[1] for descriptor in outputs}
        python: Any = warnings
        loggers: Any = logging.Logger
        plain_warn, plain_handle = python.showwarning, loggers.callHandlers

        def show(text: Any, category: Any, file: str, line: int, *rest: Any) -> None:
            self._add(category.__name__, f"{_shown_file(file, base_dir)}:{line}", str(text))
            self._read()
            plain_warn(text, category, file, line, *rest)
            self._read(skip=True)

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                with suppress(Exception):  # arguments may not fit the message
                    text = record.getMessage()
                    self._add(record.levelname, record.name, text)
            self._read()
            plain_handle(logger, record)
            self._read(skip=True)

        python.showwarning, loggers.callHandlers = show, call_handlers
        try:
            yield
        finally:
            python.showwarning, loggers.callHandlers = plain_warn, plain_handle

    def next_stage(self, stage: Stage = "lower", *, importing: str = "") -> None:
        """Read the output so far, and begin a stage."""
        self._read()
        self.stage, self.importing = stage, importing

    def diagnostics(self, modules: Iterable[str] | None = None) -> tuple[Diagnostic, ...]:
        """Return the diagnostics, also from the import of `modules`; None means all modules."""
        self._read()
        names = sorted({*(self._imported if modules is None else modules)})
        imported = [each for name in names for each in self._imported.get(name, ())]
        return merged([*imported, *self._own])

    def _add(self, kind: str, source: str, text: str) -> None:
        module = self.importing if kind in _KINDS.values() else _importing(sys._getframe(2))
        kind, source = kind[:LONGEST_TEXT], source[:LONGEST_TEXT]
        diagnostic = Diagnostic(self.stage, kind, source, stable(text, self._folders))
        if diagnostic.text:
            (self._imported.setdefault(module, []) if module else self._own).append(diagnostic)

    def _read(self, *, skip: bool = False) -> None:
        """Record the output so far; `skip` drops it, since it was recorded in another form."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        for descriptor, read_to in self._read_to.items():
            text, self._read_to[descriptor] = _output_since(descriptor, read_to)
            for message in [] if skip else lines_of(text):
                self._add(_KINDS[descriptor], "", message)


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


def _output_since(descriptor: int, start: int) -> tuple[str, int]:
    """Return a file's text after `start` bytes, and the file's size; "" and 0 for other outputs."""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return "", 0
        size = status.st_size
        # If the file is shorter than `start`, the build has truncated it (`worker_process.Log`).
        start = max(start if start <= size else 0, size - _MOST_READ_BYTES)
        return os.pread(descriptor, size - start, start).decode("utf-8", "replace"), size
    except OSError:
        return "", 0


# ---- diagnostics of an action key


def action_name(action_key: str) -> str:
    """Return the request key of the manifest that holds the diagnostics of an action."""
    return labelled_key({"warnings": action_key})


def store_for_action(store: Store, action_key: str, diagnostics: tuple[Diagnostic, ...]) -> None:
    """Store the diagnostics of an artifact under its action key, if there are any."""
    if diagnostics:
        manifest = Manifest(action=action_key, warnings=diagnostics)
        store.put_manifest(action_name(action_key), manifest)


def with_stored(
    store: Store, action_key: str, own: tuple[Diagnostic, ...]
) -> tuple[Diagnostic, ...]:
    """Add the stored diagnostics of XLA's compilation of an action key."""
    manifest = store.get_manifest(action_name(action_key)) or Manifest()
    return merged([*own, *(each for each in manifest.warnings if each.stage == "compile")])
