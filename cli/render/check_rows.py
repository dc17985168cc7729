"""A check's report as JSON; the help of `pallasc check --json` describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallasc.checks.findings import to_json
from pallasc.cli.render.check_text import STATUSES
from pallasc.cli.render.report_rows import error_row, shard_row

if TYPE_CHECKING:
    from pallasc.checks.report import Report, VariantCheck
    from pallasc.compiler.builds.shard import Share
    from pallasc.errors import PallascError


def check_json(
    report: Report, *, error: PallascError | None = None, share: Share | None = None
) -> dict[str, object]:
    """Return what `--json` prints of a report, without the schema version."""
    totals = dict.fromkeys(STATUSES, 0)
    for check in report.checks:
        for result in check.results:
            totals[result.status] += 1
    return {
        "seconds": round(report.seconds, 3),
        "interrupted": report.interrupted,
        "levels": list(report.levels),
        "notes": list(report.notes),
        "totals": totals,
        "findings": sum(len(r.findings) for check in report.checks for r in check.results),
        "variants": [
            {**_row(check), "interrupted": list(report.missing(check))} for check in report.checks
        ],
        "errors": [error_row(failed) for failed in report.errors],
        "error": error_row(error) if error else None,
        "shard": shard_row(share) if share else None,
    }


def _row(check: VariantCheck) -> dict[str, object]:
    variant = check.variant
    failed = check.built.error if check.built is not None else None
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
                "error": error_row(check.errors[result.level])
                if result.level in check.errors
                else None,
            }
            for result in check.results
        ],
        "error": error_row(failed) if failed else None,
    }
