"""The wheels that a packed folder carries: pallasc's own, and those that are missing there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_BESIDE = ("numpy", "ml-dtypes", "cramjam", "protobuf")
"""What the scripts use beside what pallasc needs: arrays, and how JAX's executables are read."""

_GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17)
_EPOCH = "315619200"  # 2 January 1980, the first day that every time zone has in a zip file


def plain(name: str) -> str:
    """Return a package's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_there(file: Path) -> dict[str, str]:
    """Return the packages of `pip list --format=freeze` by name.

    Raises:
        SystemExit: a line is none of it.
    """
    found = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip() or line.startswith(("#", "-e ")):
            continue
        name, _, value = line.partition("==")
        if not value:
            name, _, value = line.partition(" @ ")
        if not value:
            raise SystemExit(
                f"pack: {file}:{number}: {line!r} is no package.\n"
                "  Write the file with: python3 -m pip list --format=freeze"
            )
        found[plain(name.strip())] = value.strip()
    return found


def needed() -> list[str]:
    """Return what pallasc needs where kernels run, and what that needs, by names."""
    from packaging.requirements import Requirement

    found: dict[str, None] = {}
    open_ = ["pallasc", *_BESIDE]
    while open_:
        name = plain(open_.pop(0))
        if name in found:
            continue
        found[name] = None
        try:
            texts = requires(name) or []
        except PackageNotFoundError:
            continue
        wanted = map(Requirement, texts)
        open_ += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    del found["pallasc"]
    return list(found)


def pack_wheels(folder: Path, python: str | None, there: Iterable[str]) -> list[str]:
    """Build the wheel of pallasc, download those that are missing there; return their names."""
    folder.mkdir()
    build_wheel(folder)
    known = set(there)
    missing = [name for name in needed() if name not in known]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    wheels = ["--only-binary=:all:", "--no-deps", "--dest", str(folder)]
    if python:
        wheels += ["--implementation", "cp", "--python-version", python]
        for minor in _GLIBC:
            wheels += ["--platform", f"manylinux_2_{minor}_x86_64"]
        wheels += ["--platform", "manylinux2014_x86_64", "--platform", "linux_x86_64"]
    if missing:
        subprocess.run([*command, *wheels, *map(_pinned, missing)], check=True)
    return missing


def build_wheel(folder: Path) -> None:
    """Build the wheel of pallasc from a copy, as building leaves files beside the sources."""
    with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
        sources = Path(name) / "sources"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "pallasc", sources / "pallasc", ignore=ignored)  # links too
        for file in _FILES:
            shutil.copy(ROOT / file, sources)
        build = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
        subprocess.run(
            [*build, "--outdir", str(folder), str(sources)],
            env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH},
            stdout=subprocess.DEVNULL,
            check=True,
        )


def _pinned(name: str) -> str:
    """Return a package with the version that is installed here."""
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name
