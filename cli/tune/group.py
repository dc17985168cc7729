"""`pallasc tune`: choose among the variants of a kernel; each command has its own file."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Group
from pallasc.cli.tune import pick, plan, run, show


@click.group(
    "tune",
    cls=Group,
    short_help="Choose the fastest variants of a kernel: plan, measure, pick.",
)
def command() -> None:
    """Choose the fastest variants of a kernel.

    `tune` in the spec lists the parameters to tune; they must affect only the speed. The result is
    a table: a file to review and commit, which builds and bundles use.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune run job.pallasc -o results.jsonl
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune show kernels.yaml
    """


for _command in (plan.command, run.command, pick.command, show.command):
    command.add_command(_command)
