"""`pallasc machine`: describe this machine for `pallasc warm`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import file_option
from pallasc.cli.output.text import echo, echo_bytes
from pallasc.errors import ToolError

_DUMP = "--xla_gpu_dump_autotune_results_to"


@click.command("machine", cls=Command, short_help="Describe this machine for pallasc warm.")
@file_option("--autotune", "Run PROGRAM, and write XLA's autotuning results to FILE.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROGRAM...]")
def command(autotune: Path | None, program: tuple[str, ...]) -> None:
    """Print a description of this machine and its GPUs as JSON, for pallasc warm.

    Run it once where the GPU is, in the environment of your program: with the same packages, and
    the same XLA_FLAGS and JAX_* variables. It has versions, the driver, the GPUs, and everything
    else that JAX's compilation keys depend on. It has no host names, and only the paths that are in
    these variables.

    Without a device, XLA compiles with its default algorithms. --autotune runs your program once
    without JAX's cache, and writes the algorithms that XLA measured to a file, for pallasc warm
    --autotune-results.

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
        ToolError: it cannot be started, fails, or XLA wrote no results.
    """
    flags = f"{os.environ.get('XLA_FLAGS', '')} {_DUMP}={results.absolute()}".strip()
    own = {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    try:
        results.unlink(missing_ok=True)
        results.touch()
        results.unlink()
    except OSError as error:
        raise ToolError(f"{results} cannot be written: {error.strerror}.") from error
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
