"""What docs/runtime.md shows is true: its commands and programs run, on the stand-in driver."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import standin as control

from pallasc import errors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runtime.md"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Give an environment with the stand-in driver, where `pallasc` is that of the tests."""
    if control.compiler() is None:
        pytest.skip("no C compiler (cc or gcc), so the stand-in driver cannot be built")
    tools = tmp_path / "tools"
    tools.mkdir()
    script = tools / "pallasc"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m pallasc "$@"\n')
    script.chmod(0o755)
    given = control.environment(devices="9.0")
    return {
        **given,
        "PATH": os.pathsep.join([str(tools), given["PATH"]]),
        "PALLASC_CACHE_DIR": str(tmp_path / "store"),
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


def test_every_command_and_program_of_the_page_runs(
    environment: dict[str, str], tmp_path: Path
) -> None:
    commands = list(_commands())
    assert len(commands) == 6
    for command in commands:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"


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
