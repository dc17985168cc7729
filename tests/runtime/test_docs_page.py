"""What docs/runtime.md shows is true: its commands and programs run, on the stand-in driver."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import standin as control
import standin_torch as torch_control

from pallasc import errors
from pallasc.cache.store import Store

pytestmark = pytest.mark.once

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def _environment(given: dict[str, str], folder: Path) -> dict[str, str]:
    """Return an environment where `pallasc` is that of the tests."""
    tools = folder / "tools"
    tools.mkdir()
    script = tools / "pallasc"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m pallasc "$@"\n')
    script.chmod(0o755)
    return {
        **given,
        "PATH": os.pathsep.join([str(tools), given["PATH"]]),
        "PALLASC_CACHE_DIR": str(folder / "store"),
        "JAX_PLATFORMS": "cpu",
    }


def _commands() -> Iterator[list[str]]:
    """Yield what runs, in order: lines of consoles, and programs."""
    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        if block["kind"] == "console":
            lines = re.findall(r"^\$ (.*)$", block["text"], re.MULTILINE)
            yield from (["bash", "-c", line] for line in lines)
        elif block["kind"] == "python":
            yield [sys.executable, "-P", "-c", block["text"]]


def _needs_torch(command: list[str]) -> bool:
    return "import torch\n" in command[-1]


def _run(commands: Iterable[list[str]], folder: Path, environment: dict[str, str]) -> None:
    for command in commands:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"


def test_every_command_and_program_of_the_page_runs(tmp_path: Path, warm_store: Store) -> None:
    if control.compiler() is None:
        pytest.skip("no C compiler (cc or gcc), so the stand-in driver cannot be built")
    commands = [command for command in _commands() if not _needs_torch(command)]
    assert len(commands) == 11
    shutil.copytree(warm_store.root, tmp_path / "store")
    _run(commands, tmp_path, _environment(control.environment(devices="9.0"), tmp_path))


def test_every_program_with_torch_runs(tmp_path: Path) -> None:
    if reason := torch_control.why_not():
        pytest.skip(f"no CUDA tensors here: {reason}")
    programs = [command for command in _commands() if _needs_torch(command)]
    assert len(programs) == 2
    makes_bundle = [command for command in _commands() if command[0] == "bash"]
    plain = _environment(control.environment(devices="9.0"), tmp_path)
    _run(makes_bundle, tmp_path, plain)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    with_torch = torch_control.environment(libraries, devices="9.0")
    changed = {name: with_torch[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    _run(programs, tmp_path, {**plain, **changed})


def test_every_error_of_the_runtime_is_on_the_page() -> None:
    text = PAGE.read_text("utf-8")
    named = set(re.findall(r"^\| `(\w+Error)` \|", text, re.MULTILINE))
    kinds = (errors.ArgumentError, errors.DeviceError, errors.CorruptError)
    own = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, kinds)
    }
    assert named == own
