"""Run what a page of the documentation shows: its commands and programs, in order."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from processes import captured

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def environment(given: dict[str, str], folder: Path) -> dict[str, str]:
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


def blocks(page: Path, kind: str) -> list[str]:
    """Return the blocks of a page in a language."""
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [block["text"] for block in found if block["kind"] == kind]


def commands(page: Path) -> Iterator[list[str]]:
    """Yield what runs, in order: lines of consoles, and programs."""
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["kind"] == "console":
            lines = re.findall(r"^\$ (.*)$", block["text"], re.MULTILINE)
            yield from (["bash", "-c", line] for line in lines)
        elif block["kind"] == "python":
            yield [sys.executable, "-P", "-c", block["text"]]


def run(listed: Iterable[list[str]], folder: Path, given: dict[str, str]) -> None:
    """Run commands in a folder; the first that fails fails the test."""
    for command in listed:
        done = captured(command, cwd=folder, env=given)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
