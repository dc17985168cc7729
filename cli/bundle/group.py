"""`pallasc bundle`: many compiled variants in one file."""

from __future__ import annotations

import click

from pallasc.cli.arguments.command import Group
from pallasc.cli.bundle import show, verify, write


@click.group(
    "bundle",
    cls=Group,
    short_help="Pack compiled variants into one file; sign and verify it.",
)
def command() -> None:
    """Pack compiled variants into one file to ship.

    A bundle contains cubins and launch plans, compressed, deduplicated, and checksummed. The same
    variants give the same bytes, regardless of the build order. Nothing in a bundle is executed
    before a launch, so it is safe to inspect a bundle from an untrusted source.

    Examples:
      pallasc bundle create specs/ -o kernels.pallasc
      pallasc bundle show kernels.pallasc
      pallasc bundle sign kernels.pallasc --key release.key
      pallasc bundle verify kernels.pallasc --key release.key.pub --lock pallasc.lock
      pallasc bundle verify kernels.pallasc --target sm_90a --target sm_100a --budget 2MiB
    """


for _command in (
    write.create_command,
    show.command,
    write.export_command,
    write.merge_command,
    verify.keygen_command,
    verify.sign_command,
    verify.verify_command,
):
    command.add_command(_command)
