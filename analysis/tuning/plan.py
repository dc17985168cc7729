"""Plan a job: compile all points, drop what is not worth measuring, write the rest as a bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pallasc.analysis.metrics.kernel_metrics import all_metrics
from pallasc.analysis.tuning.facts import Facts, facts_of
from pallasc.analysis.tuning.rules import (
    DEFAULT_SHARE,
    KINDS,
    Dropped,
    Key,
    Kind,
    Point,
    Pruned,
    prune,
)
from pallasc.compiler.builds.build import build
from pallasc.compiler.builds.bundling import JobPoint, WrittenJob, write_job
from pallasc.compiler.builds.options import DEFAULTS, Options
from pallasc.compiler.builds.report import OnEvent, Report, VariantResult
from pallasc.compiler.references.comparison import Samples, sample_references
from pallasc.errors import (
    BudgetError,
    CompileError,
    NotCachedError,
    PallascError,
    SpecError,
    ToolError,
)
from pallasc.specs.bundle.compress import DEFAULT_LEVEL, check_level
from pallasc.specs.plain_text import one_line
from pallasc.specs.spec import Variant
from pallasc.specs.tuning import key_text

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.collect import Selection

_LISTED = 3
"""Different errors of a key that are named; all of them are told as they come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How a job is planned.

    Attributes:
        share: how many of a key's points are kept at most, as a part of all of them.
        most: the same as a number, None for no limit.
        level: compression level of zstd, 1 to 22.
        build: how points are compiled; it always goes on after a failure.
    """

    share: float = DEFAULT_SHARE
    most: int | None = None
    level: int = DEFAULT_LEVEL
    build: Options = DEFAULTS


class LostKey(NamedTuple):
    """A key of which no point is left.

    Attributes:
        variant: its first point.
        rules: how many points each rule dropped, in words.
        reasons: the first lines of their errors, each once.
    """

    variant: Variant
    rules: str
    reasons: tuple[str, ...]

    def error(self) -> CompileError:
        """Return what is said of it."""
        key = _key_text(self.variant)
        place = f"{self.variant.name} {key}".rstrip()
        return CompileError(
            f"{place} on {self.variant.target.name}: no point is left: {self.rules}; "
            f"{_listed(self.reasons)}.",
            location=self.variant.location,
            hint="Declare points that compile there, or leave that key out.",
        )


class Planned(NamedTuple):
    """A job that was planned.

    Attributes:
        report: of the build; nothing is written where it was interrupted, or no key is left.
        facts: what is known of each point, None of those that did not compile; in the order of the
            report's results, as the numbers of `pruned` count.
        pruned: which points are kept and dropped.
        samples: the reference values of the points that are kept.
        untuned: names of kernels that were left out, as they have no `tune`.
        lost: the keys of which no point is left, in the order of the specs.
        written: the job of all other keys, None where nothing is written.
    """

    report: Report
    facts: tuple[Facts | None, ...] = ()
    pruned: Pruned = Pruned((), ())
    samples: tuple[Samples, ...] = ()
    untuned: tuple[str, ...] = ()
    lost: tuple[LostKey, ...] = ()
    written: WrittenJob | None = None

    @property
    def exit_code(self) -> int:
        """130 where the build was interrupted, 1 where a key is lost, else 0."""
        return self.report.exit_code if self.report.interrupted else int(bool(self.lost))


def plan_job(
    selection: Selection,
    output: Path,
    *,
    store: Store,
    options: PlanOptions,
    on_event: OnEvent = lambda event: None,
) -> Planned:
    """Compile points, choose among them, and write the job.

    Args:
        selection: all points, and their specs.
        output: the file of the job; an existing one is replaced atomically.
        store: the store to read and to add to.
        options: see `PlanOptions`.
        on_event: callback for the progress of the build.

    Raises:
        SpecError: no kernel is tuned, or the file cannot be written.
        ToolError: the toolchain is incomplete.
        NotCachedError: something has to be compiled, and must not be.
        CorruptError: an artifact is damaged.
    """
    check_level(options.level)
    if output.is_dir() or not output.name:
        raise SpecError(f"{output} is a folder.", hint="Name the file to write.")
    tuned = [variant for variant in selection.variants if variant.tuning is not None]
    untuned = sorted({v.name for v in selection.variants if v.tuning is None})
    if not tuned:
        raise SpecError(
            "no kernel of these specs is tuned: there is nothing to choose from.",
            hint="Say with `tune: {over: …}` which parameters change only the speed.",
        )
    report = build(tuned, store=store, options=options.build, on_event=on_event)
    if report.interrupted:
        return Planned(report)
    _raise_of_machine(report)
    facts = _facts(report)
    points = [_point(result, own) for result, own in zip(report.results, facts, strict=True)]
    pruned = prune(points, share=options.share, most=options.most)
    lost = tuple(_lost_keys(report.results, points, pruned))
    kept = [report.results[each.number] for each in pruned.kept]
    if not kept:
        return Planned(report, tuple(facts), pruned, (), tuple(untuned), lost)
    samples = sample_references(
        [(r.variant, r.artifact.plan) for r in kept if r.artifact is not None],
        memory_bytes=options.build.memory_bytes,
    )
    chosen = zip(kept, pruned.kept, samples, strict=True)
    written = write_job(
        [JobPoint(result, own.rank, values) for result, own, values in chosen],
        output,
        specs=selection.specs,
        store=store,
        level=options.level,
    )
    return Planned(report, tuple(facts), pruned, tuple(samples), tuple(untuned), lost, written)


def counts(pruned: Pruned) -> Mapping[Kind, int]:
    """Return how many points each rule dropped, in the order of the rules."""
    found = Counter(each.kind for each in pruned.dropped)
    return {kind: found[kind] for kind in KINDS if found[kind]}


def _raise_of_machine(report: Report) -> None:
    """Raise the first failure that says something of this machine, not of the point.

    Raises:
        ToolError: a tool is missing.
        NotCachedError: something has to be compiled, and must not be.
    """
    for result in report.failed:
        if isinstance(result.error, ToolError | NotCachedError):
            raise result.error


def _facts(report: Report) -> list[Facts | None]:
    artifacts = [result.artifact for result in report.results if result.artifact is not None]
    metrics = all_metrics(artifacts)
    known = {each.digest: facts_of(each, metrics[each.digest]) for each in artifacts}
    return [known[r.artifact.digest] if r.artifact is not None else None for r in report.results]


def _point(result: VariantResult, facts: Facts | None) -> Point:
    variant = result.variant
    tuning = variant.tuning
    stays = tuning is not None and (tuning.is_default or bool(tuning.rows))
    failure = None if facts is not None else _failure(result.error)
    return Point(variant.id, key_of(variant), facts, failure, stays)


def key_of(variant: Variant) -> Key:
    """Return what is equal for the points that are alternatives."""
    if variant.tuning is None:
        return (variant.name, variant.target.name)
    return (variant.name, variant.target.name, *variant.tuning.key_of(dict(variant.params)))


def _failure(error: PallascError | None) -> tuple[Kind, str]:
    """Return the rule that a failure falls under, and its first line."""
    text = one_line(error.message.splitlines()[0]) if error and error.message else "it failed"
    if isinstance(error, BudgetError):
        return "budget", text
    return ("shared memory" if "shared memory" in text.lower() else "failed"), text


def _lost_keys(
    results: Sequence[VariantResult], points: Sequence[Point], pruned: Pruned
) -> Iterator[LostKey]:
    alive = {points[each.number].key for each in pruned.kept}
    keys: dict[Key, list[Dropped]] = {}
    for each in pruned.dropped:
        if points[each.number].key not in alive:
            keys.setdefault(points[each.number].key, []).append(each)
    for dropped in keys.values():
        reasons = tuple(dict.fromkeys(each.why for each in dropped))
        yield LostKey(results[dropped[0].number].variant, _totals(dropped), reasons)


def _listed(reasons: Sequence[str]) -> str:
    """Return the first reasons, and how many more there are."""
    more = [f"and {len(reasons) - _LISTED:,} more"] if len(reasons) > _LISTED else []
    return "; ".join([*(reason.rstrip(".") for reason in reasons[:_LISTED]), *more])


def _key_text(variant: Variant) -> str:
    if variant.tuning is None:
        return ""
    return key_text(variant.tuning.by, variant.tuning.key_of(dict(variant.params)))


def _totals(dropped: Sequence[Dropped]) -> str:
    """Return `12 did not compile, 3 took too much shared memory`."""
    found = Counter(each.kind for each in dropped)
    return ", ".join(f"{found[kind]} {KINDS[kind]}" for kind in KINDS if found[kind])
