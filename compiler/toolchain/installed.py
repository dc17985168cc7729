"""Find installed distributions by the names of their `.dist-info` folders.

The name holds distribution and version (PEP 376, PEP 427), so nothing is read or parsed, and the
machinery of `importlib.metadata` is imported only for what was installed in another way.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_SUFFIX = ".dist-info"


class Package(NamedTuple):
    """An installed distribution; `root` is the folder that its files lie in."""

    name: str
    version: str
    root: Path

    def files(self) -> list[Path]:
        """Return its installed files, in order, without bytecode; they may be missing on disk."""
        from importlib import metadata

        return sorted(
            Path(str(file.locate()))
            for file in metadata.distribution(self.name).files or []
            if file.suffix != ".pyc"
        )


def find_package(name: str) -> Package | None:
    """Return the distribution that Python would find by a name, None if there is none."""
    prefix = re.sub(r"[-_.]+", "_", name).lower() + "-"
    for folder in sys.path:
        names = [n for n in _dist_infos(folder, _changed_ns(folder)) if n.startswith(prefix)]
        if len(names) == 1:
            version = names[0].removeprefix(prefix).removesuffix(_SUFFIX)
            return Package(name, version, Path(folder))
        if names:
            break  # an update failed half-way: only their contents tell which is installed
    return _from_metadata(name)


def version_of(module: str) -> str:
    """Return the version of the distribution that an installed module belongs to, "" if unknown."""
    top = module.partition(".")[0]
    package = find_package(top)
    if package is None:
        names = _distributions(tuple(sys.path)).get(top, ())
        package = find_package(names[0]) if names else None
    return package.version if package else ""


@lru_cache(maxsize=4)
def _distributions(path: tuple[str, ...]) -> Mapping[str, Sequence[str]]:
    """Return the names of distributions by the modules that they contain."""
    from importlib import metadata

    return metadata.packages_distributions()


def _from_metadata(name: str) -> Package | None:
    from importlib import metadata

    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Package(name, distribution.version, Path(str(distribution.locate_file(""))))


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=64)
def _dist_infos(folder: str, changed_ns: int) -> tuple[str, ...]:
    """Return the names of `.dist-info` folders, in lower case, as of the folder's last change."""
    try:
        names = os.listdir(folder) if changed_ns else []
    except OSError:
        return ()
    return tuple(name.lower() for name in names if name.endswith(_SUFFIX))
