"""The root: finding commands, help, exit codes, errors as text, interrupts, closed pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import pallasc
from pallasc import errors
from pallasc.cli.main import COMMANDS, root
from pallasc.errors import Location, PallascError

RunCommand = Callable[..., Any]

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


def test_version_prints_name_and_version(run: RunCommand) -> None:
    result = run("--version")
    assert (result.code, result.out, result.err) == (0, f"pallasc {pallasc.__version__}\n", "")


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: RunCommand, command: str, option: str) -> None:
    result = run(command, option)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: pallasc {command} ")
    assert f"\n  Examples:\n    pallasc {command}" in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_what_it_does(command: str) -> None:
    found = root.get_command(click.Context(root), command)
    assert found is not None
    options = [param for param in found.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_the_help_of_build_fits_on_60_lines(run: RunCommand) -> None:
    assert len(run("build", "--help").out.splitlines()) <= 60


def test_help_lists_the_commands_in_the_order_of_their_use(run: RunCommand) -> None:
    listed = run("--help").out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(COMMANDS)


@pytest.mark.parametrize("group", [[], ["bundle"], ["cache"]])
def test_no_command_shows_the_help_as_a_usage_mistake(run: RunCommand, group: list[str]) -> None:
    result = run(*group)
    assert (result.code, result.out) == (2, "")
    assert result.err == run(*group, "--help").out
    assert result.err.startswith(f"Usage: {' '.join(['pallasc', *group])} ")


def test_an_unknown_command_is_answered_with_the_nearest_one(run: RunCommand) -> None:
    result = run("biuld")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "error: no such command 'biuld'. Did you mean 'build'?\n  See pallasc --help.\n"
    )


def test_a_missing_argument_names_the_command_whose_help_to_read(run: RunCommand) -> None:
    result = run("build")
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("\n  See pallasc build --help.\n")
    assert result.err.startswith("error: Missing argument")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "k.yaml", "--profile"], "Option '--profile' requires an argument."),
        (["run", "k.yaml", "--input", "x"], "--input 'x' is not NAME=FILE."),
        (["list", "k.pallasc", "--target"], "Option '--target' requires an argument."),
    ],
)
def test_a_mistake_in_an_option_names_the_command_whose_help_to_read(
    run: RunCommand, arguments: list[str], text: str
) -> None:
    command = " ".join(word for word in arguments[:-1] if word.isalpha())
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err == f"error: {text}\n  See pallasc {command} --help.\n"


def test_an_unknown_option_is_a_usage_mistake(run: RunCommand) -> None:
    result = run("list", "kernels.yaml", "--jsno")
    assert result.code == 2
    assert "--jsno" in result.err
    assert "--json" in result.err


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_a_wrong_number_of_jobs_is_a_usage_mistake(run: RunCommand, jobs: str) -> None:
    result = run("build", "kernels.yaml", "--jobs", jobs)
    assert result.code == 2
    assert "--jobs" in result.err


@pytest.mark.parametrize(("name", "code"), EXIT_CODES.items())
def test_every_error_ends_with_its_exit_code_and_its_text(
    run: RunCommand, failing: Callable[[BaseException], None], name: str, code: int
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
    run: RunCommand, failing: Callable[[BaseException], None], before: bool
) -> None:
    failing(errors.SpecError("it broke."))
    arguments = ["--traceback", "list", "k.yaml"] if before else ["list", "k.yaml", "--traceback"]
    result = run(*arguments)
    assert result.code == 2
    assert result.err.startswith("Traceback (most recent call last):\n")
    assert result.err.endswith("\nerror: it broke.\n")


def test_a_mistake_of_the_user_shows_no_traceback(run: RunCommand, tmp_path: Path) -> None:
    result = run("list", tmp_path / "missing.yaml")
    assert result.code == 2
    assert result.err == f"error: {tmp_path}/missing.yaml: there is no such file.\n"


def test_an_interrupt_ends_with_130(
    run: RunCommand, failing: Callable[[BaseException], None]
) -> None:
    failing(KeyboardInterrupt())
    result = run("list", "kernels.yaml")
    assert (result.code, result.out, result.err.strip()) == (130, "", "interrupted")


def test_a_closed_pipe_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-P", "-m", "pallasc", "targets"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("arguments", [["targets"], ["targets", "--json"], ["--help"]])
def test_a_full_disk_ends_with_one_sentence(
    arguments: list[str], variables: dict[str, str]
) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-P", "-m", "pallasc", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
            check=False,
        )
    assert (result.returncode, result.stderr) == (
        74,
        "error: the output cannot be written: No space left on device.\n",
    )


@pytest.mark.parametrize(("arguments", "code"), [(["biuld"], 2), (["targets"], 0)])
def test_an_exit_code_is_kept_where_nothing_can_be_said(arguments: list[str], code: int) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-P", "-m", "pallasc", *arguments]
        result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=full, check=False)
    assert result.returncode == code


def without(stream: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process that has a standard stream closed."""
    command = [sys.executable, "-P", "-m", "pallasc", *map(str, arguments)]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {stream}', "sh", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [["targets"], ["targets", "--json"], ["--version"]])
def test_a_closed_standard_output_loses_what_was_to_be_printed(arguments: list[str]) -> None:
    result = without(">&-", *arguments)
    assert (result.returncode, result.stderr) == (
        74,
        "error: the output cannot be written: Bad file descriptor.\n",
    )


def test_a_build_that_prints_nothing_needs_no_standard_output(built: Any) -> None:
    result = without(">&-", "build", *built.arguments)
    assert result.returncode == 0
    assert "[2/2] hit " in result.stderr
    assert "Traceback" not in result.stderr
    assert without(">&-", "build", *built.arguments, "--json").returncode == 74


def test_without_a_standard_error_output_data_is_printed_all_the_same(built: Any) -> None:
    result = without("2>&-", "build", *built.arguments, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["totals"]["hit"] == 2


@pytest.mark.parametrize(
    ("closed", "arguments", "code"),
    [
        ("2>&-", ["biuld"], 2),
        (">&- 2>&-", ["targets"], 74),
        ("<&- >&- 2>&-", ["biuld"], 2),
        ("<&-", ["targets"], 0),
    ],
)
def test_an_exit_code_is_kept_whatever_is_closed(
    closed: str, arguments: list[str], code: int
) -> None:
    assert without(closed, *arguments).returncode == code


@pytest.mark.parametrize("error", [OSError(28, "full"), OSError(2, "missing", "a file")])
def test_an_error_that_is_not_of_the_output_is_not_hidden(
    run: RunCommand, failing: Callable[[BaseException], None], error: OSError
) -> None:
    failing(error)
    with pytest.raises(OSError, match=str(error.strerror)):
        run("list", "kernels.yaml")


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["build", "--help"]])
def test_talk_about_itself_imports_neither_yaml_nor_sqlite(
    process: RunCommand, tmp_path: Path, arguments: list[str]
) -> None:
    process(*arguments, modules=tmp_path / "modules")
    loaded = set((tmp_path / "modules").read_text().splitlines())
    assert "click" in loaded
    assert loaded & {"yaml", "sqlite3", "jax", "numpy", "pallasc.cache.store"} == set()


def test_a_command_imports_no_other_command(process: RunCommand, tmp_path: Path) -> None:
    process("targets", modules=tmp_path / "modules")
    loaded = set((tmp_path / "modules").read_text().splitlines())
    assert {f"pallasc.cli.{name}" for name in COMMANDS} & loaded == {"pallasc.cli.list"}


@pytest.mark.parametrize("command", ["list", "build", "inspect"])
def test_no_command_imports_jax_for_what_is_in_the_store(
    process: RunCommand, built: Any, tmp_path: Path, command: str
) -> None:
    assert process(command, *built.arguments, modules=tmp_path / "modules").code == 0
    loaded = set((tmp_path / "modules").read_text().splitlines())
    assert "pallasc.compiler.builds.collect" in loaded
    assert loaded & {"jax", "jaxlib", "numpy", "llvmlite", "google.protobuf"} == set()
