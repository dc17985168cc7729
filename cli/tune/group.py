"""`pallasc tune`: which variant of a kernel is used where; each command has a file of its own."""

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

    What is varied, and by what, stands in the spec as `tune`. The choice is a table: a file to
    review and to commit, which builds and bundles follow.

    Examples:
      pallasc tune plan kernels.yaml -o job.pallasc
      pallasc tune run job.pallasc -o results.jsonl
      pallasc tune pick results.jsonl --specs kernels.yaml
      pallasc tune show kernels.yaml
    """


for _command in (plan.command, run.command, pick.command, show.command):
    command.add_command(_command)
