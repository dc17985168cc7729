"""The options of the remote store: `--remote`, `--no-remote`, `--remote-write`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.arguments.options import together

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings

_NO_REMOTE, _WRITE = "pallasc.no_remote", "pallasc.remote_write"
"""Where the context of a command holds what the eager options say."""


def _noted(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    ctx.meta[_NO_REMOTE if param.name == "no_remote" else _WRITE] = value


def _settings(ctx: click.Context, _: click.Parameter, url: str | None) -> RemoteSettings | None:
    """Return the remote store, None if there is none.

    Raises:
        SpecError: a setting is wrong.
        click.UsageError: two options contradict each other.
    """
    if ctx.resilient_parsing:  # while a shell completes a command
        return None
    write = ctx.meta.get(_WRITE)
    if ctx.meta.get(_NO_REMOTE):
        if url is not None or write:
            other = "--remote" if url is not None else "--remote-write"
            raise click.UsageError(f"{other} and --no-remote contradict each other.")
        return None
    from pallasc.compiler.builds.remote_settings import remote_settings

    settings = remote_settings(os.environ, url=url, write=write)
    if settings is None and write:
        raise click.UsageError(
            "--remote-write needs a remote store: name it with --remote or PALLASC_REMOTE."
        )
    return settings


remote_options = together(
    click.option(
        "--remote",
        callback=_settings,
        metavar="URL",
        help="Take what the store does not have from this remote store: s3://, gs://, az://, "
        "https://, file:// or bazel+https://; PALLASC_REMOTE, or remote of [tool.pallasc], when "
        "left out.",
    ),
    click.option(
        "--no-remote",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_noted,
        help="Use no remote store.",
    ),
    click.option(
        "--remote-write/--no-remote-write",
        default=None,
        is_eager=True,
        expose_value=False,
        callback=_noted,
        help="Send what is compiled to the remote store, or only read; PALLASC_REMOTE_WRITE, or "
        "remote-write of [tool.pallasc], when left out.",
    ),
)
