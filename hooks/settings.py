"""Bundle settings in a project's `pyproject.toml`.

    [tool.pallasc.bundles]
    "mylib/kernels.pallasc" = "kernels/"

The key is the bundle's path in the wheel. The value is a spec file or folder, a list of them, an
existing bundle, or a table with the keys in `FIELDS`. Paths are relative to the project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pallasc.errors import SpecError
from pallasc.specs.fields import (
    FLAG,
    Field,
    Kind,
    Place,
    by_type,
    choice,
    expected,
    list_of,
    record,
    text,
)
from pallasc.specs.settings import FILE, KEYS, ProjectTable, read_project
from pallasc.specs.spelling import show
from pallasc.specs.user_files import read_switch

SUFFIX = ".pallasc"
_BUNDLES = "bundles"
_EXTRAS = ("cuda13", "cuda12")

From = Literal["compile", "store", "frozen"]
"""Source of the kernels, as in `pallasc.compiler.builds.bundling.BundleOptions.source`."""


def _one_or_more(what: str) -> Kind:
    """Return the kind of a field that is one text or a list of texts; both are read as a tuple."""
    item = text(what)
    return by_type({list: list_of(item, f"{what}s"), str: item.checked(lambda own, at: (own,))})


FIELDS = (
    Field("specs", _one_or_more("path"), "Spec files and folders of them."),
    Field("bundle", text("path"), "An existing bundle, in place of specs."),
    Field("targets", _one_or_more("target"), "Targets in place of the specs' own."),
    Field("select", text("expression"), "The variants to include, as with `-k`."),
    Field("from", choice("compile", "store", "frozen"), "Source of the kernels."),
    Field("lock", text("path"), "The lock file that all variants must match."),
    Field("keep-debug", FLAG, "Keep debug sections in the cubins."),
)
_PLACES = 'Write the place in the wheel, such as "mylib/kernels.pallasc".'


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of one bundle of a wheel.

    Attributes:
        place: path in the wheel, such as "mylib/kernels.pallasc".
        at: position in `pyproject.toml`, for messages.
        source: source of the kernels.
        frozen_by: the user's setting that forbids compiling, "" if compiling is allowed.
        specs: spec files and folders, relative to the project.
        bundle: existing bundle to use instead of specs, relative to the project.
        targets: targets that replace the specs' targets; if empty, the specs' targets are used.
        select: expression that selects variants; None selects all.
        lock: lock file that all variants must match, relative to the project.
        keep_debug: keep debug sections in the cubins.
    """

    place: str
    at: Place
    source: From
    frozen_by: str
    specs: tuple[str, ...] = ()
    bundle: str | None = None
    targets: tuple[str, ...] = ()
    select: str | None = None
    lock: str | None = None
    keep_debug: bool = False

    @property
    def folder(self) -> str:
        """Folder of the bundle's package in the wheel, such as "mylib"."""
        return str(PurePosixPath(self.place).parent)

    @property
    def name(self) -> str:
        """File name of the bundle, such as "kernels.pallasc"."""
        return PurePosixPath(self.place).name


def has_settings(root: Path) -> bool:
    """Return True if the project declares bundles, or has a key that `read_settings` rejects.

    Return False for invalid TOML, which the build backend reports.
    """
    try:
        project = _project(root)
    except SpecError:
        return False
    return project is not None and not project.values.keys() <= {*KEYS} - {_BUNDLES}


def compiler_extra(root: Path) -> str:
    """Return the pallasc extra that installs the compiler, from the project's `compiler` setting.

    Raises:
        SpecError: pallasc has no extra with this name.
    """
    project = _project(root)
    if project is None or "compiler" not in project.values:
        return _EXTRAS[0]
    at = project.at.child("compiler")
    name: str = choice(*_EXTRAS).read(project.values["compiler"], at)
    return name


def read_settings(root: Path, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """Read the project's bundle settings. With PALLASC_FROZEN=1, nothing may be compiled.

    Args:
        root: folder of `pyproject.toml`.
        environ: environment variables.

    Raises:
        SpecError: the file or the variable is invalid.
    """
    frozen, project = _frozen_by(environ), _project(root)
    if project is None:
        return ()
    project.at.check_known("key", project.values, KEYS)
    bundles = _bundles(project.values.get(_BUNDLES, {}), project.at.child(_BUNDLES))
    return tuple(_setting(place, value, at, frozen=frozen) for place, value, at in bundles)


def _project(root: Path) -> ProjectTable | None:
    return read_project(str(root / FILE), FILE)


def _frozen_by(environ: Mapping[str, str]) -> str:
    """Return PALLASC_FROZEN as the user wrote it, or "" if it is off."""
    is_frozen = read_switch(environ, "PALLASC_FROZEN")
    return f"PALLASC_FROZEN={environ['PALLASC_FROZEN']}" if is_frozen else ""


def _bundles(value: object, at: Place) -> list[tuple[str, object, Place]]:
    if not isinstance(value, dict):
        raise expected("a table of bundles", value, at, _PLACES)
    return [(place, item, at.child(_checked(place, at))) for place, item in value.items()]


def _checked(place: str, at: Place) -> str:
    """Check a bundle's path in the wheel, and return it."""
    parts = place.split("/")
    if not place.endswith(SUFFIX) or parts[-1] == SUFFIX:
        raise at.child(place).error(f"the name of a bundle must end with {SUFFIX}.", _PLACES)
    if len(parts) < 2 or not all(part.isidentifier() for part in parts[:-1]):
        raise at.child(place).error("a bundle must be in a package.", _PLACES)
    return place


def _setting(place: str, value: object, at: Place, *, frozen: str) -> Setting:
    fields = record(FIELDS, "key").read(_table(value), at)
    if ("specs" in fields) == ("bundle" in fields):
        raise at.error("expected exactly one of 'specs' and 'bundle'.", "It names the content.")
    extra = [key for key in fields if key != "bundle"]
    if "bundle" in fields and extra:
        child = at.child(extra[0])
        raise child.error("this key is for specs; 'bundle' is used as it is.", "Remove it.")
    for key in ("specs", "lock", "bundle"):
        for path in _texts(fields.get(key)):
            _check_path(path, at.child(key) if isinstance(value, dict) else at)
    source = fields.pop("from", "compile")
    make: Callable[..., Setting] = Setting
    return make(
        place=place,
        at=at,
        source="frozen" if frozen else source,
        frozen_by=frozen or ("" if source == "compile" else f'from = "{source}"'),
        **{key.replace("-", "_"): field for key, field in fields.items()},
    )


def _table(value: object) -> object:
    """Expand the short forms of a setting to a table."""
    if isinstance(value, str) and value.endswith(SUFFIX):
        return {"bundle": value}
    return {"specs": value} if isinstance(value, str | list) else value


def _texts(value: object) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (str(value),) if value else ()


def _check_path(path: str, at: Place) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise at.error(
            f"{show(path)} is outside of the project.",
            "Put it below the folder of pyproject.toml, so that the sdist can contain it.",
        )
