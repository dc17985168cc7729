"""`pallasc init`: what it writes builds."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunCommand = Callable[..., Any]


def test_init_writes_two_files_and_says_what_to_do_next(run: RunCommand, tmp_path: Path) -> None:
    result = run("init", tmp_path / "new")
    spec = tmp_path / "new" / "kernels.yaml"
    assert (result.code, result.out) == (0, "")
    assert result.err == (
        f"wrote {spec}\n"
        f"wrote {tmp_path / 'new' / 'kernels.py'}\n"
        "Now try:\n"
        f"  pallasc list {spec}\n"
        f"  pallasc build {spec}\n"
        f'  pallasc inspect {spec} --plan -k "n=4096 and dtype=f32"\n'
        f'  pallasc check {spec} -k "n=4096 and dtype=f32"\n'
    )


def test_the_commands_that_init_prints_can_be_pasted(run: RunCommand, tmp_path: Path) -> None:
    folder = tmp_path / "my kernels; rm x"
    commands = run("init", folder).err.splitlines()[3:]
    assert [shlex.split(line)[2] for line in commands] == [str(folder / "kernels.yaml")] * 4


def test_init_writes_into_this_folder_by_default(
    run: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("init").err.splitlines()[:2] == ["wrote kernels.yaml", "wrote kernels.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.py", "kernels.yaml"]


@pytest.mark.parametrize("name", ["kernels.yaml", "kernels.py"])
def test_init_overwrites_nothing(run: RunCommand, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    result = run("init", tmp_path)
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: {tmp_path / name} already exists.\n  Move it, or choose another folder.\n"
    )
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_what_init_writes_builds(run: RunCommand, tmp_path: Path) -> None:
    run("init", tmp_path)
    result = run("build", tmp_path / "kernels.yaml", "--store", tmp_path / "store")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[-1].endswith(": 4 compiled")
