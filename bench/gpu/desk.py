"""Where a unit works: the packed folder, the options, and the lines that it writes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carried import Carried, read_variants
from results import Results

STICKY = (214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 911, 999)
"""Codes after which the process cannot use the GPU any more."""


class MissingError(Exception):
    """Something cannot be asked on this machine; the text says what is missing."""


@dataclass
class Desk:
    """Where a unit works.

    Attributes:
        folder: the packed folder.
        unit: its id.
        results: where its lines go.
        options: of the command, see `check_gpu.py`.
        found: what the unit has told in earlier runs, and is not asked again.
    """

    folder: Path
    unit: str
    results: Results
    options: Mapping[str, Any]
    found: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The name of the unit in its part."""
        return self.unit.partition("/")[2]

    def variant(self, name: str, kind: str = "kernels") -> Carried:
        """Return a variant of the packed folder by its id."""
        return next(variant for variant in read_variants(self.folder, kind) if variant.id == name)

    def tell(self, what: str, **values: Any) -> None:
        """Write a line about something that is known now."""
        self.results.write("thing", unit=self.unit, what=what, **values)
        self.found.add(what)

    def ask(self, what: str, work: Callable[[], Mapping[str, Any]]) -> bool:
        """Find something out and tell it, unless an earlier run did; tell also why it failed.

        Returns:
            Whether there is something to tell.

        Raises:
            Exception: what the work raised, where the process cannot use the GPU after it.
        """
        if what in self.found:
            return True
        try:
            self.tell(what, **work())
        except MissingError as error:
            self.tell(what, missing=str(error))
        except Exception as error:
            self.tell(what, error=describe(error))
            if any(getattr(cause, "code", None) in STICKY for cause in causes(error)):
                raise
        return what in self.found


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it, as tracebacks show it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def describe(error: BaseException) -> dict[str, Any]:
    """Return an error with all of its causes, as lines of results have it."""
    found: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    for name in ("code", "hint"):
        if getattr(error, name, None) is not None:
            found[name] = getattr(error, name)
    rest = list(causes(error))[1:]
    if rest:
        found["causes"] = [{"type": type(cause).__name__, "message": str(cause)} for cause in rest]
    found["traceback"] = "".join(traceback.format_exception(error))[-6000:]
    return found


def need(name: str) -> Any:
    """Import a package that may be missing here.

    Raises:
        MissingError: it is, or cannot be imported.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except Exception as error:
        raise MissingError(f"{name}: {type(error).__name__}: {error}") from error


def need_torch() -> Any:
    """Import torch with a GPU.

    Raises:
        MissingError: there is none.
    """
    torch = need("torch")
    if not torch.cuda.is_available():
        raise MissingError("torch finds no GPU")
    return torch


def need_cupy() -> Any:
    """Import cupy with a GPU.

    Raises:
        MissingError: there is none.
    """
    cupy = need("cupy")
    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise MissingError(f"cupy finds no GPU: {type(error).__name__}: {error}") from error
    return cupy
