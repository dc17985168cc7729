"""Plain data of build and check reports, as printed by `--json`.

A new column of a build is a key of `variant_row`, described in the help of `pallasc build --json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, get_args

from pallasc.cli.output.build_text import cubin_bytes, spill_bytes, warning_count, xla_kernels
from pallasc.cli.output.text import STATUS_COLOURS
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.resources import resources_of

if TYPE_CHECKING:
    from pallasc.checks.report import Report as CheckReport
    from pallasc.checks.report import VariantCheck
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.compiler.builds.shard import Share
    from pallasc.errors import PallascError
    from pallasc.specs.artifacts.artifact import KernelResources
    from pallasc.specs.gpus import Target
    from pallasc.specs.spec import Variant

_TOP = 5


def report_json(
    report: Report,
    reproduction: Reproduction | None = None,
    *,
    error: PallascError | None = None,
    share: Share | None = None,
) -> dict[str, object]:
    """Return the `--json` object of a build, without the schema version.

    Args:
        report: report of the build.
        reproduction: result of compiling twice, None if that was not requested.
        error: error that ended the whole build, if any.
        share: the shard's share of all variants, None for a build without shards.
    """
    totals = dict.fromkeys(STATUS_COLOURS, 0)
    for result in report.results:
        totals[result.status] += 1
    finished = len(report.results) - totals["skipped"]
    data = {
        **_common(report, error, share),
        "warnings": warning_count(report.results),
        "totals": totals,
        "hit_rate": round(totals["hit"] / finished, 4) if finished else None,
        "saved_s": round(sum(result.saved_s for result in report.hits), 3),
        "slowest": _top(report.compiled, lambda result: result.seconds)[:_TOP],
        "largest": _top(report.compiled, cubin_bytes)[:_TOP],
        "spilling": _top(report.results, spill_bytes),
        "variants": [variant_row(result) for result in report.results],
        "remote": report.remote.to_json() if report.remote else None,
    }
    if reproduction is not None:
        data["reproduced"] = [result.to_json() for result in reproduction.results]
    return data


def check_json(
    report: CheckReport, *, error: PallascError | None = None, share: Share | None = None
) -> dict[str, object]:
    """Return the `--json` object of a check, without the schema version."""
    from pallasc.checks.findings import Status

    results = [result for check in report.checks for result in check.results]
    return {
        **_common(report, error, share),
        "levels": list(report.levels),
        "totals": {name: sum(r.status == name for r in results) for name in get_args(Status)},
        "findings": sum(len(result.findings) for result in results),
        "variants": [_check_row(check, report) for check in report.checks],
    }


def _common(
    report: Report | CheckReport, error: PallascError | None, share: Share | None
) -> dict[str, object]:
    return {
        "seconds": round(report.seconds, 3),
        "interrupted": report.interrupted,
        "notes": list(report.notes),
        "errors": [error_row(failed) for failed in report.errors],
        "error": error_row(error),
        "shard": {
            "number": share.shard.number,
            "of": share.shard.of,
            "variants": len(share.variants),
            "others": share.others,
            "expected_s": share.expected_s,
            "costs_from": share.costs_from or None,
        }
        if share
        else None,
    }


def _top(results: Sequence[VariantResult], measure: Callable[[VariantResult], float]) -> list[str]:
    """Return the ids of the results with a nonzero measure, in descending order."""
    measured = [result for result in results if measure(result)]
    return [result.variant.id for result in sorted(measured, key=lambda result: -measure(result))]


def variant_facts(variant: Variant) -> dict[str, object]:
    """Return the fields of a variant that are common to every command's `--json`."""
    return {
        "id": variant.id,
        "name": variant.name,
        "params": dict(variant.params),
        "target": variant.target.name,
    }


def variant_row(result: VariantResult) -> dict[str, object]:
    """Return the row of a variant in a build; missing values are null or empty."""
    variant, artifact = result.variant, result.artifact
    kernels = artifact.kernels if artifact else ()
    return {
        **variant_facts(variant),
        "arch": variant.target.arch,
        "status": result.status,
        "seconds": round(result.seconds, 3),
        "saved_s": round(result.saved_s, 3),
        "reason": result.reason,
        "explanation": result.explanation.to_json() if result.explanation else None,
        "remote": result.remote,
        "action_key": result.action_key,
        "digest": artifact.digest if artifact else None,
        "cubin_bytes": artifact.cubin_bytes if artifact else None,
        "kernels": [asdict(kernel) for kernel in kernels],
        "resources": _resources(result),
        "pallas_kernels": _pallas_kernels(kernels),
        "xla_kernels": xla_kernels(artifact),
        "warnings": [diagnostic.to_json() for diagnostic in result.diagnostics],
        "error": error_row(result.error),
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


def junit_properties(result: VariantResult) -> dict[str, str]:
    """Return a variant's properties for JUnit XML, omitting missing values.

    Registers, spills and shared memory are the maximum over the artifact's kernels.
    """
    properties: dict[str, object] = {
        "status": result.status,
        "reason": result.reason,
        "target": result.variant.target.name,
        "arch": result.variant.target.arch,
        "action_key": result.action_key,
    }
    if (artifact := result.artifact) is not None:
        kernels = artifact.kernels
        properties |= {
            "digest": artifact.digest,
            "cubin_bytes": str(artifact.cubin_bytes),
            "registers": str(max((kernel.registers for kernel in kernels), default=0)),
            "spill_bytes": str(artifact.spill_bytes),
            "smem_bytes": str(max((kernel.smem_bytes for kernel in kernels), default=0)),
            "pallas_kernels": str(_pallas_kernels(kernels)),
            "xla_kernels": ", ".join(xla_kernels(artifact)),
        }
    properties["occupancy"] = (_resources(result) or {}).get("occupancy")
    properties["warnings"] = warning_count([result])
    return {name: str(value) for name, value in properties.items() if value}


def _pallas_kernels(kernels: Sequence[KernelResources]) -> int:
    return sum(kernel.origin == "mosaic" for kernel in kernels)


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
