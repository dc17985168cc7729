"""Attribute a call of Python's functions to the user's module that caused it.

That is the innermost module on the stack that is neither Python's nor JAX's. Calls that JAX,
pallasc, the import system and a few modules of Python make for themselves are not attributed. Calls
of an installed package while it is imported count with the package's files, except for relative
paths: what is in the current folder is then its own affair.
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
"""Functions of `importlib` that search folders for modules and installed packages."""

_NOTHING: frozenset[str] = frozenset()
_SETS = (
    os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks,
)  # fmt: skip

_active: set[int] = set()
"""Threads that are in `user_module`."""

Options = Mapping[str, object]
Recorder = Callable[[str, FrameType, tuple[Any, ...], Options], None]
"""Records a call: the user's module, the frame, the arguments by position and by name."""


def user_module(
    frame: FrameType | None,
    *,
    transparent: frozenset[str] = _NOTHING,
    private: frozenset[str] = _NOTHING,
) -> str:
    """Return the user's module on whose behalf a frame runs, "" if there is none.

    Args:
        frame: the innermost frame.
        transparent: packages that act for their callers, beside Python's own.
        private: modules of Python that act for themselves.
    """
    thread = threading.get_ident()
    if thread in _active:
        return ""  # classifying modules opens files, too
    _active.add(thread)
    try:
        return _user_module(frame, transparent, private)
    finally:
        _active.discard(thread)


def _user_module(
    frame: FrameType | None, transparent: frozenset[str], private: frozenset[str]
) -> str:
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
    """Return the names of Python's own functions between the user's code and a call."""
    names = set()
    while frame is not None and is_standard(module_of(frame.f_globals)):
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def line_of(module: str, frame: FrameType | None) -> str:
    """Return `file:line` of a module's innermost frame, "" if it is not on the stack."""
    while frame is not None:
        if module_of(frame.f_globals) == module:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_importing(frame: FrameType | None) -> bool:
    """Tell whether an installed package makes the call while it is imported."""
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
    recorder: Recorder, frame: FrameType, arguments: tuple[Any, ...], options: Options
) -> None:
    """Record a call if the user's code caused it."""
    module = user_module(frame, private=_FOR_THEMSELVES)
    if module:
        try:
            recorder(module, frame, arguments, options)
        except Exception:  # noqa: BLE001 - path objects of the user's may raise anything
            record_untracked(module, "queried something that cannot be recorded")


def record_untracked(module: str, action: str) -> None:
    """Record an action of a module that has no digest."""
    of_module(module).unseen.add(f"{module} {action}")


class RecordingFunction:
    """A function that records its calls.

    An object without `__get__`, as built-in functions are: user code that stores it as a class
    attribute must not get a method.
    """

    def __init__(self, plain: Callable[..., Any], recorder: Recorder) -> None:
        functools.update_wrapper(self, plain)
        self._plain, self._recorder = plain, recorder

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function; the call is recorded even if it raises."""
        try:
            return self._plain(*arguments, **options)
        finally:
            record(self._recorder, sys._getframe(1), arguments, options)


def record_calls(module: object, name: str, recorder: Recorder) -> None:
    """Replace a function of a module by one that records its calls, if it exists."""
    plain = getattr(module, name, None)
    if plain is None:
        return
    recording = RecordingFunction(plain, recorder)
    setattr(module, name, recording)
    for functions in _SETS:  # which callers look up to see what it supports
        if plain in functions:
            functions.add(recording)
