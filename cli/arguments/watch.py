"""The option `--watch`, and which others it cannot stand beside."""

from __future__ import annotations

import click
from click.core import ParameterSource

watch_option = click.option(
    "--watch",
    is_flag=True,
    help="Compile again after each change of a file, until Ctrl-C.",
)

_NOTHING = "compiles nothing"
_REPORT = "writes the report of a whole build, and a watch has no end"
_REFUSED = {
    "frozen": _NOTHING,
    "dry_run": _NOTHING,
    "locked": "fails where something differs from the lock file, as every edit does",
    "lock": "names the lock file of --frozen and --locked",
    "shard": "builds one of the shares of several machines, and a watch builds for one user",
    "reproduce": "compiles everything twice more; run it when the edits are done",
    "executor": "compiles on a cluster, and the processes of a watch are on this machine",
    "junit": _REPORT,
    "annotations": _REPORT,
    "as_json": _REPORT,
}
"""What each option does that makes no sense in a watch, by its parameter."""


def refuse_unwatchable(ctx: click.Context) -> None:
    """Check that no option makes a watch senseless.

    What the environment says of a cluster is not refused: a watch compiles here.

    Raises:
        click.UsageError: one does.
    """
    for parameter in ctx.command.params:
        why = _REFUSED.get(parameter.name or "")
        source = ctx.get_parameter_source(parameter.name or "")
        if why and source is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--watch cannot be used with {parameter.opts[0]}, which {why}.")
