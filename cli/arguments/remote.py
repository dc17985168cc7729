"""The options of the remote store: `--remote` and `--remote-write`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.options import together
from pallasc.errors import SpecError

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings

_TIMEOUT_S = 60.0
_WRITE, _TIMEOUT = "pallasc.remote_write", "pallasc.remote_timeout"
"""Where the context of a command holds what the eager options say."""
_NONE = "none"
"""What `--remote` is given to use no remote store."""


def _noted(ctx: click.Context, _: click.Parameter, value: bool | None) -> None:
    ctx.meta[_WRITE] = value


def _settings(ctx: click.Context, _: click.Parameter, url: str | None) -> RemoteSettings | None:
    """Return the remote store, None if there is none.

    Raises:
        SpecError: a setting is wrong.
        click.UsageError: there is no remote store to write to.
    """
    if ctx.resilient_parsing:  # while a shell completes a command
        return None
    write = ctx.meta.get(_WRITE)
    from pallasc.compiler.builds.options import remote_settings

    settings = None if url == _NONE else remote_settings(os.environ, url=url, write=write)
    if settings is None and write:
        raise click.UsageError(
            "--remote-write needs a remote store: name it with --remote or PALLASC_REMOTE."
        )
    return settings


def _named(ctx: click.Context, _: click.Parameter, url: str | None) -> RemoteSettings | None:
    if ctx.resilient_parsing:
        return None
    return required_settings(url, ctx.meta.get(_TIMEOUT, _TIMEOUT_S))


def required_settings(url: str | None, timeout_s: float = _TIMEOUT_S) -> RemoteSettings:
    """Return the remote store of a command about it.

    Raises:
        SpecError: there is none, or a setting is wrong.
    """
    from pallasc.compiler.builds.options import remote_settings

    settings = remote_settings(os.environ, url=url, timeout_s=timeout_s)
    if settings is None:
        raise SpecError(
            "no remote store is named.",
            hint="Name it with --remote URL, PALLASC_REMOTE, or remote under [tool.pallasc] in "
            "pyproject.toml.",
        )
    return settings


def _timeout(ctx: click.Context, _: click.Parameter, seconds: float) -> None:
    ctx.meta[_TIMEOUT] = seconds


remote_option = together(
    click.option(
        "--remote",
        "settings",
        callback=_named,
        metavar="URL",
        help="The remote store; PALLASC_REMOTE, or remote of [tool.pallasc], when left out.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True, max=86_400),
        is_eager=True,
        expose_value=False,
        callback=_timeout,
        default=_TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long one request may take.",
    ),
)
"""The options of commands about a remote store, which is required; builds have `remote_options`."""

every_option = click.option(
    "--all", "every", is_flag=True, help="Take the entries of all toolchains, not only of this one."
)

remote_options = together(
    click.option(
        "--remote",
        callback=_settings,
        metavar="URL",
        help="Take what the store lacks from this remote store, or from no remote store for "
        '"none".',
    ),
    click.option(
        "--remote-write/--no-remote-write",
        default=None,
        is_eager=True,
        expose_value=False,
        callback=_noted,
        help="Send what is compiled to the remote store, or only read.",
    ),
)
