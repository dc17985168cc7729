"""Hold the rows of tables to what was compiled: a row is for the artifact that was measured.

A row may choose several variants, such as those of a bucket, or of points that differ in parameters
which `by` leaves out. One of them was measured: one whose key is the row's where there are any
(`Tuning.stands`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pallasc.compiler.builds.report import VariantResult
from pallasc.errors import NotCachedError, SpecError
from pallasc.specs.canonical import digest
from pallasc.specs.lock import table_key
from pallasc.specs.spec import Variant
from pallasc.specs.tuning import Row, Tuning, check_padding, key_text, tuned_digest_text


class Standing(NamedTuple):
    """A row, and a variant that it may have been measured of."""

    row: Row
    tuning: Tuning


def standing(variant: Variant) -> Standing | None:
    """Return the row that may have been measured of a variant, None where there is none."""
    tuning = variant.tuning
    if tuning is None or not tuning.stands or not tuning.rows:
        return None
    return Standing(tuning.rows[0], tuning)


def tables_of(variants: Iterable[Variant]) -> dict[str, str]:
    """Return the digest of how kernels are tuned for their targets, by `table_key`."""
    digests: dict[str, str] = {}
    for variant in variants:
        tuning, model = variant.tuning, variant.target.name
        if tuning is None or table_key(variant.name, model) in digests:
            continue
        rows = [row for row in tuning.table if row.gpu == model]
        text = tuned_digest_text(tuning, rows)
        digests[table_key(variant.name, model)] = digest(text.encode())
    return digests


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


class RowCheck:
    """Compares the digests of rows with those of artifacts, as results come in.

    Where only some of the variants that a row may have been measured of are built, it is not known
    to be of another artifact.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._found: set[int] = set()

    def error(self, result: VariantResult) -> NotCachedError | None:
        """Return the error of a result whose row is of another artifact, None if there is none."""
        own = standing(result.variant)
        if own is None or own.row.artifact is None or result.artifact is None:
            return None
        name = id(own.row)
        self._seen[name] = self._seen.get(name, 0) + 1
        if result.artifact.digest == own.row.artifact:
            self._found.add(name)
        if name in self._found or self._seen[name] < own.tuning.stands:
            return None
        by = own.tuning.by
        return NotCachedError(
            f"{result.variant.id}: the row for {own.row.gpu}, {key_text(by, own.row.key)} is of "
            f"artifact {own.row.artifact}, and the variant is compiled to "
            f"{result.artifact.digest}.",
            location=own.row.place,
            hint="Where the toolchain or a source has changed and the times still hold, take "
            "today's digests with: pallasc tune renew SPECS. Else tune these points again.",
            reason="its row is of another artifact",
            kind="not as tuned",
        )
