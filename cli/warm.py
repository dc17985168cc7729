"""`pallasc warm`: fill JAX's compilation cache; `pallasc machine`: describe a machine for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec.structs import replace

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.variants import Work, shard_option
from pallasc.cli.output.text import count, echo, echo_bytes, json_text, refusing
from pallasc.errors import ToolError

if TYPE_CHECKING:
    from pallasc.cli.output.reports import Outputs
    from pallasc.compiler.builds.collect import Shard
    from pallasc.compiler.builds.report import Report
    from pallasc.compiler.programs.cache_folder import Verdict


class WarmCommand(Command):
    """`pallasc warm` with its options in groups."""

    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "Select": ("expression", "shard"),
        "Fill": ("cache_dir", "print_env", "verify_dir", "machine_file"),
        "Compile": ("jobs", "timeout_s", "memory_bytes", "results_file", "executor", "keep_going"),
        "Cache": ("store_root", "remote", "remote_write", "frozen"),
        "Output": ("explain", "quiet", "as_json", "junit", "annotations"),
    }


_folder = click.Path(path_type=Path, file_okay=False)


@click.command("warm", cls=WarmCommand, short_help="Compile programs into JAX's cache.")
@options.specs_argument(required=False)
@options.expression_option('Select programs that match EXPR, such as "step and b=8".')
@options.selecting
@shard_option
@options.option("--cache-dir", "DIR", "Fill this folder for JAX.", type=_folder)
@options.flag("--print-env", "Print the environment variables that programs need.")
@options.option(
    "--verify", "DIR", "List hits and misses of a folder.", parameter="verify_dir", type=_folder
)
@options.file_option(
    "--machine", "With --verify: description of the machine to check.", parameter="machine_file"
)
@options.file_option(
    "--autotune-results",
    "Results of XLA's autotuning, from pallasc machine --autotune.",
    parameter="results_file",
)
@options.executor_option
@options.fail_fast_option
@options.frozen_option
@options.explain_option
@options.quiet_option
@options.report_options("problems")
@given.build_options()
def command(
    shard: Shard | None,
    cache_dir: Path | None,
    verify_dir: Path | None,
    machine_file: Path | None,
    results_file: Path | None,
    outputs: Outputs,
    print_env: bool,
    frozen: bool,
    work: Work,
) -> int:
    """Compile the programs of SPECS without a GPU, so that JAX loads them instead of compiling.

    SPECS declare programs: whole JAX functions, each for machines that pallasc machine describes.
    --cache-dir DIR gets the files that JAX itself would write to its cache. An unmodified program
    that starts with the variables of --print-env loads its executables from DIR. Unchanged programs
    are found in pallasc's store. Without --cache-dir, only the store is filled.

    --verify lists each entry of a folder as hit or miss, with the reason, for this machine or for
    the one in the --machine file. With SPECS, it also lowers the programs and shows where each
    changed program differs.

    Examples:
      pallasc warm programs.yaml --cache-dir jax-cache
      pallasc warm --print-env --cache-dir jax-cache
      pallasc warm --verify jax-cache
      pallasc warm programs.yaml --verify jax-cache --machine h100.json
    """
    from pallasc.cli.output.build_text import print_end
    from pallasc.cli.output.outcome import build_run
    from pallasc.compiler.builds.programs import build_programs

    if machine_file is not None and verify_dir is None:
        raise click.UsageError("--machine needs --verify DIR.")
    if print_env:
        if work.specs:
            raise click.UsageError("--print-env compiles nothing: leave SPECS out.")
        echo(_variables(cache_dir or Path("DIR")), nl=False)
        return 0
    if verify_dir is not None:
        verdicts = _verify(work, verify_dir, machine_file)
        return _show(verdicts, as_json=outputs.as_json, quiet=work.quiet)
    if not work.specs:
        raise click.UsageError("Missing argument 'SPECS...'.")
    with outputs.reporting_errors():
        how, store, quiet = replace(work.how, frozen=frozen), work.store, work.quiet
        with work.progress(hits=True) as progress:
            variants, share = work.select_share(
                progress, shard, keep_going=how.keep_going, frozen=frozen, programs=True
            )
            report = build_programs(
                variants, store=store, options=how, on_event=progress, tuned=_results(results_file)
            )
        print_end(report, store, progress.screen, quiet=quiet)
        if cache_dir is not None and any(result.artifact for result in report.results):
            _fill(cache_dir, report, quiet=quiet)
        if outputs.is_requested:
            outputs.write(build_run(report, share=share))
    return report.exit_code


def _results(path: Path | None) -> bytes:
    """Return the content of the file with autotuning results, empty if there is no file.

    Raises:
        SpecError: the file cannot be read.
    """
    if path is None:
        return b""
    with refusing(path, doing="read", hint="Give --autotune-results another path."):
        return path.read_bytes()


def _fill(folder: Path, report: Report, *, quiet: bool) -> None:
    from pallasc.compiler.programs.cache_folder import fill

    made = [(result.variant, result.artifact) for result in report.results]
    ready = [(variant, artifact) for variant, artifact in made if artifact is not None]
    written = fill(folder, ready)
    if not quiet:
        more = f", {count(written, 'file')} written" if written else ", nothing changed"
        echo(f"{folder}: {count(len(ready), 'program')}{more}", err=True)


def _variables(folder: Path) -> str:
    """Return shell commands that set the variables for starting a program."""
    from pallasc.compiler.programs.jax_cache import START_FOLDER, START_SETTINGS

    place = shlex.quote(str(folder.absolute() if folder != Path("DIR") else folder))
    lines = [f"export JAX_COMPILATION_CACHE_DIR={place}"]
    lines += [f"export {name}={value}" for name, value in START_SETTINGS.items()]
    lines.append(f'export PYTHONPATH={place}/{START_FOLDER}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return "\n".join(lines) + "\n"


def _verify(work: Work, folder: Path, machine_file: Path | None) -> list[Verdict]:
    from pallasc.compiler.programs.cache_folder import read_index, verify
    from pallasc.specs.spec import read_machine

    read_index(folder)  # Reports a wrong folder before JAX starts.
    now: dict[str, tuple[str, bytes] | str] = {}
    try:
        now = _lowered_now(work) if work.specs else {}
    except ToolError as error:
        # For example, another version of JAX is installed; `verify` shows this for each entry.
        echo(f"warning: the programs were not lowered, so edits are not found: {error.message}",
             err=True)  # fmt: skip
    if machine_file is not None:
        here = read_machine(machine_file)
    else:
        from pallasc.compiler.programs.describe import describe_machine

        here = describe_machine()
        _warn_of_start(folder)
    return verify(folder, here, now)


def _warn_of_start(folder: Path) -> None:
    """Warn if this process lacks a variable of `--print-env` that changes keys."""
    from pallasc.compiler.programs.jax_cache import START_FOLDER, START_SETTINGS

    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    start = (folder / START_FOLDER).resolve()
    missing = [name for name, value in START_SETTINGS.items() if os.environ.get(name) != value]
    if start not in {Path(path).resolve() for path in paths if path}:
        missing.append("PYTHONPATH")
    if missing:
        echo(
            f"warning: {' and '.join(missing)} not set as --print-env prints: programs that start "
            "in this environment do not find the executables.",
            err=True,
        )


def _lowered_now(work: Work) -> dict[str, tuple[str, bytes] | str]:
    """Lower each program; return its cache key and its module's lines, or why lowering failed."""
    from pallasc.cli.output.text import error_line
    from pallasc.compiler.builds.programs import build_programs
    from pallasc.compiler.programs.cache_folder import program_output

    work = replace(work, quiet=True)
    with work.progress() as progress:
        variants = work.select(progress, keep_going=True, programs=True).variants
        report = build_programs(
            variants, store=work.store, options=work.how, on_event=progress, only_lower=True
        )
    now: dict[str, tuple[str, bytes] | str] = {}
    for result in report.results:
        if result.artifact is None:
            now[result.variant.id] = error_line(result.error) if result.error else result.status
        else:
            output = program_output(result.artifact)
            now[result.variant.id] = output.key, result.artifact.blob(output.lines)
    return now


def _show(verdicts: Sequence[Verdict], *, as_json: bool, quiet: bool) -> int:
    from msgspec import to_builtins

    if as_json:
        echo(json_text({"entries": to_builtins(verdicts)}))
    else:
        for each in verdicts:
            if not (quiet and each.status == "hit"):
                echo(f"{each.status:<4}  {each.program}{each.reason and f'  {each.reason}'}")
    # A miss for another machine is harmless if the program also has a hit.
    started = {_name(each) for each in verdicts if each.status == "hit"}
    return 3 if any(_name(each) not in started for each in verdicts) else 0


def _name(verdict: Verdict) -> str:
    """Return the program without its machine."""
    return verdict.program.rpartition("@")[0]


# ---- pallasc machine

_DUMP = "--xla_gpu_dump_autotune_results_to"


@click.command("machine", cls=Command, short_help="Describe this machine for pallasc warm.")
@options.file_option("--autotune", "Run PROGRAM, and write XLA's autotuning results to FILE.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM...]")
def machine_command(autotune: Path | None, program: tuple[str, ...]) -> None:
    """Print a description of this machine and its GPUs as JSON, for pallasc warm.

    Run this command once on the machine with the GPU, in your program's environment: with the same
    packages, XLA_FLAGS, and JAX_* variables. The description has versions, the driver, the GPUs,
    and everything else that JAX's compilation keys depend on. It has no host names, and no paths
    except those in these variables.

    Without a device, XLA compiles with its default algorithms. --autotune runs your program once
    without JAX's cache, and writes XLA's autotuning results to FILE, for pallasc warm.

    Examples:
      pallasc machine > h100.json
      pallasc machine --autotune h100.textproto -- python train.py > h100.json
    """
    if (autotune is None) != (not program):
        raise click.UsageError("--autotune needs a program: --autotune FILE -- python train.py")
    if autotune is not None:
        _autotune(autotune, program)
    from pallasc.compiler.programs.describe import describe_machine

    echo_bytes(describe_machine().to_json())


def _autotune(results: Path, program: tuple[str, ...]) -> None:
    """Run a program; its standard output goes to standard error.

    Raises:
        ToolError: the program cannot be started or fails, or XLA wrote no results.
    """
    import subprocess

    flags = f"{os.environ.get('XLA_FLAGS', '')} {_DUMP}={results.absolute()}".strip()
    own = {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    with refusing(results, hint="Give --autotune another path."):
        results.unlink(missing_ok=True)
        results.touch()
        results.unlink()
    try:
        done = subprocess.run(program, env={**os.environ, **own}, stdout=2, check=False)
    except OSError as error:
        raise ToolError(f"{program[0]} cannot be started: {error.strerror}.") from error
    if done.returncode:
        raise ToolError(f"{program[0]} failed with exit code {done.returncode}.")
    if not results.exists():
        raise ToolError(
            "XLA wrote no autotuning results.",
            hint="Name a file that ends in .textproto, and a program that compiles on the GPU.",
        )
    if not results.stat().st_size:
        text = f"warning: {results} is empty: XLA had nothing to measure, or autotuning is off"
        echo(text, err=True)
