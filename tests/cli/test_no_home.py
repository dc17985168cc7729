"""A user without a home: no HOME, and no entry in the table of users."""

import sys
from pathlib import Path

import pytest
from commands import captured

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
NO_STORE = ("the store has no folder", "Set PALLASC_CACHE_DIR to a folder.")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        *((command, 4, NO_STORE) for command in ("build spec.yaml", "lock spec.yaml",
          "bundle create spec.yaml -o x.pallasc", "cache stats", "cache prune", "run spec.yaml")),
        *((command, 0, ()) for command in ("targets", "init", "bundle keygen k", "doctor")),
        ("cache stats --store ~/store", 4, ("Give the folder without '~'.",)),
        ("cache stats --store ~no-such-user-here/store", 4, ("Give the folder without '~'.",)),
    ],
)  # fmt: skip
def test_a_command_that_needs_a_store_says_how_to_name_one_and_the_others_work(
    command: str, code: int, said: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    start = [sys.executable, "-P", "-c", PROGRAM, *command.split()]
    done = captured(start, cwd=tmp_path, env={})
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert [words for words in said if words not in done.stderr] == []
