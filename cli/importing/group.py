"""`pallasc import`: specs and tables from other people's tables; each command has its own file."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Group
from pallasc.cli.importing import tokamax


@click.group("import", cls=Group, short_help="Write specs from other people's tables.")
def command() -> None:
    """Write specs and tables from the tables of tuned kernels that other projects keep.

    What is written are files to read, review and commit; nothing is compiled.

    Examples:
      pallasc import tokamax -o tokamax/
      pallasc import tokamax --device h100
    """


command.add_command(tokamax.command)
