"""Write the generated pages of docs/ again, and fail where one was not current.

With --check nothing is written, with --write nothing fails. A page of results is not current either
where the kernels in tests/coverage are others than those of the results.

* `cli.md`: the help of every command, and the exit codes with the errors that lead to them
* `json.md`: what every command prints with `--json`
* `coverage.md`: what of Pallas compiles, from the results in tests/coverage
* `opcodes.md`: the PTX instructions that the emulator executes
* `targets.md`: the models that can be compiled for
* `spec.schema.json`: the JSON schema of spec files
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from pallasc import errors
from pallasc.cli.arguments.command import Command
from pallasc.cli.list import COLUMNS, target_rows
from pallasc.cli.main import COMMANDS, root
from pallasc.cli.output.exits import CLOSED_PIPE, INTERRUPTED, OUTPUT_LOST
from pallasc.errors import PallascError
from pallasc.specs.gpus import MODELS
from pallasc.specs.loading.schema import json_schema_text

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py: run `make docs` after a change. -->"
WIDTH = 100

sys.path.insert(0, str(DOCS))

import coverage_page  # noqa: E402 - it lies beside this file
import opcodes_page  # noqa: E402 - it lies beside this file


def cli_page() -> str:
    """Return the reference of the command line."""
    helps = [
        f"{'#' * len(name.split())} {name}\n\n{_help(name, command)}"
        for name, command in _commands()
    ]
    parts = ["# Command line", NOTE, _help("pallasc", root), *helps, _exit_codes()]
    return "\n\n".join(parts) + "\n"


def json_page() -> str:
    """Return the reference of the JSON that commands print."""
    intro = (
        "Each object has `schema`, which is 1. Fields are not removed, and do not change their "
        "meaning, without a new schema number. New fields may be added."
    )
    texts = [
        f"## {name}\n\n```text\n{command.json_text}\n```"
        for name, command in _commands()
        if isinstance(command, Command) and command.json_text
    ]
    return "\n\n".join(["# JSON output", NOTE, intro, *texts]) + "\n"


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and subcommand with its full name."""
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        if command is None:
            raise SystemExit(f"docs/generate.py: the command {name} does not exist")
        yield f"pallasc {name}", command
        if isinstance(command, click.Group):
            for inner, subcommand in command.commands.items():
                yield f"pallasc {name} {inner}", subcommand


def _help(name: str, command: click.Command) -> str:
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    names = ["-h", "--help"]
    context = click.Context(command, info_name=name, help_option_names=names, **settings)
    return f"```text\n{command.get_help(context).strip()}\n```"


def _exit_codes() -> str:
    lines = [
        ["0", "Success.", ""],
        *([str(error.exit_code), _first_line(error), f"`{error.__name__}`"] for error in _errors()),
        ["2", "The command line is invalid.", ""],
        ["4", "No level of `pallasc check` could check any variant.", ""],
        [str(OUTPUT_LOST), "The output cannot be written, e.g. because the disk is full.", ""],
        [str(INTERRUPTED), "Interrupted with Ctrl-C.", ""],
        [str(CLOSED_PIPE), "The reader of standard output, such as `head`, closed it.", ""],
    ]
    head = ["exit code", "when", "error in Python"]
    return "## Exit codes\n\n" + _table(head, sorted(lines, key=lambda line: int(line[0])))


def _errors() -> list[type[PallascError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [kind for kind in found if issubclass(kind, PallascError) and kind is not PallascError]


def _first_line(kind: type[PallascError]) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def targets_page() -> str:
    """Return the table of models."""
    text = (
        "A star marks the model that the bare name of an architecture stands for. "
        "`pallasc targets --json` prints all figures; a spec adds models of its own under "
        "`models`. DEVICE is what a driver calls the model; where drivers differ, `--json` has "
        "all names.\n\n"
        "Mosaic GPU compiles for accelerated architectures only, from sm_90a on: such code runs on "
        "exactly that compute capability. A DGX Spark (GB10, 12.1) needs sm_121a and an RTX PRO "
        "6000 (12.0) sm_120a; XLA and ptxas know the family target sm_120f, Mosaic GPU does not."
    )
    return (
        "\n\n".join(["# Targets", NOTE, text, _table(COLUMNS, target_rows(MODELS.values()))]) + "\n"
    )


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, body)]
    return "\n".join(
        f"| {' | '.join(cell.replace('*', chr(92) + '*') for cell in line)} |" for line in lines
    )


def pages() -> dict[str, str]:
    """Return every generated file of docs/ with its text."""
    return {
        "cli.md": cli_page(),
        "json.md": json_page(),
        "coverage.md": coverage_page.coverage_page(NOTE),
        "opcodes.md": opcodes_page.opcodes_page(NOTE),
        "spec.schema.json": json_schema_text(),
        "targets.md": targets_page(),
    }


def stale(folder: Path) -> list[str]:
    """Return the names of the generated files in a folder that are missing or not current."""
    return [
        name
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def declared() -> dict[str, list[str]]:
    """Return the architectures that each kernel in tests/coverage is declared for."""
    command = [sys.executable, "-P", str(coverage_page.RESULTS / "declared.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def unrecorded(kernels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return in which results a kernel is missing, too many, or there for other architectures."""
    lines = []
    for version, results in coverage_page.all_results().items():
        recorded = {name: sorted(case["targets"]) for name, case in results["cases"].items()}
        lines += [
            f"the results of JAX {version} are not those of the kernel {name}"
            for name in sorted({*recorded, *kernels})
            if recorded.get(name) != sorted(kernels.get(name, ()))
        ]
    return lines


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them."""
    if list(arguments) not in ([], ["--check"], ["--write"]):
        print("usage: generate.py [--check | --write]", file=sys.stderr)
        return 2
    checks, writes = (f"--{name}" in arguments for name in ("check", "write"))
    wrong = stale(DOCS)
    for name in wrong:
        if not checks:
            (DOCS / name).write_text(pages()[name], encoding="utf-8")
        done = "run `make docs`" if checks else "it is written again, look at it"
        print(f"docs/{name} was not current: {done}.", file=sys.stderr)
    lines = [] if writes else unrecorded(declared())
    for line in lines:
        print(f"tests/coverage: {line}: run `make coverage`.", file=sys.stderr)
    return 1 if (wrong and not writes) or lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
