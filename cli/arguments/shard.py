"""The options `--shard` and `--costs`, and the variants that they leave to this job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.options import file_option, together
from pallasc.cli.terminal.output import count, echo
from pallasc.cli.terminal.times import duration

if TYPE_CHECKING:
    from pallasc.compiler.shards.shard import Shard, Share
    from pallasc.specs.spec import Variant


def _shard(ctx: click.Context, _: click.Parameter, text: str | None) -> Shard | None:
    """Return the shard that is named, None where there is none.

    Raises:
        SpecError: there is no such shard.
    """
    if text is None or ctx.resilient_parsing:
        return None
    from pallasc.compiler.shards.shard import parse_shard

    return parse_shard(text)


shard_options = together(
    click.option(
        "--shard",
        callback=_shard,
        metavar="K/N",
        help="Take only shard K of N, such as 3/8: N jobs with the same costs have each variant "
        "exactly once.",
    ),
    file_option(
        "--costs",
        "Divide between shards by the times in FILE, a lock file or the --json report of an "
        "earlier run; by those of --lock, or pallasc.lock, when left out.",
    ),
)


def require_shard(shard: Shard | None, **options: object) -> None:
    """Check that options which only a shard has come with `--shard`.

    Raises:
        click.UsageError: one comes without.
    """
    for name, value in options.items():
        if value and shard is None:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --shard.")


def take_share(
    shard: Shard | None, variants: Sequence[Variant], *, costs: Path | None, lock: Path | None
) -> Share | None:
    """Return this job's share of the variants, and say what it is; None without `--shard`.

    Raises:
        SpecError: the costs cannot be read.
    """
    if shard is None:
        return None
    from pallasc.compiler.shards.costs import find_costs
    from pallasc.compiler.shards.shard import share_of

    share = share_of(shard, variants, find_costs(costs, lock))
    echo(share_line(share), err=True)
    return share


def share_line(share: Share) -> str:
    """Return `shard 3/8: 25 of 200 variants, about 12 s by pallasc.lock`."""
    own, every = len(share.variants), len(share.listed)
    line = f"shard {share.shard}: {own:,} of {count(every, 'variant')}"
    if not share.costs.digest:
        return f"{line}, divided without costs: there is no lock file here, and no --costs"
    if own:
        line += f", about {duration(share.expected_s)} of compiling by {share.costs.source}"
    if share.unknown:
        line += f"; {share.unknown:,} of all have no time there"
    return line
