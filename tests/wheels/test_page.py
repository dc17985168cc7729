"""What docs/wheels.md shows is true where pallasc is installed: its commands run in the example."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from consoles import fits, shown
from environments import BOTH_STREAMS, EXAMPLES, ROOT, Environment

PAGE = ROOT / "docs" / "wheels.md"
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> list[str]:
    return [block["text"] for block in BLOCK.finditer(page.read_text()) if block["kind"] == kind]


@pytest.fixture
def shell(builder: Environment, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return what runs a command as in an activated environment; builds are not isolated."""
    tools = tmp_path / "tools"
    tools.mkdir()
    python = shlex.quote(str(builder.python))
    # There is no index here that isolated builds could take their requirements from.
    build = f'exec {python} -P -m build --no-isolation --skip-dependency-check "$@"'
    scripts = {
        "python": f'[ "$1 $2" = "-m build" ] && shift 2 && {build}\nexec {python} -P "$@"',
        "pip": f'exec {python} -P -m pip "$@"',
        "pallasc": f'exec {python} -P -m pallasc "$@"',
    }
    for name, text in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)

    def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        env = {**builder.variables, "PATH": path}
        shell = ["bash", "-o", "pipefail", "-c", command]
        return subprocess.run(shell, cwd=folder, env=env, **BOTH_STREAMS)

    return run


def test_every_command_of_the_page_does_what_it_says(
    shell: Callable[..., subprocess.CompletedProcess[str]],
    example_wheel: Path,
    copy_example: Callable[..., Path],
) -> None:
    clone = copy_example("fused_ops")
    commands = [pair for text in blocks(PAGE, "console") for pair in shown(text)]
    assert commands
    for command, wanted in commands:
        done = shell(command, clone)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        assert fits(done.stdout, wanted), f"$ {command}\n{done.stdout}"


def test_the_python_of_the_page_runs_where_the_wheel_is_installed(
    example_wheel: Path, user: Environment
) -> None:
    user.install(example_wheel)
    (text,) = blocks(PAGE, "python")
    printed = user.succeed("-P", "-c", text, cwd=user.folder)
    assert printed == "['add_rms_norm', 'bias_gelu', 'linear_gelu']\n"


@pytest.mark.parametrize("example", ["fused_ops", "provider_wheels"])
def test_what_a_readme_shows_of_pyproject_stands_there(example: str) -> None:
    files = "\n".join(path.read_text() for path in (EXAMPLES / example).rglob("pyproject.toml"))
    texts = blocks(EXAMPLES / example / "README.md", "toml")
    assert texts
    for text in texts:
        assert [line for line in text.splitlines() if line not in files.splitlines()] == []


def test_the_tests_of_the_example_pass_on_its_wheel(
    example_wheel: Path, developer: Environment, copy_example: Callable[..., Path]
) -> None:
    clone = copy_example("fused_ops")
    shutil.rmtree(clone / "src")
    developer.install(example_wheel)
    flags = ["-p", "no:cacheprovider", "-q"]
    printed = developer.succeed("-P", "-m", "pytest", *flags, clone, cwd=clone)
    assert re.search(r"\d passed", printed)
