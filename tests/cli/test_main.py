"""The root: finding commands, help, exit codes, errors as text, interrupts, closed pipes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from commands import captured

import pallasc
from pallasc import errors
from pallasc.cli.main import COMMANDS, root
from pallasc.errors import Location, PallascError

EXIT_CODES = {
    "CompileError": 1,
    "UnsupportedError": 1,
    "CheckError": 1,
    "SpecError": 2,
    "NotCachedError": 3,
    "ToolError": 4,
    "DeviceError": 4,
    "DriverError": 4,
    "OutOfMemoryError": 4,
    "SelectionError": 4,
    "ArgumentError": 2,
    "CorruptError": 5,
    "BudgetError": 5,
}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make `pallasc list` end with an error."""

    def fail_with(error: BaseException) -> None:
        def load_specs(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("pallasc.compiler.builds.collect.load_specs", load_specs)

    return fail_with


def test_version_prints_name_and_version(run: Any) -> None:
    result = run("--version")
    assert (result.code, result.out, result.err) == (0, f"pallasc {pallasc.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_says_what_each_option_does(
    run: Any, command: str
) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: pallasc {command} ")
    assert f"\n  Examples:\n    pallasc {command}" in result.out
    assert run(command, "-h").out == result.out
    found = root.get_command(click.Context(root), command)
    assert found is not None
    options = [param for param in found.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_help_lists_the_commands_in_the_order_of_their_use_and_that_of_build_is_short(
    run: Any,
) -> None:
    listed = run("--help").out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)
    assert len(run("build", "--help").out.splitlines()) <= 60


@pytest.mark.parametrize("group", [[], ["bundle"]])
def test_no_command_shows_the_help_as_a_usage_mistake(run: Any, group: list[str]) -> None:
    result = run(*group)
    assert (result.code, result.out) == (2, "")
    assert result.err == run(*group, "--help").out
    assert result.err.startswith(f"Usage: {' '.join(['pallasc', *group])} ")


@pytest.mark.parametrize(
    ("line", "text", "command"),
    [
        ("biuld", "no such command 'biuld'. Did you mean 'build'?", ""),
        ("cache sync", "no such command 'sync'. Commands: ", "cache "),
        ("build", "Missing argument", "build "),
        ("build k.yaml --jobs 0", "Invalid value for '-j' / '--jobs'", "build "),
        ("run k.yaml --output", "Option '--output' requires an argument.", "run "),
        ("run k.yaml --input x", "--input 'x' is not NAME=FILE.", "run "),
        ("list k.yaml --jsno", "No such option", "list "),
    ],
)
def test_a_usage_mistake_names_the_command_whose_help_to_read(
    run: Any, line: str, text: str, command: str
) -> None:
    result = run(*line.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"error: {text}")
    assert result.err.endswith(f"\n  See pallasc {command}--help.\n")


@pytest.mark.parametrize(("name", "code"), EXIT_CODES.items())
def test_every_error_ends_with_its_exit_code_and_its_text(
    run: Any, failing: Callable[[BaseException], None], name: str, code: int
) -> None:
    kind = getattr(errors, name)
    if issubclass(kind, errors.DriverError):
        error = kind("it broke.", code=700, hint="Mend it.")
    else:
        error = kind("it broke.", location=Location("a.yaml", 3), hint="Mend it.")
    failing(error)
    result = run("list", "kernels.yaml")
    assert (result.code, result.out) == (code, "")
    where = "a.yaml:3: " if error.location else ""
    assert result.err == f"error: {where}it broke.\n  Mend it.\n"


def test_every_error_class_has_an_exit_code_in_the_table() -> None:
    public = [value for value in vars(errors).values() if isinstance(value, type)]
    names = {kind.__name__ for kind in public if issubclass(kind, PallascError)}
    assert names - {"PallascError"} == set(EXIT_CODES)


@pytest.mark.parametrize("before", [True, False])
def test_traceback_is_shown_where_it_is_asked_for(
    run: Any, failing: Callable[[BaseException], None], before: bool
) -> None:
    failing(errors.SpecError("it broke."))
    arguments = ["--traceback", "list", "k.yaml"] if before else ["list", "k.yaml", "--traceback"]
    result = run(*arguments)
    assert result.code == 2
    assert result.err.startswith("Traceback (most recent call last):\n")
    assert result.err.endswith("\nerror: it broke.\n")


def redirected(
    how: str, *arguments: str | Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process whose standard streams a shell has redirected."""
    command = [sys.executable, "-P", "-m", "pallasc", *map(str, arguments)]
    shell = ["sh", "-c", f'exec "$@" {how}', "sh", *command]
    variables = {**os.environ, **variables}
    return captured(shell, env=variables)


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-P", "-m", "pallasc", "targets"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("how", "variables", "argument", "reason"),
    [
        (">/dev/full", {}, "targets", "No space left on device"),
        (">/dev/full", {"PYTHONUNBUFFERED": "1"}, "--help", "No space left on device"),
        (">&-", {}, "targets", "Bad file descriptor"),
        (">&-", {}, "--version", "Bad file descriptor"),
    ],
)
def test_output_that_cannot_be_written_ends_with_one_sentence(
    how: str, variables: dict[str, str], argument: str, reason: str
) -> None:
    result = redirected(how, argument, **variables)
    told = f"error: the output cannot be written: {reason}.\n"
    assert (result.returncode, result.stderr) == (74, told)


def test_a_build_needs_only_the_streams_that_it_prints_on(built: Any) -> None:
    result = redirected(">&-", "build", *built.arguments)
    assert result.returncode == 0
    assert "[2/2] hit " in result.stderr
    assert "Traceback" not in result.stderr
    result = redirected("2>&-", "build", *built.arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["totals"]["hit"] == 2


@pytest.mark.parametrize(
    ("how", "argument", "code"),
    [
        ("2>/dev/full", "biuld", 2),
        ("2>&-", "biuld", 2),
        ("<&- >&- 2>&-", "targets", 74),
        ("<&-", "targets", 0),
    ],
)
def test_an_exit_code_is_kept_whatever_is_closed_or_full(
    how: str, argument: str, code: int
) -> None:
    assert redirected(how, argument).returncode == code


def test_a_removed_current_folder_is_no_traceback(tmp_path: Path) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    script = f"cd {folder} && rmdir {folder} && exec {sys.executable} -P -m pallasc build x.yaml"
    result = captured(["sh", "-c", script])
    assert (result.returncode, result.stderr) == (2, "error: x.yaml: there is no such file.\n")


def test_an_error_that_is_not_of_the_output_is_not_hidden(
    run: Any, failing: Callable[[BaseException], None]
) -> None:
    failing(OSError(28, "full"))
    with pytest.raises(OSError, match="full"):
        run("list", "kernels.yaml")


def test_talk_about_itself_imports_neither_yaml_nor_sqlite(process: Any, tmp_path: Path) -> None:
    process("build", "--help", modules=tmp_path / "modules")
    loaded = set((tmp_path / "modules").read_text().splitlines())
    assert "click" in loaded
    assert loaded & {"yaml", "sqlite3", "jax", "numpy", "pallasc.cache.store"} == set()


def test_a_command_imports_no_other_command(process: Any, tmp_path: Path) -> None:
    process("targets", modules=tmp_path / "modules")
    loaded = set((tmp_path / "modules").read_text().splitlines())
    assert {f"pallasc.cli.{name}" for name in COMMANDS} & loaded == {"pallasc.cli.list"}


@pytest.mark.parametrize("command", ["list", "inspect", "lock --update", "lock"])
def test_no_command_imports_jax_for_what_is_in_the_store(
    run: Any, process: Any, built: Any, tmp_path: Path, command: str
) -> None:
    modules, lock = tmp_path / "modules", ("--lock", tmp_path / "lock")
    arguments = (*built.arguments, *(lock if "lock" in command else ()))
    if command == "lock":
        run("lock", *arguments, "--update")
    assert process(*command.split(), *arguments, modules=modules).code == 0
    loaded = set(modules.read_text().splitlines())
    assert "pallasc.compiler.builds.collect" in loaded
    assert loaded & {"jax", "jaxlib", "numpy", "llvmlite", "google.protobuf"} == set()
