"""Build settings of a project: `[tool.pallasc]` in `pyproject.toml`.

    [tool.pallasc]
    remote = "s3://kernels/cache"      # the remote store, used after the local one
    remote-write = true                # upload compiled artifacts to it
    remote-signed = "required"         # accept only entries signed by a trusted key
    cache-salt = "2026-03"             # part of every key
    executor = "dask://scheduler:8786" # compiles misses

The project is the nearest folder with a `pyproject.toml`, from the current folder upwards, as for
the lock file. A build may take specs from several folders but has one remote. The variable
PALLASC_CACHE_SALT overrides `cache-salt`. A new salt makes all older entries unreachable; use one
if older entries can no longer be trusted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pallasc.errors import Location, SpecError
from pallasc.specs.fields import FLAG, Field, Locate, PathParts, Place, choice, record, text
from pallasc.specs.spelling import show
from pallasc.specs.user_files import read_regular

SALT = "PALLASC_CACHE_SALT"
"""The environment variable of the salt, and its label in keys."""

FILE = "pyproject.toml"
_TABLE = ("tool", "pallasc")
_MOST_BYTES = 8 << 20
_LONGEST_SALT = 200
_SALT_TEXT = f"a line of at most {_LONGEST_SALT} printable ASCII characters"
_SALT_PATTERN = rf"[ -~]{{1,{_LONGEST_SALT}}}"
FIELDS = (
    Field("remote", text("a URL"), "The remote store, used after the local store."),
    Field("remote-write", FLAG, "Whether builds send compiled artifacts to the remote store."),
    Field("remote-signed", choice("required", "optional"), "Whether signatures are required."),
    Field("cache-salt", text(_SALT_TEXT, _SALT_PATTERN), "Text that is part of every key."),
    Field("executor", text("the address of a scheduler"), "Where misses are compiled."),
)
KEYS = (*(field.name for field in FIELDS), "compiler", "env", "bundles")
"""The keys of `tool.pallasc`. `specs/loading/yaml_loader` reads `env`, and the build hooks read
`compiler` and `bundles`."""


class BuildSettings(NamedTuple):
    """Build settings of a project; an unset one is None or "".

    Attributes:
        remote: the URL of the remote store, as written.
        remote_write: True if builds upload compiled artifacts to it.
        remote_signed: `required` or `optional`.
        cache_salt: text that is part of every key.
        executor: the scheduler of the cluster that compiles misses, as written.
        where: location of each key that is set, for messages.
    """

    remote: str = ""
    remote_write: bool | None = None
    remote_signed: str = ""
    cache_salt: str = ""
    executor: str = ""
    where: Mapping[str, Location] = {}


NOTHING_SET = BuildSettings()


def toml_lines(file: str, text: str) -> Locate:
    """Return a function that finds the lines of keys in a TOML file; `tomllib` does not."""

    def locate(path: PathParts, at_key: bool) -> Location:
        start = line = 0
        for part in path:
            if isinstance(part, str):
                head = rf"""^[ \t]*(?:\[[^\n\]]*\.)?\[?["']?{re.escape(part)}["']?[ \t]*[=.\]]"""
                match = re.compile(head, re.MULTILINE).search(text, start)
                if match is not None:
                    start = match.start()
                    line = text.count("\n", 0, start) + 1
        return Location(file, line)

    return locate


class ProjectTable(NamedTuple):
    """The table `tool.pallasc` of a project, and its place."""

    values: Mapping[str, Any]
    at: Place


def project_table(folder: str | Path) -> ProjectTable | None:
    """Return the table of the project around a folder, None if it has no settings.

    Raises:
        SpecError: the project's file cannot be read, or is not TOML.
    """
    try:
        start = Path(folder).absolute()
    except OSError:  # the current folder is gone
        return None
    for place in (start, *start.parents):
        file = os.path.join(place, FILE)
        if os.path.isfile(file):
            return read_project(file)
    return None


def read_project(file: str, shown: str = "") -> ProjectTable | None:
    """Return the table in a `pyproject.toml`, None if it has no settings.

    Args:
        file: its path.
        shown: the path to show in messages, by default `file`.

    Raises:
        SpecError: the file cannot be read, or is not TOML.
    """
    data = read_regular(file, most_bytes=_MOST_BYTES)
    return _parsed(data, shown or file) if b"pallasc" in data else None


@lru_cache(maxsize=4)
def _parsed(data: bytes, shown: str) -> ProjectTable:
    """Parse the table in a file; cached, because several parts of a build use it.

    Raises:
        SpecError: the file is not TOML.
    """
    import tomllib  # most projects have no settings

    try:
        text = data.decode()
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not valid TOML: {error}", location=Location(shown)) from error
    for name in _TABLE:
        inner = table.get(name, {})
        table = inner if isinstance(inner, dict) else {}
    return ProjectTable(table, Place(toml_lines(shown, text), _TABLE))


def build_settings(folder: str | Path = ".") -> BuildSettings:
    """Return the settings of the project around a folder.

    Raises:
        SpecError: a value is wrong, or a key is unknown.
    """
    project = project_table(folder)
    if project is None:
        return NOTHING_SET
    table, at = project
    at.check_known("key", table, KEYS)
    names = {field.name for field in FIELDS}
    values = record(FIELDS).read({key: table[key] for key in table if key in names}, at)
    where = {name: at.child(name).location for name in values}
    named = {name.replace("-", "_"): value for name, value in values.items()}
    return BuildSettings(**named, where=where)


def cache_salt(environ: Mapping[str, str], folder: str | Path = ".") -> str:
    """Return the salt of keys: from the environment, else from the project, else "".

    Raises:
        SpecError: the salt is not a short printable line, or `pyproject.toml` has another mistake.
    """
    if value := environ.get(SALT, ""):
        if re.fullmatch(_SALT_PATTERN, value) is None:
            raise SpecError(f"{SALT} is {show(value)}, which is not {_SALT_TEXT}.")
        return value
    return build_settings(folder).cache_salt


# ---- environment variables of compiling processes

FORCED = {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
FIXED = {
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "pallasc",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TERM": "dumb",
    "TZ": "UTC",
    "USER": "pallasc",
}
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Search path of workers for programs, in addition to the assembler's folder."""
# Compiling processes do not inherit these. JAX sets MOSAIC_GPU_CUDA_ROOT and MOSAIC_GPU_NVSHMEM_…
# on import, so a caller that has imported JAX has them. Kernels that use NVSHMEM are rejected.
DROPPED = frozenset(
    {
        "BAZEL_TEST", "JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE", "LANG",
        "LANGUAGE", "LOCALTIME", "MAKEFLAGS", "MOSAIC_GPU_CUDA_ROOT", "MOSAIC_GPU_NVSHMEM_BC_PATH",
        "MOSAIC_GPU_NVSHMEM_SO_PATH", "MOSAIC_GPU_RUNTIME_LIB_PATH", "NPROC", "PJRT_NPROC",
        "RUNFILES_DIR", "TF_CPP_MIN_LOG_LEVEL", "TPU_SKIP_MDS_QUERY",
    }
)  # fmt: skip
DROPPED_PREFIXES = (
    "CUDA_", "GOTO_", "INTEL_", "KMP_", "LC_", "MKL_", "NVIDIA_", "NVTX_", "OMP_", "OPENBLAS_",
    "PYTHON", "__PYVENV_",
)  # fmt: skip
WHERE_MODULES_LIE = frozenset(
    {
        "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONNOUSERSITE", "PYTHONPATH",
        "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONUSERBASE",
    }
)  # fmt: skip
PLACES = WHERE_MODULES_LIE | {"LD_LIBRARY_PATH", "NIX_LD", "NIX_LD_LIBRARY_PATH"}
"""Variables that a worker's process needs and kernels cannot see."""

DECLARABLE = frozenset({"LOGNAME", "TERM", "USER"})
"""Variables with a fixed value that affect only kernels that read them."""

EXPECTED = frozenset(
    {
        "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "COLUMNS", "FORCE_COLOR", "HOME", "LANG",
        "LANGUAGE", "LINES", "LNAME", "NO_COLOR", "PATH", "TEMP", "TMP", "TMPDIR", "USERNAME",
    }
)  # fmt: skip
EXPECTED_PREFIXES = ("LC_", "PYTHON")
"""Variables that describe the user, the terminal, and the language, not a kernel."""


def why_not_declared(name: str) -> str:
    """Return why a spec cannot declare a variable, or "" if it can."""
    if name in DECLARABLE:
        return ""
    if name in FORCED or name in FIXED or name in ("PATH", "TMPDIR"):
        return "has its own value in every compiling process"
    if name in PLACES:
        return "locates modules and libraries, whose contents are in every key already"
    if name in DROPPED or name.startswith(DROPPED_PREFIXES):
        return "never reaches a compiling process, where it would change Python or the toolchain"
    return ""
