"""`pallasc tune`: choose among the variants of a kernel; each command has its own file."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Group
from pallasc.cli.tune import pick, plan, run, show


@click.group(
    "tune",
    cls=Group,
    short_help="Choose between the variants of a kernel: plan, measure, pick.",
)
def command() -> None:
    """Choose between the variants of a kernel that differ only in speed.

    `tune` in the spec names the parameters that vary. The choice is a table: a file to review and
    commit, which builds and bundles follow.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune run job.pallasc -o results.jsonl
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune show kernels.yaml
    """


for _command in (plan.command, run.command, pick.command, show.command):
    command.add_command(_command)
