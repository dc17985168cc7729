"""`pallasc check`: check kernels for mistakes, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pallasc.cli.arguments import options
from pallasc.cli.arguments import variants as given
from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.variants import (
    Work,
    bundle_files,
    input_options,
    is_key,
    parse_inputs,
    shard_option,
)

if TYPE_CHECKING:
    from pallasc.cli.output.reports import Outputs
    from pallasc.compiler.builds.collect import Shard

LEVELS = ("interpreter", "artifact", "all")
"""Values of `--level`; a test checks that they match `checks.levels`."""


@click.command("check", cls=Command, short_help="Check kernels for mistakes, without a GPU.")
@options.specs_argument()
@options.choice_option(
    "--level",
    LEVELS,
    "Run the kernel in JAX's interpreter, execute its PTX, or both.",
    parameter="chosen",
    multiple=True,
    default=("all",),
)
@input_options
@options.count_option(
    "--seed", "Seed of the random inputs. Default: the spec's seed, or 0.", least=0
)
@options.count_option(
    "--schedules", "Number of schedules to execute at the artifact level.", default=3
)
@options.selection_options
@shard_option
@options.quiet_option
@given.build_options(options.checking_options)
@options.report_options(
    "findings and failures",
    options.file_option(
        "--sarif", "Write the findings as SARIF 2.1, for code hosts; - for standard output."
    ),
)
def command(
    chosen: tuple[str, ...],
    inputs: tuple[str, ...],
    archive: Path | None,
    seed: int | None,
    schedules: int,
    outputs: Outputs,
    shard: Shard | None,
    work: Work,
) -> int:
    """Check the variants of SPECS for mistakes, without a GPU.

    SPECS are specs, bundles, or artifacts in the store, named by at least six digits of their
    action key or digest (`pallasc build --json` prints both). Variants that are not in the store
    are compiled first. Bundles and stored artifacts have no source; checks that need the source are
    reported as "not checked".

    Each level of each variant prints one line: "passed", "found" with the findings and your source
    lines, or "not checked" with the reason. Results are stored; unchanged variants are not checked
    again. docs/check.md lists the mistakes that each level can and cannot find.

    If a spec lists small sizes under "check", variants are checked at these sizes instead; the
    output shows the sizes.

    The interpreter level runs the kernel in JAX's interpreter, on random inputs or the inputs from
    --input and --inputs, and compares the results with the spec's reference. It finds races,
    out-of-bounds accesses, uninitialized memory, and deadlocks.

    The artifact level executes the launch plan and the PTX, including XLA's kernels, and compares
    the results with the reference. It does so several times (--schedules), each time in another
    order of threads and asynchronous operations. The first time, asynchronous operations complete
    as late as the kernel's waits allow; then the order is random. Without source, this level still
    finds faults, races, deadlocks, and uninitialized results.

    The exit code is 1 if there are findings, and 4 if no level could check any variant, or if numpy
    or ml_dtypes is missing. After Ctrl-C or SIGTERM, the exit code is 130, and reports list the
    results so far and the variants that were not checked.

    Examples:
      pallasc check kernels.yaml
      pallasc check kernels.yaml --level interpreter -k "matmul and m=128" --seed 7
      pallasc check specs/ --timeout 600 --sarif findings.sarif --annotations github
      pallasc check kernels.pallasc --json > report.json
      pallasc check specs/ --shard 3/8
    """
    from msgspec.structs import replace

    from pallasc.checks.check import check_built, check_compiled, demands
    from pallasc.checks.levels import Options, chosen_levels
    from pallasc.checks.report import Settings
    from pallasc.cli.output.check_text import events, print_report
    from pallasc.cli.output.outcome import check_run
    from pallasc.compiler.builds.build import build

    if len(chosen) > 1:
        raise click.UsageError(
            f"--level is given {len(chosen)} times: give it once, or omit it for all levels."
        )
    levels = chosen_levels(chosen[0])
    outputs = outputs._replace(levels=levels)
    with outputs.reporting_errors():
        files = parse_inputs(inputs, archive)
        checking = Options(
            seed=seed or 0,
            seed_given=seed is not None,
            schedules=schedules,
            inputs={name: file.absolute() for name, file in files.items()},
        )
        if shard is not None and (bundle_files(work.specs) or any(map(is_key, work.specs))):
            raise click.UsageError("--shard works with specs, not with bundles or action keys.")
        store, how, compiled, share = work.store, work.how, work.compiled(), None
        with work.progress() as progress:
            settings = Settings(
                levels=levels,
                store=store,
                options=checking,
                limits=how,
                events=events(progress, silent=outputs.prints_report),
            )
            if compiled is None:
                variants, share = work.select_share(progress, shard, keep_going=True)
                building, needed = demands(variants)
                built = build(building, store=store, options=how, on_event=progress)
                progress.end()
                built = replace(built, errors=tuple(work.errors))
                report = check_built(built, needed, settings)
            else:
                report = check_compiled(compiled.results, settings)
        run = check_run(report, report.unchecked, share)
        outputs.write(run)
        only_totals = outputs.prints_report
        print_report(run, report, levels, only_totals=only_totals, quiet=work.quiet)
    return report.exit_code
