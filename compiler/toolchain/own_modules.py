"""Which of pallasc's own modules decide what comes out: those that certain packages import.

Found by their import statements, so that no list has to be kept: a module that lowering begins to
import counts from then on, and a new flag of a command never does. The variables that every worker
is given count by their values: a kernel may read them while it is traced. So do the rows of
`specs.gpus`, of which keys hold only the target's.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from pallasc.specs import variables
from pallasc.specs.canonical import canonical_json

COMPILING = ("compiler.lowering", "compiler.executable")
"""From a callable to a checked artifact."""

COLLECTING = ("specs.loading.decorator", "specs.wire")
"""From a Python spec to what is remembered of it."""

_IMPORT = re.compile(
    r"^[ \t]*from pallasc\.([\w.]+) import (\([^)]*\)|[^\n]+)|^[ \t]*import pallasc\.([\w.]+)",
    re.MULTILINE,
)
_LEFT_OUT = ("errors", "specs.gpus", "specs.spelling")
"""What errors and hints say decides no artifact, and `specs.gpus` counts by its values; `errors`
lies elsewhere in a clone than in an install."""
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
    environment = [variables.FORCED, variables.FIXED, variables.SYSTEM_PATH]
    state = hashlib.sha256(canonical_json(environment))
    for path, name in sorted(reached(parts, top or _top()).items()):
        state.update(f"{name}\0{digest(path)}\n".encode())
    return state.hexdigest()


def reached(parts: Iterable[str], top: Path) -> dict[str, str]:
    """Return the files of modules and of all that they import, with the modules' names."""
    waiting = [name for part in parts for name in _modules(part, str(top))]
    files = dict.fromkeys(_LEFT_OUT, "")  # by the modules' names, "" for no file
    names: dict[str, str] = {}

    def file_of(name: str) -> str:
        if name not in files:
            path = os.path.join(top, *name.split(".")) + ".py"
            files[name] = path if os.path.isfile(path) else ""
        return files[name]

    while waiting:
        name = waiting.pop()
        path = file_of(name)
        if path and path not in names:
            names[path] = name
            waiting += _imported(path, file_of)
    if not names:
        raise RuntimeError(f"pallasc's own sources are not in {top}")
    return names


def _top() -> Path:
    # Installed or from the sources: the folders lie side by side.
    return Path(__file__).resolve().parents[2]


def _modules(part: str, top: str) -> list[str]:
    """Return the name of a module, or those of the modules of a package."""
    place = os.path.join(top, *part.split("."))
    if not os.path.isdir(place):
        return [part]
    names = sorted(name for name in os.listdir(place) if name.endswith(".py"))
    return [f"{part}.{name.removesuffix('.py')}" for name in names]


def _imported(path: str, file_of: Callable[[str], str]) -> Iterator[str]:
    """Yield the names that a file imports, also inside functions; some are not modules."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    for package, names, module in _IMPORT.findall(text):
        if module or file_of(package):
            yield module or package
        else:
            yield from (f"{package}.{name}" for name in _NAME.findall(names))
