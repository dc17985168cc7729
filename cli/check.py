"""`pallasc check`: look for mistakes in kernels without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    Selection,
    WholeNumber,
    annotations_option,
    build_options,
    checking_options,
    count_option,
    file_option,
    json_option,
    junit_option,
    quiet_option,
    selection_options,
    shard_option,
    specs_argument,
    take_share,
)
from pallasc.cli.arguments.selection import input_options, open_store, parse_inputs

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.checks.candidate import Candidate, Events
    from pallasc.checks.subject import Options
    from pallasc.compiler.builds.options import Options as BuildOptions
    from pallasc.compiler.builds.shard import Shard

LEVELS = ("interpreter", "artifact", "all")
"""Values of `--level`; a test compares them with the existing levels."""


class _Settings(TypedDict):
    """Common arguments of the check functions."""

    store: Store
    options: Options
    limits: BuildOptions
    events: Events


@click.command("check", cls=Command, short_help="Check kernels for mistakes, without a GPU.")
@specs_argument()
@click.option(
    "--level",
    "chosen",
    type=click.Choice(LEVELS),
    multiple=True,
    default=("all",),
    show_default=True,
    help="Run JAX's interpreter, execute the PTX, or both.",
)
@input_options
@click.option(
    "--seed",
    type=WholeNumber(0),
    metavar="N",
    help="Seed of the random inputs; by default that of the spec, or 0.",
)
@count_option("--schedules", "Execute N schedules at the artifact level.", default=3)
@selection_options
@shard_option
@build_options(checking_options)
@junit_option
@quiet_option
@file_option(
    "--sarif",
    "Write the findings as SARIF 2.1, which code hosts show at their lines; - prints it.",
)
@annotations_option("findings and failures")
@json_option("the report")
def command(
    specs: tuple[str, ...],
    chosen: tuple[str, ...],
    inputs: tuple[str, ...],
    archive: Path | None,
    seed: int | None,
    schedules: int,
    junit: Path | None,
    sarif: Path | None,
    annotations: str | None,
    store_root: Path | None,
    shard: Shard | None,
    quiet: bool,
    as_json: bool,
    how: BuildOptions,
    selection: Selection,
) -> int:
    """Check the variants of SPECS for mistakes, on a machine without a GPU.

    SPECS are specs, bundles, or action keys and digests of artifacts in the store (the first six
    digits are enough). A variant that is not in the store is compiled first. Bundles and keys have
    no source: levels that need it are "not checked".

    Each level of each variant gets a line: "passed", "found" with the findings and the lines of
    your source, or "not checked" with the reason. Results are stored, and unchanged variants are
    not checked again. docs/check.md has what each level finds, and what it does not find.

    If a spec names small sizes under "check", these are checked, and the output says so.

    The interpreter level runs the kernel in JAX's interpreter, on random inputs or those of
    --input and --inputs, and compares the results with the reference of the spec. It finds races,
    accesses out of bounds, uninitialized memory, and deadlocks.

    The artifact level executes the launch plan and the PTX, XLA's kernels included, and compares
    the results with the reference. In the first schedule, asynchronous operations complete as late
    as the waits of the kernel allow; other schedules (--schedules) have other orders. It needs no
    source: in bundles it finds faults, races, deadlocks and uninitialized results.

    Ends with exit code 1 if something was found, and 4 if no level could check any variant. Ctrl-C
    or SIGTERM ends it with 130: reports are written with what was checked until then, and name
    what was not.

    Examples:
      pallasc check kernels.yaml
      pallasc check kernels.yaml --level interpreter -k "matmul and m=128" --seed 7
      pallasc check specs/ --timeout 600 --sarif findings.sarif --annotations github
      pallasc check kernels.pallasc --json > report.json
      pallasc check specs/ --shard 3/8

    --json prints one object:
      schema       1
      seconds      time of the whole check
      interrupted  whether a signal stopped it
      levels       the levels that were asked for
      notes        warnings about the store, and results that were not stored
      totals       number of results by status
      findings     number of findings (notes included)
      variants     a list, in the order of the specs; of each: id, name, params, target, action_key,
                   digest (of the artifact), error (why it was not compiled), interrupted (levels
                   that a signal left without a result), and results, a list:
                   level, status (passed, found, not checked), findings, reason (why it was not
                   checked), stopped (whether the check itself failed), error (why), seconds,
                   from_store (whether the result was stored), notes; of each finding: rule,
                   message, severity (error, warning, note), location (file, line, column, or null),
                   instruction, hint, kernel, cubin (its digest: kernels may share a name), ptx_line
                   (in the PTX of that kernel, 0 for none), subject (such as the result that it is
                   about), places (text, location, ptx_line, kernel and cubin where they are not
                   those of the finding, waits: whether threads wait there)
      shard        with --shard, as `pallasc build --json` has it
      errors       of Python specs whose process died or was stopped; the others are checked
      error        why nothing was checked, such as a mistake in a spec
    What a variant does not have is null or empty.
    """
    from msgspec.structs import replace

    from pallasc.checks.inputs import check_variants
    from pallasc.checks.levels import chosen_levels
    from pallasc.checks.run import check_built, check_candidates, demands
    from pallasc.checks.subject import Options
    from pallasc.cli.output.check_text import events
    from pallasc.cli.output.progress import Reading, store_progress
    from pallasc.cli.output.reports import Outputs
    from pallasc.compiler.builds.build import build

    if len(chosen) > 1:
        raise click.UsageError(
            f"--level is given {len(chosen)} times: name one level, or none for all."
        )
    levels = chosen_levels(chosen[0])
    outputs = Outputs(as_json, junit, annotations, sarif, levels)
    with outputs.reporting_errors():
        files = parse_inputs(inputs, archive)
        options = Options(
            seed=seed or 0,
            seed_given=seed is not None,
            schedules=schedules,
            inputs={name: file.absolute() for name, file in files.items()},
        )
        store = open_store(store_root)
        compiled, share = _read_compiled(specs, store, shard, selection), None
        with store_progress(store, hits=False, quiet=quiet) as progress:
            names = [level.name for level in levels]
            listeners = events(progress, levels=names, silent=outputs.prints_report)
            settings: _Settings = {
                "store": store, "options": options, "limits": how, "events": listeners,
            }  # fmt: skip
            if compiled is None:
                reading = Reading(progress, keep_going=True)
                variants = reading.reader(store, how).select(specs, **selection._asdict()).variants
                share = take_share(shard, variants, None, progress.mention)
                variants = share.variants if share else variants
                check_variants(options.inputs, (each.for_check() for each in variants))
                building, needed = demands(variants)
                built = build(building, store=store, options=how, on_event=progress)
                progress.end()
                built = replace(built, errors=tuple(reading.errors))
                report = check_built(built, needed, levels, **settings)
            else:
                report = check_candidates(compiled, levels, **settings)
        outputs.write_check(report, share, quiet=quiet)
    return report.exit_code


def _read_compiled(
    specs: Sequence[str], store: Store, shard: Shard | None, selection: Selection
) -> list[Candidate] | None:
    """Return the compiled variants that the arguments name, None if they are specs.

    Raises:
        SpecError, NotCachedError, click.UsageError: see `read_compiled`.
    """
    from pallasc.cli.arguments.compiled import bundle_files, is_key, read_compiled

    if shard is not None and (bundle_files(specs) or any(map(is_key, specs))):
        raise click.UsageError("--shard divides the variants of specs, not bundles or action keys.")
    found = read_compiled(specs, store, selection)
    if found is None:
        return None
    from pallasc.checks.candidate import Candidate

    return [
        Candidate(key, artifact, key)
        if key is not None
        else Candidate(variant.id, artifact, origin=variant.location)
        for variant, artifact, key in found
    ]
