"""`pallasc build`: compile specs into the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pallasc.cli.layout import Command
from pallasc.cli.options import (
    compile_options,
    json_option,
    selection_options,
    specs_argument,
    store_option,
    traceback_option,
)

if TYPE_CHECKING:
    from pallasc.compiler.report import Report, VariantResult
    from pallasc.errors import PallascError


@click.command("build", cls=Command, short_help="Compile specs into the store.")
@specs_argument()
@selection_options
@compile_options
@click.option(
    "--keep-going/--fail-fast",
    default=True,
    show_default=True,
    help="After a variant failed, compile the others, or stop.",
)
@store_option
@json_option("the report")
@traceback_option()
def command(
    specs: tuple[str, ...],
    targets: tuple[str, ...],
    expression: str | None,
    jobs: int | None,
    ptxas: Path | None,
    keep_going: bool,
    store_root: Path | None,
    as_json: bool,
) -> int:
    """Compile every variant of SPECS that is not in the store yet.

    SPECS are YAML files, Python files with @pallasc.kernel, or folders of YAML files. Each variant
    gets one line on the standard error output: "hit" was in the store, "compiled" was not,
    "failed" comes with its message and the line of your source.

    Examples:
      pallasc build kernels.yaml
      pallasc build kernels.yaml --target sm_90a --target b200
      pallasc build specs/ -k "matmul and m=4096" --jobs 4
      pallasc build specs/ --fail-fast --json > report.json

    --json prints one object:
      schema    1
      seconds   time of the whole build
      notes     warnings, about the store and about compilations that gave different results
      totals    number of variants by status
      variants  a list, in the order of the specs; of each: id, name, params, target, arch,
                status (hit, compiled, failed, skipped), seconds, reason (why it was a miss),
                action_key, digest (of the artifact), cubin_bytes, kernels (resources),
                error (message, hint, file, line, column, exit_code), output (its last lines)
    What a variant does not have is null or empty.
    """
    from pallasc.cli.output import json_text
    from pallasc.cli.progress import stderr_progress, summary
    from pallasc.cli.selection import load_variants, open_store
    from pallasc.compiler.build import build

    store = open_store(store_root)
    variants = load_variants(specs, store=store, targets=targets, expression=expression)
    progress = stderr_progress()
    report = build(
        variants, store=store, jobs=jobs, keep_going=keep_going, ptxas=ptxas, on_event=progress
    )
    progress.end()
    for note in report.notes:
        if note not in store.warnings:
            click.echo(f"warning: {note}", err=True)
    click.echo(summary(report), err=True)
    if as_json:
        click.echo(json_text(report_json(report)))
    return report.exit_code


def report_json(report: Report) -> dict[str, Any]:
    """Return what `--json` prints of a report, without the schema version."""
    totals = dict.fromkeys(("compiled", "failed", "hit", "skipped"), 0)
    for result in report.results:
        totals[result.status] += 1
    return {
        "seconds": round(report.seconds, 3),
        "notes": list(report.notes),
        "totals": totals,
        "variants": [_result_json(result) for result in report.results],
    }


def _result_json(result: VariantResult) -> dict[str, Any]:
    variant, artifact = result.variant, result.artifact
    return {
        "id": variant.id,
        "name": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
        "arch": variant.target.arch,
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "reason": result.reason,
        "action_key": result.action_key,
        "digest": artifact.digest if artifact else None,
        "cubin_bytes": artifact.cubin_bytes if artifact else None,
        "kernels": artifact.record["kernels"] if artifact else [],
        "error": _error_json(result.error) if result.error else None,
        "output": result.output,
    }


def _error_json(error: PallascError) -> dict[str, Any]:
    place = error.location
    return {
        "message": error.message,
        "hint": error.hint,
        "file": place.file if place else None,
        "line": place.line or None if place else None,
        "column": place.column or None if place else None,
        "exit_code": error.exit_code,
    }
