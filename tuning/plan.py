"""Plan a job: compile all points, drop the ones not worth measuring, write the rest as a bundle.

The bundle has the ranks of points, and reference values for their results. It has no table rows,
because the job is to produce them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.analysis.metrics.kernel_metrics import all_metrics
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.bundling import WrittenBundle
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.provenance import files_read, origins
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.references.comparison import Samples, sample_references
from pallasc.errors import BudgetError, CompileError, NotCachedError, SpecError, ToolError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.compress import DEFAULT_LEVEL
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.spec import Variant
from pallasc.specs.spelling import one_line
from pallasc.specs.tuning import Tuning, key_text
from pallasc.specs.user_files import replace_file
from pallasc.tuning.rules import DEFAULT_SHARE, KINDS, Key, Kind, Point, facts_of, prune

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Selection

_LISTED = 3
"""Number of different errors of a key that its message lists."""


@dataclass(slots=True)
class Planned:
    """A planned job.

    Attributes:
        report: the report of the build.
        points: its points, in the order of the report's results.
        samples: reference values of the kept points, by id.
        untuned: names of kernels that were left out because they have no `tune`.
        written: the job; None if the build was interrupted, or no point is left.
    """

    report: Report
    points: list[Point] = field(default_factory=list)
    samples: dict[str, Samples] = field(default_factory=dict)
    untuned: Sequence[str] = ()
    written: WrittenBundle | None = None

    @property
    def pairs(self) -> list[tuple[Variant, Point]]:
        """The points with their variants."""
        return [(r.variant, p) for r, p in zip(self.report.results, self.points, strict=True)]

    @property
    def keys(self) -> list[list[tuple[Variant, Point]]]:
        """The points by key, in the order of the specs."""
        keys: dict[Key, list[tuple[Variant, Point]]] = {}
        for variant, point in self.pairs:
            keys.setdefault(point.key, []).append((variant, point))
        return list(keys.values())

    @property
    def lost(self) -> list[list[tuple[Variant, Point]]]:
        """The keys for which no point is left."""
        return [own for own in self.keys if not any(point.rank for _, point in own)]

    @property
    def exit_code(self) -> int:
        """130 if the build was interrupted, 1 if a key is lost, else 0."""
        return self.report.exit_code if self.report.interrupted else int(bool(self.lost))


def tuning_of(variant: Variant) -> Tuning:
    """Return the tuning data of a variant, whose kernel must be tuned."""
    if variant.tuning is None:
        raise ValueError(f"{variant.id} is not of a tuned kernel")
    return variant.tuning


def plan_job(
    selection: Selection,
    output: Path,
    *,
    store: Store,
    options: Options,
    share: float = DEFAULT_SHARE,
    most: int | None = None,
    on_event: OnEvent = lambda event: None,
) -> Planned:
    """Compile points, choose among them, and write the job; the same points give the same bytes.

    Args:
        selection: all points, and their specs.
        output: the file of the job; an existing one is replaced atomically.
        store: the store to read and to add to.
        options: options for the compilation.
        share: maximum share of a key's points to keep, from 0 to 1.
        most: maximum number of a key's points to keep.
        on_event: callback for the progress of the build.

    Raises:
        SpecError: no kernel is tuned, or the file cannot be written.
        ToolError: the toolchain is incomplete.
        NotCachedError: a point needs compilation, which is not allowed.
        CorruptError: an artifact is damaged.
    """
    if output.is_dir() or not output.name:
        raise SpecError(f"{output} is a folder.", hint="Name the file to write.")
    tuned = [variant for variant in selection.variants if variant.tuning is not None]
    if not tuned:
        raise SpecError(
            "no kernel of these specs is tuned: there is nothing to choose from.",
            hint="Name the parameters that change only the speed: `tune: {over: …}`.",
        )
    planned = Planned(build(tuned, store=store, options=options, on_event=on_event))
    planned.untuned = sorted({v.name for v in selection.variants if v.tuning is None})
    if planned.report.interrupted:
        return planned
    for result in planned.report.failed:
        if isinstance(result.error, ToolError | NotCachedError):  # caused by this machine
            raise result.error
    planned.points = _points(planned.report.results)
    prune(planned.points, share=share, most=most)
    results = zip(planned.report.results, planned.points, strict=True)
    kept = [(result, point) for result, point in results if point.rank]
    samples = sample_references(
        [(r.variant, r.artifact.plan) for r, _ in kept if r.artifact is not None],
        memory_bytes=options.memory_bytes,
    )
    planned.samples = {point.id: own for (_, point), own in zip(kept, samples, strict=True)}
    if kept:
        read = files_read([result for result, _ in kept], store)
        artifacts = [result.artifact for result, _ in kept if result.artifact is not None]
        origin = origins(selection.specs, artifacts, read=read, ignore=[output])
        items = [_item(result, point.rank, planned.samples[point.id]) for result, point in kept]
        data = build_bundle(items, level=DEFAULT_LEVEL, provenance=tuple(origin))
        replace_file(output, data)
        with open_bundle(data) as bundle:
            ids = tuple(planned.samples)
            planned.written = WrittenBundle(output, None, ids, len(data), bundle.digest)
    return planned


def _points(results: Sequence[VariantResult]) -> list[Point]:
    artifacts = [result.artifact for result in results if result.artifact is not None]
    metrics = all_metrics(artifacts)
    facts = {own.digest: facts_of(own, metrics[own.digest]) for own in artifacts}
    points = []
    for result in results:
        variant, tuning = result.variant, tuning_of(result.variant)
        key = (variant.name, variant.target.name, *tuning.key_of(dict(variant.params)))
        point = Point(variant.id, key, None, tuning.is_default or bool(tuning.rows))
        if result.artifact is not None:
            point.facts = facts[result.artifact.digest]
        else:
            point.drop(*_failure(result))
        points.append(point)
    return points


def _failure(result: VariantResult) -> tuple[Kind, str]:
    """Return the rule for a failure, and the first line of its message."""
    message = result.error.message if result.error is not None else ""
    text = one_line(message.splitlines()[0]) if message else "it failed"
    if isinstance(result.error, BudgetError):
        return "budget", text
    return ("shared memory" if "shared memory" in text.lower() else "failed"), text


def _item(result: VariantResult, rank: int, samples: Samples) -> Item:
    variant = result.variant
    if result.artifact is None:
        raise ValueError(f"{variant.id} was not compiled")
    return Item(
        variant.name,
        dict(variant.params),
        result.artifact,
        vmap=variant.vmap,
        tuning=replace(tuning_of(variant), rows=(), rank=rank),
        reference=samples.data,
    )


def counts(points: Sequence[Point]) -> Mapping[Kind, int]:
    """Return the number of points that each rule dropped, in the order of the rules."""
    rules = [point.rule for point in points]
    return {kind: rules.count(kind) for kind in KINDS if kind in rules}


def lost_error(own: Sequence[tuple[Variant, Point]]) -> CompileError:
    """Return the error for a key that has no point left."""
    variant, tuning = own[0][0], tuning_of(own[0][0])
    place = f"{variant.name} {key_text(tuning.by, tuning.key_of(dict(variant.params)))}".rstrip()
    totals = [f"{n} {KINDS[kind]}" for kind, n in counts([point for _, point in own]).items()]
    reasons = list(dict.fromkeys(point.why.rstrip(".") for _, point in own))
    more = [f"and {len(reasons) - _LISTED:,} more"] if len(reasons) > _LISTED else []
    return CompileError(
        f"{place} on {variant.target.name}: no point is left: {', '.join(totals)}; "
        f"{'; '.join([*reasons[:_LISTED], *more])}.",
        location=variant.location,
        hint="Declare points that compile there, or leave that key out.",
    )
