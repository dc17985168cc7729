"""Plan a job: compile all points, drop the ones not worth measuring, write the rest as a bundle.

The bundle has the ranks of points, and reference values for their results. It has no table rows,
because the job is to produce them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.bundling import WrittenBundle, files_read, origins, write_bundle
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.references import Samples, sample_references
from pallasc.errors import BudgetError, CompileError, NotCachedError, SpecError, ToolError
from pallasc.specs.bundle.compress import DEFAULT_LEVEL
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.spec import Variant
from pallasc.specs.spelling import one_line
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Tuning, use_text
from pallasc.tuning.rules import DEFAULT_SHARE, KINDS, Kind, Point, facts_of, prune

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Selection


@dataclass(slots=True, kw_only=True)
class JobPoint(Point):
    """A point of a job.

    Attributes:
        result: the result of its build.
        tuning: its tuning data.
        samples: its reference values, None if it is dropped.
    """

    result: VariantResult
    tuning: Tuning
    samples: Samples | None = None

    @property
    def variant(self) -> Variant:
        """Its variant."""
        return self.result.variant

    @property
    def place(self) -> dict[str, Scalar]:
        """The parameters of its key, in the order of the matrix."""
        return {name: own for name, own in self.variant.params if name in self.tuning.by}

    @property
    def use(self) -> dict[str, Scalar]:
        """All other parameters."""
        return {name: own for name, own in self.variant.params if name not in self.tuning.by}


@dataclass(slots=True)
class Planned:
    """A planned job.

    Attributes:
        report: the report of the build.
        points: its points, in the order of the report's results.
        untuned: names of kernels that were left out because they have no `tune`.
        written: the job; None if the build was interrupted, or no point is left.
    """

    report: Report
    points: list[JobPoint] = field(default_factory=list)
    untuned: Sequence[str] = ()
    written: WrittenBundle | None = None

    @property
    def keys(self) -> list[list[JobPoint]]:
        """The points by key, in the order of the specs."""
        keys: dict[object, list[JobPoint]] = {}
        for point in self.points:
            keys.setdefault(point.key, []).append(point)
        return list(keys.values())

    @property
    def lost(self) -> list[list[JobPoint]]:
        """The keys for which no point is left."""
        return [own for own in self.keys if not any(point.rank for point in own)]

    @property
    def exit_code(self) -> int:
        """130 if the build was interrupted, 1 if a key is lost, else 0."""
        return self.report.exit_code if self.report.interrupted else int(bool(self.lost))


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
    kept = [point for point in planned.points if point.rank]
    artifacts = [point.result.artifact for point in kept if point.result.artifact is not None]
    if not kept:
        return planned
    plans = [(p.variant, artifact.plan) for p, artifact in zip(kept, artifacts, strict=True)]
    samples = sample_references(plans, memory_bytes=options.memory_bytes)
    items = []
    for point, artifact, own in zip(kept, artifacts, samples, strict=True):
        point.samples, variant = own, point.variant
        tuning = replace(point.tuning, rows=(), rank=point.rank)
        facts: dict[str, Any] = {"vmap": variant.vmap, "tuning": tuning, "reference": own.data}
        items.append(Item(variant.name, dict(variant.params), artifact, **facts))
    read = files_read([point.result for point in kept], store)
    origin = origins(selection.specs, artifacts, read=read, ignore=[output])
    data = build_bundle(items, level=DEFAULT_LEVEL, provenance=tuple(origin))
    planned.written = write_bundle(output, data, [point.id for point in kept])
    return planned


def _points(results: Sequence[VariantResult]) -> list[JobPoint]:
    points = []
    for result in results:
        variant, tuning, artifact = result.variant, result.variant.tuning, result.artifact
        if tuning is None:
            raise ValueError(f"{variant.id} is not of a tuned kernel")
        point = JobPoint(
            id=variant.id,
            key=(variant.name, variant.target.name, *tuning.key_of(dict(variant.params))),
            facts=None if artifact is None else facts_of(artifact),
            stays=tuning.is_default or bool(tuning.rows),
            result=result,
            tuning=tuning,
        )
        if artifact is None:
            point.rule, point.why = _failure(result)
        points.append(point)
    return points


def _failure(result: VariantResult) -> tuple[Kind, str]:
    """Return the rule for a failure, and the first line of its message."""
    message = result.error.message if result.error is not None else ""
    text = one_line(message.splitlines()[0]) if message else "it failed"
    if isinstance(result.error, BudgetError):
        return "budget", text
    return ("shared memory" if "shared memory" in text.lower() else "failed"), text


def counts_text(points: Sequence[Point]) -> str:
    """Return the number of points that each rule dropped: `2 did not compile, 1 broke a budget`."""
    counts = Counter(point.rule for point in points)
    return ", ".join(f"{counts[kind]:,} {text}" for kind, text in KINDS.items() if counts[kind])


def lost_error(points: Sequence[JobPoint]) -> CompileError:
    """Return the error for a key that has no point left."""
    variant, place = points[0].variant, points[0].place
    name = f"{variant.name} {use_text(place)}".rstrip()
    reason = points[0].why.rstrip(".")
    return CompileError(
        f"{name} on {variant.target.name}: no point is left: {counts_text(points)}; {reason}.",
        location=variant.location,
        hint="Declare points that compile there, or leave that key out.",
    )
