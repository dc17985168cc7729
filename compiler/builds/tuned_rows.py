"""What a build says of tuned kernels: rows measured as other artifacts, and padding."""

from __future__ import annotations

from collections.abc import Iterable

from pallasc.compiler.builds.report import VariantResult
from pallasc.errors import SpecError
from pallasc.specs.tuning import Row, check_padding


def padding_error(result: VariantResult) -> SpecError | None:
    """Return the error of a variant whose arrays cannot be padded as its spec says, else None."""
    tuning, artifact = result.variant.tuning, result.artifact
    if tuning is None or artifact is None:
        return None
    plan = artifact.plan
    shapes = {array.path: array.shape for array in (*plan.inputs, *plan.outputs)}
    try:
        check_padding(tuning.pad, dict(result.variant.params), shapes)
    except ValueError as error:
        return SpecError(
            f"{result.variant.id}: {error}.",
            location=result.variant.where("tune.pad"),
            hint="pallasc inspect SPECS --plan shows the arrays of each variant.",
        )
    return None


def stale_row_notes(results: Iterable[VariantResult]) -> list[str]:
    """Return a note for each table with rows that were measured as other artifacts than today's.

    A row counts if every variant that it chooses has an artifact, and none has the row's digest.
    """
    rows: dict[int, tuple[Row, int, list[str]]] = {}
    for result in results:
        tuning, artifact = result.variant.tuning, result.artifact
        if tuning is None or artifact is None:
            continue
        for row in tuning.rows:
            if row.artifact is not None:
                rows.setdefault(id(row), (row, tuning.sharing, []))[2].append(artifact.digest)
    stale: dict[str, list[int]] = {}
    for row, sharing, digests in rows.values():
        if len(digests) == sharing and row.artifact not in digests and row.place is not None:
            stale.setdefault(row.place.file, []).append(row.place.line)
    return [
        f"{file}:{min(lines)}: {'this row was' if len(lines) == 1 else f'{len(lines)} rows were'} "
        "measured as another artifact than the variant compiles to now; the times may not hold."
        for file, lines in sorted(stale.items())
    ]
