"""Recompile variants of the store, and compare byte for byte."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from pallasc.cache.store import Store
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

Outcome = Literal["same", "different", "failed"]


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of recompiling one variant.

    Attributes:
        variant: id of the variant.
        outcome: `failed` if it did not compile this time.
        stored: digest of the artifact in the store.
        fresh: digest of the new artifact, None if it failed.
        parts: differing fields of the record, and digests of differing blobs.
        error: reason of the failure.
    """

    variant: str
    outcome: Outcome
    stored: str
    fresh: str | None = None
    parts: tuple[str, ...] = ()
    error: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {**asdict(self), "parts": list(self.parts)}


def audit(
    variants: Sequence[Variant],
    *,
    store: Store,
    sample: int | None = None,
    seed: int = 0,
    options: Options = DEFAULTS,
) -> list[AuditResult]:
    """Recompile variants of a store into an empty one, and compare.

    Args:
        variants: the variants; those that are not in the store are skipped.
        store: the store to audit.
        sample: number of variants to choose at random; all by default.
        seed: seed of the choice.
        options: how they are compiled.
    """
    with prepare(options.ptxas) as setup:
        lookup = Lookup(setup.context(store), store)
    stored: list[tuple[Variant, Artifact]] = []
    for variant in variants:
        artifact = lookup.find(lookup.requests.of(variant)).artifact
        if artifact is not None:
            stored.append((variant, artifact))
    if sample is not None and sample < len(stored):
        chosen = sorted(random.Random(seed).sample(range(len(stored)), sample))
        stored = [stored[index] for index in chosen]
    with tempfile.TemporaryDirectory(prefix="pallasc-audit-") as folder:
        report = build([v for v, _ in stored], store=Store(folder), options=options)
        if report.interrupted:
            raise KeyboardInterrupt
        return [
            _compare(variant.id, artifact, result)
            for (variant, artifact), result in zip(stored, report.results, strict=True)
        ]


def _compare(name: str, stored: Artifact, result: VariantResult) -> AuditResult:
    if result.artifact is None:
        return AuditResult(name, "failed", stored.digest, error=str(result.error))
    parts = differing_parts(stored, result.artifact)
    outcome: Outcome = "different" if parts else "same"
    return AuditResult(name, outcome, stored.digest, result.artifact.digest, parts)


def differing_parts(first: Artifact, second: Artifact) -> tuple[str, ...]:
    """Return the fields of the record, and the digests of blobs, that differ."""
    labels = sorted({*first.record, *second.record})
    fields = [label for label in labels if first.record.get(label) != second.record.get(label)]
    shared = sorted({*first.record["blobs"]} & {*second.record["blobs"]})
    return (*fields, *(key for key in shared if first.blob(key) != second.blob(key)))
