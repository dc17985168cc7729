"""What the project of a spec says for all of its kernels: `[tool.pallasc]` of `pyproject.toml`.

    [tool.pallasc]
    env = ["KERNEL_TILE"]

`env` lists environment variables that the project's kernels get to see, as the field of the same
name does for one kernel. The project is the nearest folder with a `pyproject.toml`, from the spec's
own upwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import FixedLocator, Place
from pallasc.specs.loading.kernel_fields import VARIABLES_KIND
from pallasc.specs.spec import Spec

_FILE = "pyproject.toml"
_TABLE = ("tool", "pallasc")
_KEY = "env"


def with_project(specs: Iterable[Spec]) -> list[Spec]:
    """Return specs with what their projects say of them.

    Raises:
        SpecError: a project lists something else than names of variables.
    """
    declared: dict[str, tuple[str, ...]] = {}
    result = []
    for spec in specs:
        if spec.base_dir not in declared:
            declared[spec.base_dir] = project_env(spec.base_dir)
        names = declared[spec.base_dir]
        result.append(replace(spec, env=(*spec.env, *names)) if names else spec)
    return result


def project_env(folder: str) -> tuple[str, ...]:
    """Return the environment variables that the project around a folder declares.

    Raises:
        SpecError: it lists something else.
    """
    for place in (Path(folder), *Path(folder).parents):
        file = place / _FILE
        if file.is_file():
            return _declared(file)
    return ()


def _declared(file: Path) -> tuple[str, ...]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SpecError(f"{file} cannot be read: {error.strerror}.") from error
    if b"pallasc" not in data or _KEY.encode() not in data:
        return ()
    import tomllib  # most projects say nothing

    where = Location(str(file))
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not valid TOML: {error}", location=where) from error
    for name in _TABLE:
        inner = table.get(name, {})
        table = inner if isinstance(inner, dict) else {}
    if _KEY not in table:
        return ()
    at = Place(FixedLocator(where), (*_TABLE, _KEY))
    return VARIABLES_KIND.read(table[_KEY], at)
