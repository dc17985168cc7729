"""The options `--shard` and `--costs`, and the variants that they leave to this job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments.options import file_option, together
from pallasc.cli.terminal.output import count
from pallasc.cli.terminal.times import duration

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.report import Report
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
    shard: Shard | None,
    variants: Sequence[Variant],
    store: Store,
    *,
    costs: Path | None,
    lock: Path | None,
    say: Callable[[str], None],
) -> Share | None:
    """Return this job's share of the variants, and `say` what it is; None without `--shard`.

    Args:
        shard: the shard.
        variants: all variants.
        store: the store.
        costs: the file that `--costs` names.
        lock: the file that `--lock` names.
        say: prints what the share is.

    Raises:
        SpecError: the costs cannot be read.
    """
    if shard is None:
        return None
    from pallasc.compiler.shards.costs import find_costs
    from pallasc.compiler.shards.shard import share_of

    share = share_of(shard, variants, find_costs(costs, lock))
    say(share_line(share))
    return share


def share_line(share: Share) -> str:
    """Return `shard 3/8: 25 of 200 variants, about 12 s by pallasc.lock`."""
    own, every = len(share.variants), len(share.listed)
    line = f"shard {share.shard}: {own:,} of {count(every, 'variant')}"
    if not share.costs.digest:
        return f"{line}, divided without costs: {share.costs.missing}"
    if own:
        line += f", about {duration(share.expected_s)} of compiling by {share.costs.source}"
    if share.unknown:
        line += f"; {share.unknown:,} of all have no time there"
    return line


def prepare_output(path: Path) -> None:
    """Check that a part can be written, and remove that of an earlier run, which must not be taken.

    Raises:
        SpecError: it cannot be written.
    """
    from pallasc.cli.terminal.output import check_reports, refusing

    if path.exists() and not path.is_file():
        from pallasc.errors import SpecError

        raise SpecError(f"{path} is not a file.", hint="Give --shard-output another path.")
    check_reports({"--shard-output": path}, as_json=False)
    with refusing(path, hint="Give --shard-output another path."):
        path.unlink(missing_ok=True)


def write_output(
    path: Path,
    share: Share,
    report: Report,
    store: Store,
    *,
    whole: bool,
    specs: Sequence[str],
    ptxas: Path | None,
) -> str:
    """Write the part of a shard, and return a line that says so; arguments as for `make_part`.

    Raises:
        SpecError: it cannot be written.
        ToolError: the store lost an artifact.
    """
    import os

    from pallasc.cli.render.junit import junit_xml
    from pallasc.cli.render.report_rows import report_json
    from pallasc.cli.terminal.workspace import workspace_root
    from pallasc.compiler.shards.make_part import make_part

    xml = junit_xml(report, workspace_root(os.environ), None, share.shard).decode()
    make_part(
        path,
        share,
        report,
        store=store,
        whole=whole,
        documents=(report_json(report, share=share), xml),
        specs=specs,
        ptxas=ptxas,
    )
    return f"wrote {path}: {path.stat().st_size:,} bytes"
