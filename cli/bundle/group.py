"""`pallasc bundle`: many compiled variants in one file; each command has a file of its own."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Group
from pallasc.cli.bundle import create, export, merge, show, sign, verify


@click.group(
    "bundle",
    cls=Group,
    short_help="Pack compiled variants into one file; sign and verify it.",
)
def command() -> None:
    """Pack compiled variants into one file to ship.

    A bundle holds cubins and launch plans, compressed and each once, with a checksum over every
    part. The same variants give the same bytes, in whatever order they were built. Nothing in a
    bundle is executed before a launch, so a bundle from a stranger can be inspected safely.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle show kernels.pallasc
      pallasc bundle sign kernels.pallasc --key release.key
      pallasc bundle verify kernels.pallasc --key release.key.pub --lock pallasc.lock
      pallasc bundle verify kernels.pallasc --target sm_90a --target sm_100a --budget 2MiB
    """


for _command in (
    create.command,
    show.command,
    export.command,
    merge.command,
    sign.keygen_command,
    sign.sign_command,
    verify.command,
):
    command.add_command(_command)
