"""`pallasc diff`: compare two sides of compiled variants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from pallasc.cli.arguments.build_options import remote_options
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    compile_options,
    json_option,
    quiet_option,
    store_option,
    store_setting,
    supervision_options,
)
from pallasc.cli.terminal.output import echo

if TYPE_CHECKING:
    from pallasc.analysis.compare.comparison import Comparison, Difference
    from pallasc.analysis.compare.sides import Side
    from pallasc.cache.remote.settings import RemoteSettings
    from pallasc.cli.comparing.sides import Opener

_DEPTHS = ("resources", "mix", "sass", "lines", "raw")


class _Options(TypedDict):
    """How sides that are specs are built."""

    jobs: int | None
    ptxas: Path | None
    timeout_s: float | None
    memory_bytes: int | None
    require_store: bool
    remote: RemoteSettings | None


@click.command("diff", cls=Command, short_help="Compare what variants were compiled to.")
@click.argument("sides", nargs=-1, required=True, metavar="SIDE...")
@click.option(
    "--base",
    metavar="REV",
    help="Compare one SIDE, a spec, with what it was at this revision of git.",
)
@click.option(
    "-k",
    "expressions",
    multiple=True,
    metavar="EXPR",
    help="Take only the variants that match EXPR; given twice, with one SIDE, compare those of the "
    "first with those of the second.",
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="A model or architecture in place of the spec's own targets; repeatable.",
)
@click.option(
    "--depth",
    type=click.Choice(_DEPTHS),
    default="resources",
    show_default=True,
    help="How deep to compare.",
)
@click.option("--exit-code", "tells", is_flag=True, help="Exit with 1 where anything differs.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a table for a pull request.")
@json_option("the comparison")
@quiet_option
@compile_options
@supervision_options
@store_option
@store_setting
@remote_options
def command(
    sides: tuple[str, ...],
    base: str | None,
    expressions: tuple[str, ...],
    targets: tuple[str, ...],
    depth: str,
    tells: bool,
    as_markdown: bool,
    as_json: bool,
    quiet: bool,
    store_root: Path | None,
    **options: Unpack[_Options],
) -> int:
    """Compare what the variants of two SIDEs were compiled to: what got better, what got worse.

    A SIDE is a spec, or a folder of specs; a spec at a revision of git, kernels.yaml@main; the
    folder of a store; a bundle; a lock file; an action key or digest of the store (the first six
    digits are enough). Specs are built where the store lacks them; those of a revision from a
    temporary copy of it, so that the working tree stays as it is. One SIDE with two -k compares
    variants with each other: parameters in which the selections differ are what is compared.

    Variants are compared by their ids, single ones whatever their ids are. What differs is printed,
    the worst first, and nothing where nothing does. Depths, each with those before it:
      resources  registers, spills, stack, shared memory, occupancy, size; whether the launch plan
                 or the bytes of the machine code differ
      mix        instructions by class, for kernels and their loops
      sass       machine code with registers and labels renamed by first use, scheduling apart: only
                 registers or stalls that differ are no difference; another order is told apart
      lines      instructions by source line; specs are compiled once more to find their lines, of
                 other sides the store has them after pallasc inspect --lines
      raw        machine code as it is

    The exit code is 0 whether or not anything differs; with --exit-code it is 1 where it does.

    Examples:
      pallasc diff kernels.yaml@main kernels.yaml
      pallasc diff kernels.yaml --base origin/main --markdown >> "$GITHUB_STEP_SUMMARY"
      pallasc diff pallasc.lock kernels.yaml --exit-code
      pallasc diff old.pallasc new.pallasc --depth sass
      pallasc diff kernels.yaml -k "block=64" -k "block=128" --depth mix
      pallasc diff 3fa94c 81d2e0 --depth raw

    --json prints one object:
      schema       1
      first        the first side: name, variants (how many), notes
      second       the second one
      depth        how deep was compared
      totals       number of variants: better, worse, mixed, otherwise (no number differs), same
      only_first   ids of variants that only the first side has
      only_second  ids of variants that only the second side has
      variants     a list of those that differ, in their order; of each: first and second (each id,
                   action_key, digest, resources), verdict (better, worse, mixed or null),
                   resources (of each that differs: before, after, verdict), plan (whether it
                   differs), kernels (a list of those whose code differs; of each: first and second
                   (names), code (verdict: renamed, reordered or changed; before, after, removed,
                   added, mix, loops; null where only bytes were compared), lines (place, before,
                   after), no_lines (why there are none), diff (lines of a unified diff))
    """
    from contextlib import ExitStack

    from pallasc.analysis.compare.comparison import compare
    from pallasc.cli.arguments.selection import open_store
    from pallasc.cli.comparing.sides import Opener
    from pallasc.compiler.builds.options import Options

    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown do not go together: give one of them.")
    named = _sides(sides, base, expressions)
    with ExitStack() as stack:
        store = open_store(store_root)
        lines = _DEPTHS.index(depth) >= _DEPTHS.index("lines")
        opener = Opener(store, Options(**options), targets, stack, quiet, lines)
        opened, code = _opened(named, opener)

        def with_lines(difference: Difference) -> Difference:
            from pallasc.analysis.compare.by_line import add_lines

            return add_lines(difference, store)

        comparison = compare(
            *opened,
            depth=depth,
            by_parameters=len(sides) == 1 and len(expressions) == 2,
            add_lines=with_lines,
        )
    _print(comparison, as_json=as_json, as_markdown=as_markdown, quiet=quiet)
    return code or int(tells and bool(comparison))


def _sides(
    sides: tuple[str, ...], base: str | None, expressions: tuple[str, ...]
) -> list[tuple[str, str | None]]:
    """Return both sides, each with the expression that chooses in it.

    Raises:
        click.UsageError: they are not two.
    """
    if len(expressions) > 2 or (len(expressions) == 2 and (len(sides) > 1 or base)):
        raise click.UsageError("-k is given twice to compare variants of one SIDE, without --base.")
    one = expressions[0] if expressions else None
    if len(sides) == 1 and base:
        return [(f"{sides[0]}@{base}", one), (sides[0], one)]
    if len(sides) == 1 and len(expressions) == 2:
        return [(sides[0], expressions[0]), (sides[0], expressions[1])]
    if len(sides) == 2 and not base:
        return [(sides[0], one), (sides[1], one)]
    raise click.UsageError(
        "Give two SIDEs, or one with --base REV, or one with -k twice: one is compared with the "
        "other."
    )


def _opened(named: list[tuple[str, str | None]], opener: Opener) -> tuple[list[Side], int]:
    """Return the sides, and the exit code of the build that failed first, 0 if none did."""
    opened, codes = [], []
    for text, expression in named:
        side, code = opener.open(text, expression)
        opened.append(side)
        codes.append(code)
    return opened, next(filter(None, codes), 0)


def _print(comparison: Comparison, *, as_json: bool, as_markdown: bool, quiet: bool) -> None:
    from pallasc.cli.comparing.outputs import (
        comparison_json,
        comparison_lines,
        markdown,
        summary_line,
    )
    from pallasc.cli.terminal.output import json_text

    for note in dict.fromkeys((*comparison.first.notes, *comparison.second.notes)):
        echo(f"warning: {note}", err=True)
    if as_json:
        echo(json_text(comparison_json(comparison)))
    elif as_markdown:
        echo(markdown(comparison), nl=False)
    else:
        for line in comparison_lines(comparison):
            echo(line)
    if not quiet:
        echo(summary_line(comparison), err=True)
