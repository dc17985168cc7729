"""A user without a home: no HOME, and no entry in the table of users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import pwd, sys

def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = getpwuid
from pallasc.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
SPEC = """\
schema: 1
targets: [sm_90a]
kernels:
  - {name: k, entry: "json:loads", args: {x: "f32[4]"}}
"""

NEED_A_STORE = [
    "list spec.yaml",
    "build spec.yaml",
    "inspect spec.yaml",
    "lock spec.yaml",
    "bundle create spec.yaml -o x.pallasc",
    "cache stats",
    "cache verify",
    "cache prune",
]
NEED_NONE = ["targets", "init", "bundle keygen release.key", "doctor", "--help"]


def end(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as such a user, with an empty environment."""
    (folder / "spec.yaml").write_text(SPEC)
    return subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *command.split()],
        cwd=folder,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("command", NEED_A_STORE)
def test_a_command_that_needs_a_store_says_how_to_name_one(command: str, tmp_path: Path) -> None:
    done = end(command, tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    assert "the store has no folder" in done.stderr
    assert "Set PALLASC_CACHE_DIR to a folder." in done.stderr


@pytest.mark.parametrize("command", [*NEED_NONE, "run spec.yaml", "bench spec.yaml"])
def test_no_command_ends_with_a_traceback(command: str, tmp_path: Path) -> None:
    done = end(command, tmp_path)
    assert "Traceback" not in done.stdout + done.stderr
    assert (done.returncode == 0) is (command in NEED_NONE), done.stderr


@pytest.mark.parametrize("folder", ["~/store", "~no-such-user-here/store"])
def test_a_tilde_that_stands_for_no_home_is_a_message(folder: str, tmp_path: Path) -> None:
    done = end(f"cache stats --store {folder}", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    assert "Give the folder without '~'." in done.stderr
