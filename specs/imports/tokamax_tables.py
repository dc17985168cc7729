"""Tokamax's own tables of tuned kernels, read without importing it.

`tokamax/data/autotuning/<device>/<op>.json` (`tokamax/_src/autotuning/cache.py`) has for each call
that was tuned the arguments as JSON text, and for each configuration that worked its JSON text and
what was measured: `{arguments: {configuration: {evaluation_times_ms: […], …}}}`. `<device>` is the
device's name in lower case with `_` for spaces, `<op>` the class of the op in snake case. Where no
configuration worked the mapping is empty, and Tokamax falls back on its heuristics.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.gpus import MODELS, Target
from pallasc.specs.spelling import one_of, shortened, suggestion
from pallasc.specs.tuning import Measured
from pallasc.specs.untrusted_json import parse_json
from pallasc.specs.user_files import read_regular

PACKAGE = "tokamax"
TABLES = Path("data", "autotuning")

_MOST_BYTES = 64 * 2**20
_MICROSECONDS = 1000
"""In a millisecond."""


class Package(NamedTuple):
    """A copy of Tokamax.

    Attributes:
        root: the folder of the package, with `data` in it.
        version: `0.0.17`; empty where it is not known.
    """

    root: Path
    version: str

    @property
    def source(self) -> str:
        """Return what rows say where they come from."""
        return f"{PACKAGE} {self.version}".strip()


class Timed(NamedTuple):
    """A configuration, and what Tokamax measured of it."""

    config: dict[str, Any]
    measured: Measured


class Entry(NamedTuple):
    """A call that was tuned: its arguments, and its configurations, the fastest first."""

    arguments: dict[str, Any]
    configs: tuple[Timed, ...]


def installed_package() -> Package:
    """Return the Tokamax that this Python would import; it is not imported.

    Raises:
        SpecError: it is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise SpecError(
            "Tokamax is not installed here.",
            hint="Install it into this Python, or name a folder that holds it: --from FOLDER.",
        )
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Package(Path(folders[0]), version)


def package_in(folder: Path) -> Package:
    """Return the Tokamax in a folder: the package itself, or what holds it, such as site-packages.

    Raises:
        SpecError: the folder has no tables of Tokamax.
    """
    for root in (folder, folder / PACKAGE):
        if (root / TABLES).is_dir():
            return Package(root, _version_beside(root))
    raise SpecError(
        f"{folder} holds no tables of Tokamax: there is no {TABLES} in it.",
        hint="Name the folder of the package, or the one that it lies in.",
    )


def _version_beside(root: Path) -> str:
    folders = sorted(root.parent.glob(f"{PACKAGE}-*.dist-info"))
    return folders[-1].name.removesuffix(".dist-info").partition("-")[2] if folders else ""


def devices(package: Package) -> dict[str, Target]:
    """Return the models that the package has tables for, by its name of their folder."""
    folders = {_folder(model): model for model in MODELS.values()}
    there = sorted(path.name for path in (package.root / TABLES).iterdir() if path.is_dir())
    return {name: folders[name] for name in there if name in folders}


def other_devices(package: Package) -> list[str]:
    """Return the folders of GPUs that are not among the built-in models."""
    there = sorted(path.name for path in (package.root / TABLES).iterdir() if path.is_dir())
    return [name for name in there if name.startswith("nvidia_") and name not in devices(package)]


def chosen(
    models: dict[str, Target], asked: tuple[str, ...], others: Sequence[str] = ()
) -> dict[str, Target]:
    """Return the models that were asked for, `h100` short for `h100-sxm`; all without a question.

    Args:
        models: the models that there are tables for, by folder.
        asked: names, or how they begin.
        others: folders of GPUs that are not among the built-in models.

    Raises:
        SpecError: there are no tables for one of them, or no model.
    """
    found = {}
    for text in asked:
        fits = {
            name: model for name, model in models.items() if f"{model.name}-".startswith(f"{text}-")
        }
        if not fits:
            names = [model.name for model in models.values()]
            if unknown := [name for name in others if _is_named(name, text)]:
                raise SpecError(
                    f"pallasc has no model of {one_of(unknown)}, whose tables Tokamax has.",
                    hint=f"Models with tables: {', '.join(names)}",
                )
            raise SpecError(
                f"Tokamax has no tables for {text!r}.",
                hint=suggestion(text, names, otherwise="It has them for"),
            )
        found.update(fits)
    return {name: model for name, model in models.items() if not asked or name in found}


def _is_named(folder: str, text: str) -> bool:
    """Return whether a folder is of the GPU that a text names."""
    return any(f"{name}-".startswith(f"{text}-") for name in (folder, folder[len("nvidia_") :]))


def _folder(model: Target) -> str:
    return re.sub(" ", "_", model.description.lower())


def read_entries(package: Package, device: str, op: str) -> list[Entry] | None:
    """Return the entries of an op on a device in the order of the file, None without a table.

    Raises:
        SpecError: the file is not a table of Tokamax.
    """
    file = package.root / TABLES / device / f"{op}.json"
    if not file.exists():
        return None
    data = read_regular(str(file), most_bytes=_MOST_BYTES)
    try:
        return list(_entries(json.loads(data)))
    except (
        CorruptError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
        OverflowError,
    ) as error:  # fmt: skip
        own = isinstance(error, CorruptError)
        what = str(error) if own else f"{type(error).__name__}: {error}"
        raise SpecError(
            f"{file} is not a table of Tokamax: {what}",
            hint="It is read as Tokamax 0.0.17 writes it. Correct the file, or install Tokamax "
            "again.",
        ) from error


def _entries(table: dict[str, dict[str, Any]]) -> Iterator[Entry]:
    for key, configs in table.items():
        timed = [_timed(key, text, of) for text, of in configs.items()]
        fastest_first = sorted(timed, key=lambda one: one.measured.us)
        yield Entry(dict(json.loads(key)), tuple(fastest_first))


def _timed(key: str, text: str, figures: dict[str, Any]) -> Timed:
    """Return a configuration and its figures.

    Raises:
        CorruptError: it is no object, or a time is no positive number.
    """
    config = parse_json(text.encode())
    if not isinstance(config, dict):
        raise CorruptError(
            f"under {shortened(key)}: the configuration {shortened(text)} is not a JSON object."
        )
    times = figures["evaluation_times_ms"]
    wrong = [time for time in times if not _is_time(time)]
    if wrong or not times:
        found = f"has {json.dumps(wrong[0])[:40]}, which is no time" if wrong else "has no times"
        raise CorruptError(
            f"under {shortened(key)}: evaluation_times_ms of {shortened(text)} {found}."
        )
    return Timed(config, _measured(times))


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 < value * _MICROSECONDS < math.inf  # type: ignore[operator]


def _measured(milliseconds: list[float]) -> Measured:
    """Return the median and the spread; Tokamax takes the configuration of the least median."""
    times = [_MICROSECONDS * float(time) for time in milliseconds]
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, method="inclusive") if len(times) > 1 else times * 3
    spread = round(100 * (high - low) / median, 1)
    return Measured(us=round(median, 3), spread_percent=spread, rounds=len(times))
