"""Plain data of build and check reports, as printed by `--json`.

A new column of a build is a key of `_variant_row`, described in the help of `pallasc build --json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from pallasc.cli.output.text import STATUS_COLOURS
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.resources import resources_of

if TYPE_CHECKING:
    from pallasc.checks.run import Report as CheckReport
    from pallasc.checks.run import VariantCheck
    from pallasc.cli.output.outcome import Outcome, Run
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.errors import PallascError
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import Variant

_TOP = 5


def report_json(
    run: Run, report: Report, reproduction: Reproduction | None = None
) -> dict[str, object]:
    """Return the `--json` object of a build, without the schema version.

    Args:
        run: record of the build.
        report: its report.
        reproduction: result of compiling twice, None if that was not requested.
    """
    totals = run.totals(STATUS_COLOURS)
    finished = len(run.outcomes) - totals["skipped"]
    compiled = [outcome for outcome in run.outcomes if outcome.status == "compiled"]
    data = {
        **_common(run),
        "warnings": sum(map(_warnings, run.outcomes)),
        "totals": totals,
        "hit_rate": round(totals["hit"] / finished, 4) if finished else None,
        "saved_s": round(sum(result.saved_s for result in report.hits), 3),
        "slowest": _top(compiled, lambda outcome: outcome.seconds)[:_TOP],
        "largest": _top(compiled, lambda o: o.artifact.cubin_bytes if o.artifact else 0)[:_TOP],
        "spilling": _top(run.outcomes, lambda o: o.artifact.spill_bytes if o.artifact else 0),
        "variants": [
            _variant_row(outcome, outcome.result) for outcome in run.outcomes if outcome.result
        ],
        "remote": report.remote.to_json() if report.remote else None,
    }
    if reproduction is not None:
        data["reproduced"] = [result.to_json() for result in reproduction.results]
    return data


def check_json(run: Run, report: CheckReport) -> dict[str, object]:
    """Return the `--json` object of a check, without the schema version."""
    from pallasc.checks.findings import Status

    return {
        **_common(run),
        "levels": list(report.levels),
        "totals": run.totals(get_args(Status)),
        "findings": sum(len(outcome.findings) for outcome in run.outcomes),
        "variants": [_check_row(check, report) for check in report.checks],
    }


def _common(run: Run) -> dict[str, object]:
    report, share = run.report, run.share
    shard = share and {
        "number": share.shard.number,
        "of": share.shard.of,
        "variants": len(share.variants),
        "others": share.others,
        "expected_s": share.expected_s,
        "costs_from": share.costs_from or None,
    }
    return {
        "seconds": round(report.seconds, 3),
        "interrupted": report.interrupted,
        "notes": list(report.notes),
        "errors": [error_row(failed) for failed in report.errors],
        "error": error_row(run.error),
        "shard": shard,
    }


def _top(outcomes: list[Outcome], measure: Callable[[Outcome], float]) -> list[str]:
    """Return the ids of the outcomes with a nonzero measure, in descending order."""
    return [o.id for o in sorted(filter(measure, outcomes), key=lambda o: -measure(o))]


def _warnings(outcome: Outcome) -> int:
    """Return the number of warnings, including repeated ones."""
    return sum(warning.count for warning in outcome.result.diagnostics) if outcome.result else 0


def variant_facts(variant: Variant) -> dict[str, object]:
    """Return the fields of a variant that are common to every command's `--json`."""
    return {
        "id": variant.id,
        "name": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
    }


def _variant_row(outcome: Outcome, result: VariantResult) -> dict[str, object]:
    """Return the row of a variant in a build; missing values are null or empty."""
    variant, figures = result.variant, outcome.figures
    return {
        **variant_facts(variant),
        "arch": variant.target.arch,
        "status": outcome.status,
        "seconds": round(outcome.seconds, 3),
        "saved_s": round(result.saved_s, 3),
        "reason": result.reason,
        "explanation": result.explanation.to_json() if result.explanation else None,
        "remote": result.remote,
        "action_key": result.action_key,
        "digest": figures and figures.digest,
        "cubin_bytes": figures and figures.cubin_bytes,
        "kernels": [asdict(kernel) for kernel in result.artifact.kernels]
        if result.artifact
        else [],
        "resources": _resources(result),
        "pallas_kernels": figures.pallas_kernels if figures else 0,
        "xla_kernels": list(figures.xla_kernels) if figures else [],
        "warnings": [diagnostic.to_json() for diagnostic in result.diagnostics],
        "error": error_row(outcome.error),
        "output": result.output,
    }


def _check_row(check: VariantCheck, report: CheckReport) -> dict[str, object]:
    from pallasc.checks.findings import to_json

    variant = check.variant
    return {
        "id": check.id,
        "name": variant.name if variant else None,
        "params": dict(variant.params) if variant else {},
        "target": variant.target.name if variant else None,
        "action_key": check.action_key,
        "digest": check.digest,
        "results": [
            {
                **to_json(result),
                "seconds": round(result.seconds, 3),
                "from_store": result.level in check.from_store,
                "error": error_row(check.errors.get(result.level)),
            }
            for result in check.results
        ],
        "error": error_row(check.built.error if check.built is not None else None),
        "interrupted": list(report.missing(check)),
    }


def _resources(result: VariantResult) -> dict[str, int | None] | None:
    """Return the variant's resources as stored in a lock file; None without an artifact."""
    if result.artifact is None:
        return None
    # The artifact's record has the same figures, but is not in memory.
    with suppress(CorruptError):
        return resources_of(result.artifact, _figures_of(result.variant.target))._asdict()
    return None


@cache
def _figures_of(target: Target) -> Mapping[str, Any]:
    return target.figures()


def junit_properties(outcome: Outcome, result: VariantResult) -> dict[str, str]:
    """Return a variant's properties for JUnit XML, omitting missing values."""
    properties: dict[str, object] = {
        "status": outcome.status,
        "reason": result.reason,
        "target": result.variant.target.name,
        "arch": result.variant.target.arch,
        "action_key": result.action_key,
    }
    if (figures := outcome.figures) is not None:
        texts = {name: str(value) for name, value in figures._asdict().items()}
        properties |= {**texts, "xla_kernels": ", ".join(figures.xla_kernels)}
    properties["occupancy"] = (_resources(result) or {}).get("occupancy")
    properties["warnings"] = _warnings(outcome)
    return {name: str(value) for name, value in properties.items() if value}


def error_row(error: PallascError | None) -> dict[str, object] | None:
    """Return the row of an error, None without an error."""
    if error is None:
        return None
    place = error.location
    return {
        "message": error.message,
        "hint": error.hint,
        "file": place.file if place else None,
        "line": place.line or None if place else None,
        "column": place.column or None if place else None,
        "exit_code": error.exit_code,
    }
