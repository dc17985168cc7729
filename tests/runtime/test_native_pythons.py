"""The extension in every Python that is found here: eight threads that launch at once."""

import glob
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import standin

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "runtime" / "native"
PROGRAM = Path(__file__).parent / "programs" / "native_threads.py"
VERSIONS = ("3.11", "3.14", "3.14t")
_ASK = (
    "import json, sys, sysconfig; print(json.dumps(['%d.%d' % sys.version_info[:2] + "
    "('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''), sysconfig.get_path('include')]))"
)


def _find(version: str) -> tuple[str, str] | None:
    """Return a command that runs a version of Python, and where its headers lie."""
    pyenv = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    found = sorted(glob.glob(f"{pyenv}/versions/{version.rstrip('t')}*/bin/python"))
    for command in (shutil.which(f"python{version}"), *found):
        if command is None:
            continue
        asked = subprocess.run([command, "-c", _ASK], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            name, headers = json.loads(asked.stdout)
            if name == version:
                return command, headers
    return None


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the extension of the stable ABI, with the oldest Python whose headers are here."""
    for version in VERSIONS[:-1]:
        found = _find(version)
        if found is not None and Path(found[1], "Python.h").exists():
            return _build(tmp_path_factory.mktemp("stable") / "_native.abi3.so", found[1])
    pytest.skip("no Python here has its headers")


def _build(made: Path, headers: str) -> Path:
    cc = standin.compiler()
    if cc is None:
        pytest.skip("no C compiler (cc or gcc), so there is no extension")
    flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
    command = [cc, *flags, f"-I{headers}", NATIVE / "python.c", "-shared", "-o", made]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_eight_threads_launch_at_once(version: str, stable: Path, tmp_path: Path) -> None:
    found = _find(version)
    if found is None:
        pytest.skip(f"no Python {version} here")
    command, headers = found
    extension = stable
    if version.endswith("t"):  # there is no stable ABI of free-threaded Pythons
        if not Path(headers, "Python.h").exists():
            pytest.skip(f"Python {version} is here without its headers")
        extension = _build(tmp_path / "_native.so", headers)
    done = subprocess.run(
        [command, "-I", PROGRAM, extension, "8", "500"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report == {
        "launches": 4_000,
        "wrong": [],
        "left": 0,
        "GIL": not version.endswith("t"),
    }
