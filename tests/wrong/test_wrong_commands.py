"""Specs and commands that are wrong: each gives exactly the text and the exit code beside it.

Every text in `specs/` is a transcript: the command, what it prints on the standard error output,
and its exit code; `tests/specs/wrong` has more that can be wrong inside a spec. After a change of
messages, `python tests/wrong/test_wrong_commands.py` writes them again.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pallasc.cli.main import main

FOLDER = Path(__file__).parent / "specs"
READING = re.compile(r"^reading .+ \d+ s\n", re.MULTILINE)
"""Said from time to time where the machine is busy."""
CASES = sorted(path.stem for path in FOLDER.glob("*.txt"))
PROMPT = "$ pallasc "


def transcript(case: str, run: Callable[[list[str]], tuple[str, str, int]]) -> str:
    """Run the command of a case and return what its file should be."""
    command = (FOLDER / f"{case}.txt").read_text("utf-8").partition("\n")[0]
    out, err, code = run(shlex.split(command.removeprefix(PROMPT)))
    return f"{command}\n{out}{READING.sub('', err)}exit code {code}\n"


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_spec_gives_its_exact_message(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.setenv("PALLASC_CACHE_DIR", str(tmp_path / "store"))

    def run(arguments: list[str]) -> tuple[str, str, int]:
        code = main(arguments)
        return *capfd.readouterr(), code

    text = transcript(case, run)
    assert text == (FOLDER / f"{case}.txt").read_text("utf-8")
    assert "\nerror: " in text
    assert text.endswith("\nexit code 2\n")


def write_transcripts(store: str) -> None:
    """Write all transcripts again."""

    def run(arguments: list[str]) -> tuple[str, str, int]:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pallasc", *arguments],
            cwd=FOLDER,
            env={**os.environ, "PALLASC_CACHE_DIR": store},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout, done.stderr, done.returncode

    for case in CASES:
        (FOLDER / f"{case}.txt").write_text(transcript(case, run), "utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write_transcripts(folder)
