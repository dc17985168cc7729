"""`pallasc bundle`: many compiled variants in one file; each command has a file of its own."""

from __future__ import annotations

import click

from pallasc.cli import (
    bundle_audit,
    bundle_create,
    bundle_extract,
    bundle_list,
    bundle_merge,
    bundle_show,
    bundle_sign,
    bundle_verify,
)
from pallasc.cli.layout import Group
from pallasc.cli.options import traceback_option
from pallasc.cli.output import echo


@click.group(
    "bundle",
    cls=Group,
    invoke_without_command=True,
    short_help="Pack compiled variants into one file; sign, verify and audit it.",
)
@traceback_option()
@click.pass_context
def command(ctx: click.Context) -> None:
    """Pack compiled variants into one file that travels.

    A bundle holds cubins and launch plans, compressed and each once, with a checksum over every
    part. The same variants give the same bytes, in whatever order they were built. Nothing in a
    bundle is executed before it is launched, so one from a stranger can be looked at.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle show kernels.pallasc
      pallasc bundle sign kernels.pallasc --key release.key
      pallasc bundle verify kernels.pallasc --key release.key.pub --lock pallasc.lock
      pallasc bundle audit kernels.pallasc --target sm_90a --target sm_100a --budget 2MiB
    """
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


for _command in (
    bundle_create.command,
    bundle_list.command,
    bundle_show.command,
    bundle_extract.command,
    bundle_merge.command,
    bundle_sign.keygen_command,
    bundle_sign.sign_command,
    bundle_verify.command,
    bundle_audit.command,
):
    command.add_command(_command)
