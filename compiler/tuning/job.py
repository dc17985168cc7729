"""Write a job: a bundle of the points that `pallasc tune run` measures, with ranks and references.

An ordinary bundle in all else. Rows of a table are left out: a job is what new ones come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.compiler.builds.bundling import WrittenBundle
from pallasc.compiler.builds.provenance import files_read, origins
from pallasc.compiler.builds.report import VariantResult
from pallasc.compiler.references.comparison import Samples
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.compress import DEFAULT_LEVEL
from pallasc.specs.bundle.items import Item, item_of
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.spec import Spec
from pallasc.specs.user_files import replace_file

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.specs.bundle.provenance import Provenance


class JobPoint(NamedTuple):
    """A point of a job: its result, its place among those of its key, what it is compared with."""

    result: VariantResult
    rank: int
    samples: Samples


class WrittenJob(NamedTuple):
    """A job that was written, and what it says of its origin."""

    bundle: WrittenBundle
    provenance: tuple[Provenance, ...]


def write_job(
    points: Sequence[JobPoint],
    output: Path,
    *,
    specs: Sequence[Spec],
    store: Store,
    level: int = DEFAULT_LEVEL,
) -> WrittenJob:
    """Write a job; the same points give the same bytes.

    Args:
        points: the points, each with an artifact.
        output: the file; an existing one is replaced atomically.
        specs: where the points are from.
        store: knows what compiling them read.
        level: compression level of zstd, 1 to 22.

    Raises:
        SpecError: the file cannot be written, or there is no such level.
        CorruptError: an artifact is damaged.
    """
    results = [point.result for point in points]
    artifacts = [result.artifact for result in results if result.artifact is not None]
    read = files_read(results, store)
    provenance = tuple(origins(specs, artifacts, read=read, ignore=[output]))
    data = build_bundle(map(_item, points), level=level, provenance=provenance)
    replace_file(output, data)
    ids = tuple(result.variant.id for result in results)
    with open_bundle(data) as bundle:
        written = WrittenBundle(output, None, ids, len(data), bundle.digest)
    return WrittenJob(written, provenance)


def _item(point: JobPoint) -> Item:
    variant, artifact = point.result.variant, point.result.artifact
    if artifact is None or variant.tuning is None:
        raise ValueError(f"{variant.id} is not a point that was compiled")
    return item_of(
        variant.name,
        dict(variant.params),
        artifact,
        vmap=variant.vmap,
        tuning=replace(variant.tuning, rows=(), rank=point.rank),
        reference=point.samples.data,
    )
