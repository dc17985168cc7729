"""Which of pallasc's own modules decide what comes out: those that certain packages import.

Found by their import statements, so that no list has to be kept: a module that lowering begins to
import counts from then on, and a new flag of a command never does.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

COMPILING = ("compiler.lowering", "compiler.executable")
"""From a callable to a checked artifact."""

COLLECTING = ("specs.loading.decorator", "specs.wire")
"""From a Python spec to what is remembered of it."""

_IMPORT = re.compile(
    r"^[ \t]*from pallasc\.([\w.]+) import (\([^)]*\)|[^\n]+)|^[ \t]*import pallasc\.([\w.]+)",
    re.MULTILINE,
)
_NAME = re.compile(r"(\w+)(?: as \w+)?")


def own_digest(
    digest: Callable[[Path | str], str], parts: Sequence[str] = COMPILING, top: Path | None = None
) -> str:
    """Return one digest over the names and contents of `parts` and of all that they import.

    Args:
        digest: SHA-256 of a file.
        parts: packages and modules of pallasc, without `pallasc.` in front.
        top: the folder that they lie in.
    """
    state = hashlib.sha256()
    for path, name in sorted(reached(parts, top or _top()).items()):
        state.update(f"{name}\0{digest(path)}\n".encode())
    return state.hexdigest()


def reached(parts: Iterable[str], top: Path) -> dict[str, str]:
    """Return the files of modules and of all that they import, with the modules' names."""
    waiting = [found for part in parts for found in _files(part, str(top))]
    if not waiting:
        raise RuntimeError(f"pallasc's own sources are not in {top}")
    names: dict[str, str] = {}
    while waiting:
        path, name = waiting.pop()
        if path not in names:
            names[path] = name
            waiting += _imported(path, str(top))
    return names


def _top() -> Path:
    # Installed or from the sources: the folders lie side by side.
    return Path(__file__).resolve().parents[2]


def _files(part: str, top: str) -> Iterator[tuple[str, str]]:
    """Yield file and name of a module, or of each module of a package."""
    place = os.path.join(top, *part.split("."))
    if os.path.isdir(place):
        for entry in sorted(os.listdir(place)):
            if entry.endswith(".py"):
                yield os.path.join(place, entry), f"{part}.{entry.removesuffix('.py')}"
    elif os.path.isfile(f"{place}.py"):
        yield f"{place}.py", part


def _imported(path: str, top: str) -> Iterator[tuple[str, str]]:
    """Yield file and name of each module that a file imports, wherever in it."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    for package, names, module in _IMPORT.findall(text):
        for name in [f"{package}.{one}" for one in _NAME.findall(names)] if names else [module]:
            yield from _module(name, top)


def _module(name: str, top: str) -> Iterator[tuple[str, str]]:
    """Yield file and name of a module, or of the module that a name is from."""
    for found in (name, name.rpartition(".")[0]):
        path = os.path.join(top, *found.split(".")) + ".py"
        if found and os.path.isfile(path):
            yield path, found
            return
