"""Options of builds: the remote store, shards, watching."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from pallasc.cli.arguments.options import together
from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.screen import duration
from pallasc.errors import SpecError

if TYPE_CHECKING:
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.compiler.builds.shard import Shard, Share
    from pallasc.specs.spec import Variant


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


def _shard(ctx: click.Context, _: click.Parameter, text: str | None) -> Shard | None:
    if text is None or ctx.resilient_parsing:
        return None
    from pallasc.compiler.builds.shard import parse_shard

    return parse_shard(text)


shard_option = click.option(
    "--shard",
    callback=_shard,
    metavar="K/N",
    help="Take shard K of N, such as 3/8; N jobs with one lock take each variant once.",
)


def take_share(
    shard: Shard | None,
    variants: Sequence[Variant],
    lock: Path | None,
    say: Callable[[str], None],
) -> Share | None:
    """Return this job's share of the variants and `say` how large it is; None without `--shard`.

    Raises:
        SpecError: the lock file cannot be read.
    """
    if shard is None:
        return None
    from pallasc.compiler.builds.shard import share_of

    share = share_of(shard, variants, lock)
    line = f"shard {shard}: {len(share.variants):,} of {count(len(variants), 'variant')}"
    if share.expected_s is None:
        line += ", divided without costs: no lock file has any"
    elif share.variants:
        line += f", about {duration(share.expected_s)} of compiling by {share.costs_from}"
    say(line)
    return share


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
