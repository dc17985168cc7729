"""The generated pages of docs/ are current."""

import importlib.util
from pathlib import Path

import pytest

from pallasc.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]


def test_the_pages_in_the_repository_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    location = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert location is not None
    assert location.loader is not None
    generate = importlib.util.module_from_spec(location)
    location.loader.exec_module(generate)
    assert generate.main(["--check"]) == 0, capsys.readouterr().err
    page = generate.pages()["cli.md"]
    assert [name for name in COMMANDS if f"\n## pallasc {name}\n" not in page] == []
    assert generate.main(["--chekc"]) == 2
