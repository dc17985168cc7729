"""Environments that tests install wheels into, and what can be told of wheels and folders."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = Path(__file__).parent / "programs"
BOTH_STREAMS: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
BOTH_STREAMS |= {"text": True, "check": False}


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment of Python of its own, and the variables of processes in it."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return Path(next((self.folder / "lib").glob("python*")), "site-packages")

    def run(
        self, *arguments: str | Path, cwd: Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python here; both streams come back as one."""
        env = {**self.variables, **variables}
        return subprocess.run([self.python, *arguments], cwd=cwd, env=env, **BOTH_STREAMS)

    def succeed(self, *arguments: str | Path, cwd: Path, **variables: str) -> str:
        """Run Python here; return what it prints."""
        done = self.run(*arguments, cwd=cwd, **variables)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def install(self, *what: str | Path) -> None:
        """Install wheels, or projects with `-e`, without their dependencies."""
        pip = [sys.executable, "-P", "-m", "pip", "--python", str(self.python), "install"]
        flags = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet"]
        done = subprocess.run([*pip, *flags, *what], env=dict(self.variables), **BOTH_STREAMS)
        assert done.returncode == 0, done.stdout

    def link(self, distributions: Iterable[str]) -> None:
        """Have installed distributions of the tests' environment here too, with what they need."""
        for file, target in _files_of(distributions):
            place = self.packages / file
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():
                place.symlink_to(target)

    def build(
        self, project: Path, out: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m build` for a project."""
        flags = ["--no-isolation", "--skip-dependency-check", "--outdir", str(out), *arguments]
        return self.run("-P", "-m", "build", *flags, project, cwd=project, **variables)


def _files_of(distributions: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield the files of distributions and of all that they need, by their place below them."""
    waiting, seen = list(distributions), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        found = importlib.metadata.distribution(name)
        for requirement in map(Requirement, found.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name.lower())
        for file in found.files or ():
            if ".." not in file.parts:
                yield str(file), Path(str(file.locate()))


def variables(store: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PALLASC_", "GIT_"))
    }
    # setuptools says where it is slow, pip that it is old: nothing of it is of the project.
    return {**kept, "PALLASC_CACHE_DIR": str(store), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def make_environment(folder: Path, store: Path) -> Environment:
    """Return a new environment with nothing in it."""
    venv.create(folder, with_pip=False)
    return Environment(folder, variables(store))


def linked_folders() -> set[str]:
    """Return folders that files in the tests' environment add to its path."""
    pure = Path(sysconfig.get_path("purelib"))
    lines = [line for file in pure.glob("*.pth") for line in file.read_text().splitlines()]
    return {line for line in lines if line.startswith("/") and Path(line).is_dir()}


def wheel_in(folder: Path) -> Path:
    """Return the one wheel of a folder."""
    (wheel,) = folder.glob("*.whl")
    return wheel


def bundles_in(wheel: Path) -> dict[str, bytes]:
    """Return the bundles of a wheel by their places."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".pallasc")]
        return {name: archive.read(name) for name in names}


def tree(folder: Path) -> set[str]:
    """Return the names of all files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
