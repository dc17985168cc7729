"""`pallasc report`: write an HTML report about a build."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import count, echo

if TYPE_CHECKING:
    from pallasc.checks.report import Report as CheckReport
    from pallasc.cli.arguments.variants import Work
    from pallasc.compiler.builds.report import Report


@click.command("report", cls=Command, short_help="Write an HTML report that works offline.")
@options.specs_argument()
@options.output_option("FILE", "HTML file to write, e.g. report.html.", dir_okay=False)
@options.option(
    "--baseline",
    "SIDE",
    "Show changes since this baseline: a SIDE as in `pallasc diff`, e.g. a bundle.",
)
@options.option("--title", "TEXT", "Heading of the report.", default="")
@click.option(
    "--timings/--no-timings",
    default=True,
    show_default=True,
    help="Include date, machine, build time; without them, the same inputs give the same bytes.",
)
@options.selection_options
@options.quiet_option
@given.build_options()
def command(
    output: Path,
    baseline: str | None,
    title: str,
    timings: bool,
    work: Work,
) -> int:
    """Write an HTML report about the variants of SPECS.

    SPECS are specs, bundles, or artifacts in the store, named by at least six digits of their
    action key or digest (`pallasc build --json` prints both). Variants that are not in the store
    are compiled first.

    The report is a single file that loads nothing from elsewhere. It has an overview, a page for
    each kernel with a table and plots of its variants, and a page for each variant with source,
    PTX, SASS, tensor maps, and launch plan. It shows the findings that `pallasc check` stored with
    its default options, and source lines if `pallasc inspect --lines` found them before.
    docs/inspect.md has an example.

    Requires pallasc[report].

    Examples:
      pallasc report kernels.yaml -o report.html
      pallasc report specs/ --target h100-sxm -o h100.html --title "Nightly, H100"
      pallasc report kernels.pallasc -o report.html --no-timings
      pallasc report kernels.yaml -o report.html --baseline kernels.yaml@main

    The report includes variants that fail to compile. The exit code is the same as for
    `pallasc build`.
    """
    from pallasc.cli.diff import Opener
    from pallasc.reports.page import make_report, require_packages
    from pallasc.specs.user_files import replace_file

    require_packages()
    store, compiled = work.store, work.compiled()
    report = work.build() if compiled is None else compiled
    checked = _stored_checks(report, compiled, work)
    with ExitStack() as stack:
        before = None
        if baseline is not None:
            before, _ = Opener(work, stack).open(baseline, work.selection.expression)
        page = make_report(
            report, store, checked=checked, baseline=before, title=title, timing=timings
        )
    data = page.encode("utf-8", "replace")
    replace_file(output, data)
    if not work.quiet:
        shown = count(len(report.results), "variant")
        echo(f"wrote {output}: {shown}, {len(data):,} bytes", err=True)
    return report.exit_code


def _stored_checks(report: Report, compiled: Report | None, work: Work) -> CheckReport:
    """Return the stored results of checks, without compiling or checking anything.

    Args:
        report: all variants.
        compiled: variants of bundles and keys, None for specs.
        work: store with the results, and limits.
    """
    from msgspec.structs import replace

    from pallasc.checks.check import check_built, check_compiled, demands
    from pallasc.checks.levels import LEVELS
    from pallasc.checks.levels import Options as CheckOptions
    from pallasc.checks.report import Settings
    from pallasc.compiler.builds.build import build

    settings = Settings(
        levels=tuple(LEVELS),
        store=work.store,
        options=CheckOptions(),
        limits=work.how,
        only_stored=True,
    )
    if compiled is not None:
        return check_compiled(compiled.results, settings)
    building, needed = demands([result.variant for result in report.results])
    only_stored = replace(work.how, compile=False, remote=None)
    looked_up = build(building, store=work.store, options=only_stored)
    return check_built(looked_up, needed, settings)
