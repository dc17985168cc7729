"""A build's report as JSON, and what JUnit XML has of each variant.

A new column is a field of `VariantRow` or of `junit_properties`, here alone; the help of `pallasc
build --json` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from pallasc.cli.render.remarks import warning_count, xla_kernels
from pallasc.cli.render.result_text import spill_bytes
from pallasc.cli.terminal.screen import STATUS_COLOURS
from pallasc.errors import CorruptError
from pallasc.specs.artifacts.artifact import kernel_to_json
from pallasc.specs.artifacts.resources import resources_of

if TYPE_CHECKING:
    from pallasc.compiler.builds.report import Report, VariantResult
    from pallasc.compiler.builds.reproduce import Reproduction
    from pallasc.compiler.builds.shard import Share
    from pallasc.errors import PallascError
    from pallasc.specs.artifacts.artifact import Artifact, KernelResources
    from pallasc.specs.gpus import Target
    from pallasc.specs.templates import Scalar

_TOP = 5


def report_json(
    report: Report,
    reproduction: Reproduction | None = None,
    *,
    error: PallascError | None = None,
    share: Share | None = None,
) -> dict[str, object]:
    """Return what `--json` prints of a report, without the schema version.

    Args:
        report: what the build did.
        reproduction: what compiling twice showed, None if nothing was.
        error: what ended the whole build, if something did.
        share: what was built of all variants, None for a build without shards.
    """
    totals = dict.fromkeys(STATUS_COLOURS, 0)
    for result in report.results:
        totals[result.status] += 1
    finished = len(report.results) - totals["skipped"]
    data: dict[str, object] = {
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
        "variants": [variant_row(result) for result in report.results],
        "errors": [error_row(failed) for failed in report.errors],
        "error": error_row(error) if error else None,
        "shard": shard_row(share) if share else None,
        "remote": report.remote.to_json() if report.remote else None,
    }
    if reproduction is not None:
        data["reproduced"] = [result.to_json() for result in reproduction.results]
    return data


def shard_row(share: Share) -> dict[str, object]:
    """Return what `--json` prints of a shard."""
    return {
        "number": share.shard.number,
        "of": share.shard.of,
        "variants": len(share.variants),
        "others": share.others,
        "expected_s": share.expected_s,
        "costs_from": share.costs_from or None,
    }


def _top(results: Sequence[VariantResult], measure: Callable[[VariantResult], float]) -> list[str]:
    """Return the ids of the results with a measure other than zero, the greatest first."""
    measured = [result for result in results if measure(result)]
    return [result.variant.id for result in sorted(measured, key=lambda result: -measure(result))]


def _cubin_bytes(result: VariantResult) -> int:
    return result.artifact.cubin_bytes if result.artifact else 0


def _spilled(result: VariantResult) -> int:
    return spill_bytes(result.artifact) if result.artifact else 0


class ErrorRow(TypedDict):
    """An error, as `--json` prints it."""

    message: str
    hint: str | None
    file: str | None
    line: int | None
    column: int | None
    exit_code: int


class VariantRow(TypedDict):
    """A variant, as `--json` prints it."""

    id: str
    name: str
    params: dict[str, Scalar]
    target: str
    arch: str
    status: str
    seconds: float
    saved_s: float
    reason: str
    explanation: object
    remote: bool
    action_key: str | None
    digest: str | None
    cubin_bytes: int | None
    kernels: list[object]
    resources: dict[str, int | None] | None
    pallas_kernels: int
    xla_kernels: list[str]
    warnings: list[object]
    error: ErrorRow | None
    output: str


def variant_row(result: VariantResult) -> VariantRow:
    """Return the row of a variant; what it does not have is null or empty."""
    variant, artifact = result.variant, result.artifact
    kernels = artifact.kernels if artifact else ()
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
        "remote": result.remote,
        "action_key": result.action_key,
        "digest": artifact.digest if artifact else None,
        "cubin_bytes": artifact.cubin_bytes if artifact else None,
        "kernels": [kernel_to_json(kernel) for kernel in kernels],
        "resources": _resources(result),
        "pallas_kernels": _pallas_kernels(kernels),
        "xla_kernels": xla_kernels(artifact),
        "warnings": [diagnostic.to_json() for diagnostic in result.diagnostics],
        "error": error_row(result.error) if result.error else None,
        "output": result.output,
    }


def _resources(result: VariantResult) -> dict[str, int | None] | None:
    """Return what a variant takes, as a lock has it; None without an artifact."""
    if result.artifact is None:
        return None
    # The artifact's own figures, which are equal, are in its record, and that is not in memory.
    with suppress(CorruptError):
        return resources_of(result.artifact, _figures_of(result.variant.target))._asdict()
    return None


@cache
def _figures_of(target: Target) -> Mapping[str, Any]:
    return target.figures()


def junit_properties(result: VariantResult) -> dict[str, str]:
    """Return the properties of a variant in JUnit XML; what it does not have is left out."""
    properties = {
        "status": result.status,
        "reason": result.reason,
        "target": result.variant.target.name,
        "arch": result.variant.target.arch,
        "action_key": result.action_key or "",
        **(_figures(result.artifact) if result.artifact else {}),
        "occupancy": str((_resources(result) or {}).get("occupancy") or ""),
        "warnings": str(warning_count([result]) or ""),
    }
    return {name: value for name, value in properties.items() if value}


def _figures(artifact: Artifact) -> dict[str, str]:
    """Return the figures of an artifact; each is that of the kernel with the largest value."""
    kernels = artifact.kernels
    return {
        "digest": artifact.digest,
        "cubin_bytes": str(artifact.cubin_bytes),
        "registers": str(max((kernel.registers for kernel in kernels), default=0)),
        "spill_bytes": str(spill_bytes(artifact)),
        "smem_bytes": str(max((kernel.smem_bytes for kernel in kernels), default=0)),
        "pallas_kernels": str(_pallas_kernels(kernels)),
        "xla_kernels": ", ".join(xla_kernels(artifact)),
    }


def _pallas_kernels(kernels: Sequence[KernelResources]) -> int:
    return sum(kernel.origin == "mosaic" for kernel in kernels)


def error_row(error: PallascError) -> ErrorRow:
    """Return the row of an error."""
    place = error.location
    return {
        "message": error.message,
        "hint": error.hint,
        "file": place.file if place else None,
        "line": place.line or None if place else None,
        "column": place.column or None if place else None,
        "exit_code": error.exit_code,
    }
