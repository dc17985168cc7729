"""A build's report as JSON, the object that `pallasc build --json` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pallasc.cli.render.remarks import warning_count, xla_kernels
from pallasc.cli.render.result_text import spill_bytes
from pallasc.cli.terminal.screen import STATUS_COLOURS
from pallasc.specs.artifacts.artifact import kernel_to_json

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.errors import PallascError

_TOP = 5


def report_json(
    report: Report,
    reproduction: Reproduction | None = None,
    *,
    error: PallascError | None = None,
) -> dict[str, Any]:
    """Return what `--json` prints of a report, without the schema version."""
    totals = dict.fromkeys(STATUS_COLOURS, 0)
    for result in report.results:
        totals[result.status] += 1
    finished = len(report.results) - totals["skipped"]
    data: dict[str, Any] = {
        "seconds": round(report.seconds, 3),
        "interrupted": report.interrupted,
        "notes": list(report.notes),
        "warnings": warning_count(report.results),
        "totals": totals,
        "hit_rate": round(totals["hit"] / finished, 4) if finished else None,
        "saved_s": round(sum(result.saved_s for result in report.hits), 3),
        "slowest": _top(report.compiled, lambda result: result.seconds)[:_TOP],
        "largest": _top(report.compiled, _cubin_bytes)[:_TOP],
        "spilling": _top(report.results, _spilled),
        "variants": [_result_json(result) for result in report.results],
        "errors": [_error_json(one) for one in report.errors],
        "error": _error_json(error) if error else None,
    }
    if reproduction is not None:
        data["reproduced"] = [result.to_json() for result in reproduction.results]
    return data


def _top(results: Sequence[VariantResult], measure: Callable[[VariantResult], float]) -> list[str]:
    """Return the ids of what a measure is not zero for, the greatest first."""
    some = [result for result in results if measure(result)]
    return [result.variant.id for result in sorted(some, key=lambda result: -measure(result))]


def _cubin_bytes(result: VariantResult) -> int:
    return result.artifact.cubin_bytes if result.artifact else 0


def _spilled(result: VariantResult) -> int:
    return spill_bytes(result.artifact) if result.artifact else 0


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
        "saved_s": round(result.saved_s, 3),
        "reason": result.reason,
        "explanation": result.explanation.to_json() if result.explanation else None,
        "action_key": result.action_key,
        "digest": artifact.digest if artifact else None,
        "cubin_bytes": artifact.cubin_bytes if artifact else None,
        "kernels": [kernel_to_json(kernel) for kernel in artifact.kernels] if artifact else [],
        "pallas_kernels": sum(one.origin == "mosaic" for one in artifact.kernels)
        if artifact
        else 0,
        "xla_kernels": xla_kernels(artifact),
        "warnings": [one.to_json() for one in result.diagnostics],
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
