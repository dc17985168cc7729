"""Find the bundles of a package: development paths, the package itself, provider wheels.

1. `PALLASC_BUNDLE_PATH`: files and folders; earlier ones take precedence.
2. `*.pallasc` directly inside the package.
3. Providers: entry points in the group `pallasc.bundles`. The entry point's name is the package
   that the provider adds to; its value is a package, or `package:file`.

Neither the package nor a provider is imported, so a library can load its kernels while it is being
imported itself. For a dotted name, the parent packages are imported.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pallasc.errors import ArgumentError, SpecError, ToolError
from pallasc.runtime.matching.candidates import Origin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from importlib.resources.abc import Traversable

PATH = "PALLASC_BUNDLE_PATH"
GROUP = "pallasc.bundles"
SUFFIX = ".pallasc"


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A bundle that was found.

    Attributes:
        origin: where it was found.
        file: the file to read; a `Path` if it is in a real folder.
        rank: precedence; a lower rank goes first.
    """

    origin: Origin
    file: Traversable
    rank: int = 0


def find_bundles(package: str | ModuleType) -> list[BundleFile]:
    """Return a package's bundles in order of precedence.

    Args:
        package: its import name, or the package itself.

    Raises:
        ArgumentError: it cannot be the name of a package.
        ToolError: there is no bundle, or a provider has none.
        SpecError: `PALLASC_BUNDLE_PATH` names a path that does not exist.
    """
    name = package if isinstance(package, str) else package.__name__
    if not _is_name(name):
        raise ArgumentError(
            f"{name!r} is not the name of a package.", hint="Give the name that import takes."
        )
    items = [item for item in os.environ.get(PATH, "").split(os.pathsep) if item]
    bundles = [
        BundleFile(Origin(str(file), PATH, name), file, rank)
        for rank, item in enumerate(items)
        for file in _developed(name, item)
    ]
    spec = _spec_of(package)
    for provider, file in (*_own(name, spec), *_provided(name)):
        bundles.append(BundleFile(Origin(str(file), provider, name), file, len(items)))
    if not bundles:
        raise _nothing_found(name, spec, items)
    once: dict[str, BundleFile] = {}
    for bundle in bundles:
        once.setdefault(os.path.realpath(bundle.origin.file), bundle)
    return list(once.values())


def package_folders(package: str | ModuleType) -> list[Traversable]:
    """Return the folders of a package, possibly inside a zip file; none if it is not installed.

    Raises:
        ToolError: it is a module, not a package.
    """
    spec = _spec_of(package)
    return [] if spec is None else _folders(spec)


def _is_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def normalized(name: str) -> str:
    """Return a distribution name normalized for comparison (PEP 503): `my-lib` for `My_Lib`."""
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- development paths


def _developed(package: str, item: str) -> list[Path]:
    """Return the bundles for a package that an item of `PALLASC_BUNDLE_PATH` names."""
    owner, is_named, rest = item.partition("=")
    if is_named and _is_name(owner):
        if owner != package:
            return []
        place = _existing(rest)
        return _bundles_in(place) if place.is_dir() else [place]
    place = _existing(item)
    if place.is_dir():
        own = place / package
        return [
            *(file for file in _bundles_in(place) if _is_of(package, file)),
            *(_bundles_in(own) if own.is_dir() else ()),
        ]
    if _is_of(package, place):
        return [place]
    _check_somebodys(place)
    return []


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.exists():
        raise SpecError(f"{text}, which {PATH} names, does not exist.", hint=f"Correct {PATH}.")
    return path


def _bundles_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix == SUFFIX)


def _is_of(package: str, file: Path) -> bool:
    name = file.name.removesuffix(SUFFIX)
    return name != file.name and (name == package or name.startswith(f"{package}-"))


def _check_somebodys(file: Path) -> None:
    """Check that a file is named after an installed package; otherwise nothing would load it."""
    owner = file.name.removesuffix(SUFFIX).partition("-")[0]
    if _is_name(owner) and _spec_of(owner) is not None:
        return
    raise SpecError(
        f"{file}, which {PATH} names, is not named after a package.",
        hint=f"Write package={file} there, or call the file package{SUFFIX}.",
    )


# ---- installed packages


def _spec_of(package: str | ModuleType) -> ModuleSpec | None:
    """Return a package's import spec, None if it is not installed."""
    if isinstance(package, ModuleType):
        return package.__spec__
    try:
        return find_spec(package)
    except (ModuleNotFoundError, ValueError):
        module = sys.modules.get(package)
        return None if module is None else module.__spec__


def _own(package: str, spec: ModuleSpec | None) -> Iterator[tuple[str, Traversable]]:
    if spec is not None:
        for file in _contents(spec):
            if file.name.endswith(SUFFIX):
                yield package, file


def _contents(spec: ModuleSpec) -> Iterator[Traversable]:
    """Yield the files directly inside a package, sorted by name."""
    for folder in _folders(spec):
        if folder.is_dir():
            files = (file for file in folder.iterdir() if file.is_file())
            yield from sorted(files, key=lambda file: file.name)


def _folders(spec: ModuleSpec) -> list[Traversable]:
    places = spec.submodule_search_locations
    if places is None:
        raise ToolError(
            f"{spec.name} is a module, and only a package can carry bundles.",
            hint="Give the name of the package that the bundles lie in.",
        )
    folders: list[Traversable] = [Path(place) for place in places]
    if not any(folder.is_dir() for folder in folders):
        reader = getattr(spec.loader, "get_resource_reader", lambda name: None)(spec.name)
        folders = [] if reader is None else [reader.files()]
    return folders


def _provided(package: str) -> Iterator[tuple[str, Traversable]]:
    """Yield each provider's name and version with each of its bundles."""
    from importlib.metadata import entry_points

    own = [
        entry
        for entry in entry_points(group=GROUP)
        if normalized(entry.name) == normalized(package)
    ]
    for entry in sorted(own, key=_provider_name):
        provider = _provider_name(entry)
        for file in _bundles_of(entry, provider, package):
            yield provider, file


def _provider_name(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _bundles_of(entry: EntryPoint, provider: str, package: str) -> list[Traversable]:
    module, _, name = (part.strip() for part in entry.value.partition(":"))
    spec = _spec_of(module) if _is_name(module) else None
    files = [] if spec is None else list(_contents(spec))
    bundles = [file for file in files if file.name.endswith(SUFFIX) and name in ("", file.name)]
    if not bundles:
        lacking = f"has no {name or 'bundle'}" if spec else "cannot be found"
        raise ToolError(
            f"{provider} is installed as a provider of kernels for {package}, and its {module} "
            f"{lacking}.",
            hint="Install it again, or remove it.",
        )
    return bundles


def _nothing_found(package: str, spec: ModuleSpec | None, items: list[str]) -> ToolError:
    developed = f"{', '.join(items)} ({PATH})" if items else f"{PATH}, which is not set"
    places = list(spec.submodule_search_locations or ()) if spec else []
    own = ", ".join(places) if spec else f"{package}, which is not installed"
    return ToolError(
        f"there are no kernels for {package}: no *{SUFFIX} in {own}; none for it in {developed}; "
        f"and no provider, which would be an entry point named {package} in {GROUP}.",
        hint=f"Install the package that has the kernels of {package} for this GPU, if there is one."
        if spec
        else "Check the name, and that this is the environment that it was installed into.",
    )
