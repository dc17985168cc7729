"""Write the stale generated pages of docs/ again, and fail if there were any.

`--check` writes nothing. `--write` does not fail. Without `--write`, the command also fails if the
results recorded in tests/coverage do not match the kernels there.

* `cli.md`: the help of every command, and the exit codes with their errors
* `json.md`, `json.schema.json`: the fields of `--json`, from `json.yaml`
* `coverage.md`: the parts of Pallas that compile, from tests/coverage
* `targets.md`: the GPU models
* `plans.md`: the steps of launch plans, and who executes them
* `spec.schema.json`: the JSON schema of spec files
"""

from __future__ import annotations

import collections
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import click

from pallasc import errors
from pallasc.cli.list import COLUMNS, target_rows
from pallasc.cli.main import CLOSED_PIPE, COMMANDS, INTERRUPTED, OUTPUT_LOST, root
from pallasc.errors import PallascError
from pallasc.runtime.calls import plain
from pallasc.specs.artifacts.plan import STEP_KINDS, Bytes, Launch, Peers, Pointer, Step
from pallasc.specs.gpus import MODELS

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Written by docs/generate.py: run `make docs` after a change. -->"
WIDTH = 100
SHARED_BY = 2
"""Options that at least this many commands have are in the table of shared options."""

_SHARED = """\
Each command lists its shared options, and describes its other options. All have `--help`."""

sys.path.insert(0, str(DOCS))

import coverage_page  # noqa: E402 - modules in this folder
import json_page  # noqa: E402
import spec_schema  # noqa: E402


def cli_page() -> str:
    """Return the reference of the command line."""
    shared = _shared_options()
    helps = [
        f"{'#' * len(name.split())} {name}\n\n{_help(name, command, shared)}"
        for name, command in _commands()
    ]
    parts = ["# Command line", NOTE, _help("pallasc", root), _exit_codes()]
    parts += ["## Shared options", _SHARED, _options(shared.values()), *helps]
    return "\n\n".join(parts) + "\n"


def _shared_options() -> dict[str, tuple[str, str]]:
    found: dict[str, collections.Counter[tuple[str, str]]] = {}
    for _, command in _commands():
        for option in _visible(command):
            found.setdefault(option.opts[-1], collections.Counter())[_record(option)] += 1
    most = {name: counts.most_common(1)[0] for name, counts in found.items()}
    return {name: record for name, (record, count) in most.items() if count >= SHARED_BY}


def _visible(command: click.Command) -> list[click.Option]:
    options = [option for option in command.params if isinstance(option, click.Option)]
    return [option for option in options if not option.hidden]


def _record(option: click.Option) -> tuple[str, str]:
    names, text = option.get_help_record(click.Context(root)) or ("", "")
    return names, "Print the result as JSON; see docs/json.md." if names == "--json" else text


def _options(records: Iterable[tuple[str, str]]) -> str:
    formatter = click.HelpFormatter(width=WIDTH, max_width=WIDTH)
    formatter.write_dl(list(records))
    return f"```text\n{formatter.getvalue().rstrip()}\n```"


def _commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = root.get_command(click.Context(root), name)
        if command is None:
            raise SystemExit(f"docs/generate.py: the command {name} does not exist")
        yield f"pallasc {name}", command
        if isinstance(command, click.Group):
            for inner, subcommand in command.commands.items():
                yield f"pallasc {name} {inner}", subcommand


def _help(
    name: str, command: click.Command, shared: Mapping[str, tuple[str, str]] | None = None
) -> str:
    settings = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    names = ["-h", "--help"] if shared is None else []
    context = click.Context(command, info_name=name, help_option_names=names, **settings)
    known = shared or {}
    left_out = [o for o in _visible(command) if known.get(o.opts[-1]) == _record(o)]
    for option in left_out:
        option.hidden = True
    try:
        text = command.get_help(context).strip()
    finally:
        for option in left_out:
            option.hidden = False
    also = ", ".join(f"`{option.opts[-1]}`" for option in left_out)
    return f"```text\n{text}\n```" + (
        f"\n\n[Shared options](#shared-options): {also}" if also else ""
    )


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
    """Return the GPU models."""
    text = (
        "A target that is an architecture means its model with a star. DEVICE is the name that "
        "the driver reports. `pallasc targets --json` has all figures and names. A spec can add "
        "models (`docs/spec.md`).\n\n"
        "From sm_90a on, Mosaic GPU compiles only for accelerated architectures, whose code runs "
        "on exactly that compute capability: a DGX Spark (GB10, 12.1) needs sm_121a, and an RTX "
        "PRO 6000 (12.0) sm_120a. Mosaic GPU has no "
        "family targets, such as sm_120f. The CPUs of GH200, GB200, GB300, Thor, and DGX Spark are "
        "aarch64, on which pallasc is untested; bundles do not depend on the CPU."
    )
    return (
        "\n\n".join(["# Targets", NOTE, text, _table(COLUMNS, target_rows(MODELS.values()))]) + "\n"
    )


def plans_page() -> str:
    """Return the steps of launch plans."""
    text = (
        "A launch plan has the buffers, the arrays, and the steps of a compiled function. `pallasc "
        "inspect --plan` prints it. Three executors run plans: the C library, which Python, JAX, "
        "and C programs launch through; cuda-python, on machines without the library; and the "
        "emulator. Both launchers call the driver functions in the table, and reject plans for "
        "several devices, whose kernels take a table of peers."
    )
    in_c = (DOCS.parent / "runtime" / "native" / "launch.c").read_text()
    steps = []
    for name, step in zip(STEP_KINDS, get_args(Step), strict=True):
        if step is Launch:
            functions = re.findall(r'"(cuLaunch\w+)"', inspect.getsource(plain))
            emulated = "runs the PTX of the kernel"
        else:
            functions = re.findall(r'"(cu\w+)"', inspect.getsource(step.driver_call))
            emulated = "changes its buffers on the host"
        launched = [each for each in functions if f"driver.{each}(" in in_c]
        steps.append([f"`{name}`", _fields(step), _code(launched), _code(functions), emulated])
    parameters = [
        [f"`{kind.__name__.lower()}`", _fields(kind), launched, launched, "yes"]
        for kind, launched in ((Pointer, "yes"), (Bytes, "yes"), (Peers, "no"))
    ]
    who = ["fields", "C library", "cuda-python", "emulator"]
    parts = ["# Launch plans", NOTE, text, "## Steps", _table(["step", *who], steps)]
    parts += ["## Parameters of a launch", _table(["parameter", *who], parameters)]
    return "\n\n".join(parts) + "\n"


def _fields(kind: type) -> str:
    return _code(kind.__struct_fields__)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *map(list, body)]
    return "\n".join(
        f"| {' | '.join(cell.replace('*', chr(92) + '*') for cell in line)} |" for line in lines
    )


def pages() -> dict[str, str]:
    """Return the text of every page by file."""
    return {
        "cli.md": cli_page(),
        "json.md": json_page.json_page(NOTE),
        "json.schema.json": json_page.json_schema_text(),
        "coverage.md": coverage_page.coverage_page(NOTE),
        "spec.schema.json": spec_schema.json_schema_text(),
        "plans.md": plans_page(),
        "targets.md": targets_page(),
    }


def stale(folder: Path) -> list[str]:
    """Return the files in a folder that are not current."""
    return [
        name
        for name, text in pages().items()
        if not (folder / name).is_file() or (folder / name).read_text(encoding="utf-8") != text
    ]


def declared() -> dict[str, list[str]]:
    """Return the architectures of each kernel in tests/coverage."""
    command = [sys.executable, "-P", str(coverage_page.RESULTS / "declared.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def unrecorded(kernels: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each kernel whose recorded architectures are not the declared ones."""
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
        done = "run `make docs`" if checks else "it is written again; look at the changes"
        print(f"docs/{name} was not current: {done}.", file=sys.stderr)
    lines = [] if writes else unrecorded(declared())
    for line in lines:
        print(f"tests/coverage: {line}: run `make coverage`.", file=sys.stderr)
    return 1 if (wrong and not writes) or lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
