"""`pallasc machine`: describe this machine for `pallasc warm`."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Command


@click.command("machine", cls=Command, short_help="Describe this machine for pallasc warm.")
def command() -> None:
    """Print a description of this machine and its GPUs as JSON, for pallasc warm.

    Run it once where the GPU is, in the environment of your program: with the same packages, and
    the same XLA_FLAGS and JAX_* variables. It has versions, the driver, the GPUs, and everything
    else that JAX's compilation keys depend on, but no host names and no paths.

    Examples:
      pallasc machine > h100.json
      XLA_FLAGS=--xla_gpu_enable_triton_gemm=false pallasc machine > h100.json
    """
    from pallasc.cli.output.text import echo_bytes
    from pallasc.compiler.programs.describe import describe_machine

    echo_bytes(describe_machine().to_json())
