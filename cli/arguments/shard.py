"""The option `--shard`, and the variants that it leaves to this job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.times import duration

if TYPE_CHECKING:
    from pallasc.compiler.builds.shard import Shard, Share
    from pallasc.specs.spec import Variant


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
