"""Who asks: the user's module on whose behalf Python is asked something.

It is the innermost module on the stack that is neither Python's own nor JAX's. What JAX, pallasc
and the import system ask for themselves is nobody's question, nor is what a few modules of Python
do for their own sake. What an installed package asks while it is imported counts with its files;
what lies in the current folder is its own affair then.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from pallasc.compiler.inputs.reads import of_module
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_standard, module_of

_LIBRARY = "pallasc.specs.library"
_FOR_THEMSELVES = frozenset({
    "inspect", "linecache", "logging", "tempfile", "tokenize", "traceback", "warnings",
})  # fmt: skip
_IMPORT_SYSTEM = ("importlib", "_frozen_importlib", "_frozen_importlib_external")
_SEARCHING = frozenset({"_find_and_load", "_fill_cache", "get_code", "lookup", "search"})
"""Functions of `importlib` that look through folders for modules and for installed packages."""

_NOTHING: frozenset[str] = frozenset()
_SETS = (
    os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks,
)  # fmt: skip

_asking: set[int] = set()
"""Threads in which `reader` is at work."""

Note = Callable[[str, FrameType, tuple[Any, ...], Mapping[str, Any]], None]
"""Records a question: who asked, from where, with which arguments."""


def reader(
    frame: FrameType | None,
    *,
    transparent: frozenset[str] = _NOTHING,
    private: frozenset[str] = _NOTHING,
) -> str:
    """Return the user's module on whose behalf a frame runs, "" if there is none.

    Args:
        frame: the innermost one.
        transparent: packages that may act for the user, beside Python's own.
        private: modules of Python that act for themselves.
    """
    thread = threading.get_ident()
    if thread in _asking:
        return ""  # telling Python's modules from others asks for files too
    _asking.add(thread)
    try:
        return _reader(frame, transparent, private)
    finally:
        _asking.discard(thread)


def _reader(frame: FrameType | None, transparent: frozenset[str], private: frozenset[str]) -> str:
    while frame is not None:
        name = module_of(frame.f_globals)
        top = name.partition(".")[0]
        if top in private:
            return ""
        if _is_search(top, frame):
            return ""
        if top == "pallasc":
            return name if name.startswith(_LIBRARY) else ""
        elif name and top not in transparent and not is_standard(name):
            return "" if top in COVERED or top == "numpy" else name
        frame = frame.f_back
    return ""


def _is_search(top: str, frame: FrameType) -> bool:
    return top in _IMPORT_SYSTEM and frame.f_code.co_name in _SEARCHING


def functions_between(frame: FrameType | None) -> set[str]:
    """Return the names of Python's own functions that a question came through."""
    found = set()
    while frame is not None and is_standard(module_of(frame.f_globals)):
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


def line_of(module: str, frame: FrameType | None) -> str:
    """Return `file:line` of the innermost line of a module on the stack, "" if there is none."""
    while frame is not None:
        if module_of(frame.f_globals) == module:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_importing(frame: FrameType | None) -> bool:
    """Tell whether an installed package asks while it is imported: for itself, not for a kernel."""
    while frame is not None:
        name = module_of(frame.f_globals)
        top = name.partition(".")[0]
        if _is_search(top, frame):
            return True
        file = frame.f_globals.get("__file__")
        if top == "pallasc" or not (is_standard(name) or is_installed(str(file))):
            return False
        frame = frame.f_back
    return False


def record(
    note: Note, frame: FrameType, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> None:
    """Have a question recorded, if it is the user's."""
    module = reader(frame, private=_FOR_THEMSELVES)
    if module:
        try:
            note(module, frame, arguments, options)
        except Exception:  # noqa: BLE001 - the user's own paths may raise anything
            say(module, "asked for something that cannot be taken down")


def say(module: str, what: str) -> None:
    """Take down what a module did that has no digest."""
    of_module(module).unseen.add(f"{module} {what}")


class RecordingFunction:
    """A function that records who calls it; like those of C, it becomes no method of a class."""

    def __init__(self, plain: Callable[..., Any], note: Note) -> None:
        functools.update_wrapper(self, plain)
        self._plain, self._note = plain, note

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function; its question is recorded whether it answers or raises."""
        try:
            return self._plain(*arguments, **options)
        finally:
            record(self._note, sys._getframe(1), arguments, options)


def watch(place: Any, name: str, note: Note) -> None:
    """Replace a function of a module by one that records who calls it, where there is one."""
    plain = getattr(place, name, None)
    if plain is None:
        return
    recording = RecordingFunction(plain, note)
    setattr(place, name, recording)
    for functions in _SETS:  # `os` tells by membership which functions take `dir_fd` and the like
        if plain in functions:
            functions.add(recording)
