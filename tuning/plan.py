"""Plan a job: compile all points, drop those not worth measuring, and bundle the rest.

The bundle, called a job, has the ranks of points, and reference values for their results. It has no
table rows, because measuring its points produces them.

Points compete if they have the same key: the same values of `tune.by` on one target.

* A point is dropped if it does not compile, exceeds its budget, or uses more shared memory than a
  block can have.
* Of points with the same artifact, the first is kept.
* A point is dropped if its threads spill over `MOST_MORE_SPILLS` bytes more than the least spilling
  point of its key. There is no absolute limit: for large head dimensions, Tokamax's fastest
  configurations of attention spill kilobytes, and the others spill more.
* Of the rest, the best by rank are kept, at most a share of all points of the key.

The default of the spec, and the points that its table already uses, are kept if they compile: new
points are compared with them. They count toward the share, but at least one other point is kept.

A rank comes from a score: a weighted sum of the logarithms of figures relative to the other points
of the key. A score is not a time: it has no unit, and scores of two keys cannot be compared. The
weights were fitted, by pairwise logistic regression, to the winners that Tokamax 0.0.17 publishes
for H100 and B200, on half of the sampled shapes; `bench/tune.py` evaluates them on the
other half. They favor large tiles (few blocks in a grid), few spills, deep pipelines that fill
shared memory, and one tile per block over persistent blocks.

If a point launches several kernels, their spills and barriers are added up; shared memory and waves
are from the launch with the most threads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from pallasc.analysis.metrics import occupancy_of
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.bundling import WrittenBundle, files_read, origins, write_bundle
from pallasc.compiler.builds.options import Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.references import Samples, sample_references
from pallasc.errors import CompileError, NotCachedError, SpecError, ToolError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.bundle.compress import DEFAULT_LEVEL
from pallasc.specs.bundle.manifest import Item
from pallasc.specs.bundle.writer import build_bundle
from pallasc.specs.canonical import Scalar
from pallasc.specs.spec import Variant
from pallasc.specs.spelling import one_line
from pallasc.specs.tuning import Tuning, use_text

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Selection


_INIT = b"mbarrier.init"
"""Initializes a barrier in shared memory; Mosaic emits one for each barrier, without a loop."""


class Facts(NamedTuple):
    """The figures of a point.

    Attributes:
        digest: digest of its artifact.
        spill_bytes: bytes of spill stores and loads per thread, in all kernels; None if unknown.
        smem_bytes: shared memory per block.
        waves: number of times that the grid fills all multiprocessors.
        mbarriers: barriers in shared memory; a pipeline has some for each stage.
    """

    digest: str
    spill_bytes: int | None
    smem_bytes: int
    waves: float
    mbarriers: int


def facts_of(artifact: Artifact) -> Facts:
    """Return the figures of a point.

    Raises:
        CorruptError: the artifact is damaged.
    """
    launches = artifact.plan.launches
    # XLA's kernels are left out, because they do little.
    known = [launch for launch in launches if launch.origin == "mosaic"] or launches
    largest = max(known, key=lambda launch: math.prod(launch.grid) * math.prod(launch.block))
    kernel = artifact.kernel_of(largest)
    spills = [own.spill_bytes for own in artifact.kernels]
    return Facts(
        digest=artifact.digest,
        spill_bytes=None if None in spills else sum(filter(None, spills)),
        smem_bytes=kernel.smem_bytes,
        waves=occupancy_of(largest, kernel, artifact.target).waves,
        mbarriers=sum(artifact.blob(own.ptx).count(_INIT) for own in artifact.kernels if own.ptx),
    )


_FREE_SPILLS = 64
"""Bytes added to the spills before taking the logarithm, so that small spills hardly matter."""

_TERMS: tuple[tuple[float, Callable[[Facts], float | None]], ...] = (
    (-0.9, lambda facts: 1 + facts.mbarriers),
    (-1.0, lambda facts: facts.smem_bytes or None),
    (0.8, lambda facts: _FREE_SPILLS + (facts.spill_bytes or 0)),
    # Blocks in a single wave may process several tiles each, so their number means nothing.
    (1.8, lambda facts: None if _is_one_wave(facts) else facts.waves),
    (1.2, lambda facts: math.e if _is_one_wave(facts) else 1.0),
)
"""Weights, each with a function that returns the weighted figure, None if it is unknown."""


def scores(facts: Sequence[Facts]) -> list[float]:
    """Return a score for each point of a key; the lowest is the best."""
    totals = [0.0] * len(facts)
    for weight, figure in _TERMS:
        for number, value in enumerate(_relative([figure(own) for own in facts])):
            totals[number] += weight * value
    # Logarithms differ in their last bits between C libraries, and equal points must stay equal.
    return [round(total, 9) for total in totals]


def _relative(values: Sequence[float | None]) -> list[float]:
    """Return logarithms relative to the mean of the known values; unknown values become 0."""
    logarithms = [None if value is None else math.log(value) for value in values]
    known = [value for value in logarithms if value is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    return [0.0 if value is None else value - mean for value in logarithms]


def _is_one_wave(facts: Facts) -> bool:
    return facts.waves <= 1.0 + 1e-9


Kind = Literal["failed", "equal", "spills", "rank"]
KINDS: Mapping[Kind, str] = {
    "failed": "failed",
    "equal": "gave an artifact that another point gives",
    "spills": "spilled more than others",
    "rank": "ranked behind the others",
}
"""Rules that drop points, in the order of their application, and their texts in the summary."""

MOST_MORE_SPILLS = 1024
"""Bytes of spill stores and loads per thread, above the minimum of the key. Tokamax's published
winners for H100 are up to 668 bytes above it, because larger tiles are worth that. The limit is
about 1.5 times as large."""

DEFAULT_SHARE = 0.5

Key = tuple[object, ...]


@dataclass(slots=True)
class Point:
    """A point and the decision of the rules.

    Attributes:
        id: the variant's id.
        key: equal for points that are alternatives.
        facts: its figures; None if it has no artifact.
        stays: True if it is kept whenever it compiles.
        rule: the rule that drops it, None if it is kept. A point without artifact has a rule before
            `prune`.
        why: the reason in words.
        rank: its rank in its key, from 1; 0 if it is dropped.
    """

    id: str
    key: Key
    facts: Facts | None
    stays: bool = False
    rule: Kind | None = None
    why: str = ""
    rank: int = 0

    @property
    def known(self) -> Facts:
        """Its figures; the point must have an artifact."""
        if self.facts is None:
            raise ValueError(f"{self.id} has neither facts nor a rule that drops it")
        return self.facts

    def drop(self, rule: Kind, why: str) -> None:
        """Drop the point."""
        self.rule, self.why = rule, why


_P = TypeVar("_P", bound=Point)


def by_key(points: Iterable[_P]) -> list[list[_P]]:
    """Group points by key, in their order."""
    keys: dict[Key, list[_P]] = {}
    for point in points:
        keys.setdefault(point.key, []).append(point)
    return list(keys.values())


def prune(
    points: Sequence[Point], *, share: float = DEFAULT_SHARE, most: int | None = None
) -> None:
    """Drop points, and rank the others.

    Args:
        points: the points of all keys, in the order of the specs.
        share: maximum share of a key's points to keep, from 0 to 1.
        most: maximum number of a key's points to keep.
    """
    for own in by_key(points):
        _drop_equal([point for point in own if point.rule is None])
        _drop_spilling([point for point in own if point.rule is None])
        _rank([point for point in own if point.rule is None], limit(len(own), share, most))


def limit(count: int, share: float, most: int | None) -> int:
    """Return the maximum number of a key's points to keep, at least one."""
    part = max(1, math.floor(count * share + 1e-9))
    return part if most is None else min(part, most)


def _drop_equal(points: Sequence[Point]) -> None:
    """Of points with the same artifact, keep one: a point that stays, else the first."""
    first: dict[str, Point] = {}
    for point in sorted(points, key=lambda point: not point.stays):
        other = first.setdefault(point.known.digest, point)
        if other is not point:
            point.drop("equal", f"the same artifact as {other.id}")


def _drop_spilling(points: Sequence[Point]) -> None:
    spills = [point.known.spill_bytes for point in points]
    least = min((own for own in spills if own is not None), default=0)
    for point, own in zip(points, spills, strict=True):
        if (own or 0) > least + MOST_MORE_SPILLS and not point.stays:
            point.drop("spills", f"spills {own:,} bytes per thread; least of its key: {least:,}")


def _rank(points: Sequence[Point], at_most: int) -> None:
    """Rank the points that stay and the best of the others, at least one; drop the rest."""
    found = zip(scores([point.known for point in points]), points, strict=True)
    left, rank = max(1, at_most - sum(point.stays for point in points)), 0
    for place, (_, point) in enumerate(sorted(found, key=itemgetter(0)), 1):
        if point.stays or left > 0:
            left -= not point.stays
            rank += 1
            point.rank = rank
        else:
            point.drop("rank", f"rank {place} of {len(points)}")


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
        return by_key(self.points)

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
            point.drop("failed", _failure(result))
        points.append(point)
    return points


def _failure(result: VariantResult) -> str:
    """Return the first line of the message of a failure."""
    message = result.error.message if result.error is not None else ""
    return one_line(message.splitlines()[0]) if message else "it failed"


def counts_text(points: Sequence[Point]) -> str:
    """Return the number of points each rule dropped: `2 failed, 1 spilled more than others`."""
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
