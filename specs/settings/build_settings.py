"""What a project says for its builds: `[tool.pallasc]` of `pyproject.toml`.

    [tool.pallasc]
    remote = "s3://kernels/cache"      # the remote store behind the local one
    remote-write = true                # send what was compiled there
    remote-signed = "required"         # believe only what a trusted key signed
    cache-salt = "2026-03"             # part of every key
    executor = "dask://scheduler:8786" # where misses are compiled

The project is the nearest folder with a `pyproject.toml`, from the current folder upwards: where
the lock file is, too. A build may take specs from several folders and has one remote.
`cache-salt` takes the variable PALLASC_CACHE_SALT before the project's; a set of entries that
nobody trusts any more is disowned by changing it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import Choice, Field, Flag, Place, Text
from pallasc.specs.spelling import show

SALT = "PALLASC_CACHE_SALT"
"""The variable of the salt, and its label in keys."""

BUILD_KEYS = (
    "remote", "remote-write", "remote-signed", "cache-salt", "executor", "compiler", "env",
)  # fmt: skip
"""The keys of `tool.pallasc` for builds; `specs/loading/project` reads `env`, the build hooks
`compiler`."""

_FILE = "pyproject.toml"
_TABLE = ("tool", "pallasc")
_OF_HOOKS = ("bundles",)
_LONGEST_SALT = 200
_SALT = Text(
    f"a line of at most {_LONGEST_SALT} printable ASCII characters",
    rf"[ -~]{{1,{_LONGEST_SALT}}}",
)
FIELDS = (
    Field("remote", Text("a URL"), "The remote store behind the local one."),
    Field("remote-write", Flag(), "Whether builds send there what they compile."),
    Field("remote-signed", Choice(("required", "optional")), "Whether signatures are required."),
    Field("cache-salt", _SALT, "Text that is part of every key."),
    Field("executor", Text("the address of a scheduler"), "Where misses are compiled."),
)
_READ = tuple(field.name.encode() for field in FIELDS)


class BuildSettings(NamedTuple):
    """What a project says for its builds; what it does not say is None or "".

    Attributes:
        remote: the URL of the remote store, as written.
        remote_write: whether builds send there what they compile.
        remote_signed: `required` or `optional`.
        cache_salt: text that is part of every key.
        executor: the scheduler of the cluster that compiles misses, as written.
        where: the place of each key that is given, for messages.
    """

    remote: str = ""
    remote_write: bool | None = None
    remote_signed: str = ""
    cache_salt: str = ""
    executor: str = ""
    where: Mapping[str, Location] = {}


NOTHING_SET = BuildSettings()


def build_settings(folder: str | Path = ".") -> BuildSettings:
    """Return the settings of the project around a folder.

    Raises:
        SpecError: one has a wrong value, or there is no such key.
    """
    try:
        start = Path(folder).absolute()
    except OSError:  # the current folder is gone
        return NOTHING_SET
    for place in (start, *start.parents):
        file = os.path.join(place, _FILE)
        if os.path.isfile(file):
            try:
                status = os.stat(file)
                return _read(file, status.st_mtime_ns, status.st_size)
            except OSError as error:
                raise SpecError(f"{file} cannot be read: {error.strerror}.") from error
    return NOTHING_SET


@lru_cache(maxsize=4)
def _read(file: str, mtime_ns: int, size: int) -> BuildSettings:
    """Return what a file says; several parts of a build ask for it.

    Raises:
        OSError: it cannot be read.
        SpecError: as of `build_settings`.
    """
    data = Path(file).read_bytes()
    if b"pallasc" not in data or not any(key in data for key in (*_READ, b"pallasc]")):
        return NOTHING_SET
    import tomllib  # most projects say nothing

    from pallasc.specs.settings.toml_lines import TomlLines

    try:
        text = data.decode()
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not valid TOML: {error}", location=Location(file)) from error
    for name in _TABLE:
        inner = table.get(name, {})
        table = inner if isinstance(inner, dict) else {}
    at = Place(TomlLines(file, text), _TABLE)
    for key in table:
        if key not in BUILD_KEYS and key not in _OF_HOOKS:
            raise at.unknown("key", key, [*BUILD_KEYS, *_OF_HOOKS])
    values = {
        field.name: field.kind.read(table[field.name], at.child(field.name))
        for field in FIELDS
        if field.name in table
    }
    where = {name: at.child(name).location for name in values}
    named = {name.replace("-", "_"): value for name, value in values.items()}
    return BuildSettings(**named, where=where)  # type: ignore[arg-type]


def cache_salt(environ: Mapping[str, str], folder: str | Path = ".") -> str:
    """Return the salt of keys: that of the environment, else that of the project, else "".

    Raises:
        SpecError: it is not a short printable line, or `pyproject.toml` has another mistake.
    """
    if value := environ.get(SALT, ""):
        if re.fullmatch(_SALT.pattern, value) is None:
            raise SpecError(f"{SALT} is {show(value)}, which is not {_SALT.what}.")
        return value
    return build_settings(folder).cache_salt
