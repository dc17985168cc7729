"""What files of results say of each key: the configurations that were measured, and what they lose.

The results of several files are put together: of one contest that several have, each file's rounds
are pairs of their own. A key of `tune.by` may have several contests, one for each combination of
the other parameters; what a row of a table uses must be good in all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.specs.canonical import canonical_text
from pallasc.specs.loading.tune_results import Contest, PointResults, Results
from pallasc.specs.templates import Scalar
from pallasc.specs.tuned.within import is_surely_within, surely_between
from pallasc.specs.tuning import Measured, Tune


class Option(NamedTuple):
    """A configuration that was measured for a key.

    Attributes:
        use: the label of each parameter of `over`.
        loss: log(its time / the best time), from 0; in the contest where it is largest.
        is_within: it is surely within the limit in every contest.
        artifact: digest of what was measured.
        measured: its figures.
        surely_us: its median time is surely between these, in microseconds.
    """

    use: dict[str, Scalar]
    loss: float
    is_within: bool
    artifact: str
    measured: Measured
    surely_us: tuple[float, float]


@dataclass(slots=True)
class MeasuredKey:
    """A key with its configurations, by `use_id`."""

    key: tuple[Scalar, ...]
    options: dict[str, Option] = field(default_factory=dict)

    @property
    def best(self) -> Option:
        """The configuration that loses least."""
        return min(self.options.values(), key=lambda own: own.loss)


@dataclass(slots=True)
class MeasuredKernel:
    """A kernel on one model of GPU.

    Attributes:
        name: the kernel.
        gpu: the model of GPU that its points were compiled for and measured on.
        keys: in canonical order.
        unfinished: keys that were not measured to the end.
        without: keys of which no configuration has valid times in all contests.
    """

    name: str
    gpu: str
    keys: list[MeasuredKey] = field(default_factory=list)
    unfinished: list[tuple[Scalar, ...]] = field(default_factory=list)
    without: list[tuple[Scalar, ...]] = field(default_factory=list)


def use_id(use: Mapping[str, Scalar]) -> str:
    """Return what a configuration is found by; 1 and true are two."""
    return canonical_text(dict(use))


def measured_kernels(
    files: Sequence[Results],
    tunes: Mapping[str, Tune],
    ids: Mapping[str, Collection[str]],
    percent: float,
) -> list[MeasuredKernel]:
    """Return what the files say of each kernel, in the order of their names.

    Args:
        files: of one model of GPU; their order does not matter. Points for other targets, which a
            job may have as well, do not count.
        tunes: `tune` of each kernel that they name.
        ids: of the points of each kernel; others, which its spec has no more, do not count.
        percent: the limit: how much slower than the best a configuration may be.
    """
    groups: dict[str, dict[str, list[_Joined]]] = {}
    for joined in _joined(files, ids):
        keys = groups.setdefault(joined.kernel, {})
        keys.setdefault(canonical_text(list(joined.key)), []).append(joined)
    kernels = []
    for name, keys in sorted(groups.items()):
        kernel = MeasuredKernel(name, files[0].start.model or "")
        for _, contests in sorted(keys.items()):
            _add(kernel, contests, tuple(tunes[name].over), percent)
        kernels.append(kernel)
    return kernels


@dataclass(slots=True)
class _Joined:
    """A contest with the rounds of every file that has it, numbered from the first file's on."""

    kernel: str
    key: tuple[Scalar, ...]
    points: dict[str, PointResults] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    winners: set[str] = field(default_factory=set)
    rounds: int = 0
    done: bool = True

    def add(self, file: Results, contest: Contest, ids: Collection[str]) -> None:
        """Add what a file has of it, less the points of other targets and those not in `ids`."""
        for name, point in contest.points.items():
            if point.target != file.start.model or name not in ids:
                continue
            own = self.points.setdefault(
                name, PointResults(name, point.params, point.target, point.artifact)
            )
            own.failed = own.failed or point.failed
            own.dropped = own.dropped or point.dropped
            for number, us in point.times_us.items():
                own.times_us[self.rounds + number] = us
            if point.times_us:
                figures, before = file.measured(contest, point), self.measured.get(name)
                if before is None or figures.date >= before.date:
                    self.measured[name] = figures
        if contest.winner is not None and contest.winner in self.points:
            self.winners.add(contest.winner)
        self.rounds += len(contest.rounds)
        self.done = self.done and bool(contest.done)

    @property
    def valid(self) -> list[PointResults]:
        return [own for own in self.points.values() if own.times_us and not own.failed]

    def best(self) -> PointResults:
        """Return the fastest of those that a run called the winner, else of those not dropped."""
        valid = self.valid
        usable = (
            [own for own in valid if own.id in self.winners]
            or [own for own in valid if not own.dropped]
            or valid
        )
        return min(usable, key=lambda own: (own.median_us, own.id))


def _joined(files: Sequence[Results], ids: Mapping[str, Collection[str]]) -> list[_Joined]:
    found: dict[tuple[str, str], _Joined] = {}
    for file in _in_order(files):
        for key, contest in sorted(file.contests.items()):
            own = found.setdefault(key, _Joined(contest.kernel, contest.key))
            own.add(file, contest, ids[contest.kernel])
    return [own for _, own in sorted(found.items()) if own.points]


def _in_order(files: Sequence[Results]) -> Sequence[Results]:
    """Return files in an order that neither their names nor the command line decide."""
    if len(files) == 1:
        return files
    return sorted(files, key=lambda file: (_dates(file), file.start.job, _text(file)))


def _dates(file: Results) -> list[str]:
    """Return when a file's contests were measured, the last first."""
    return sorted({own.start.date for own in file.contests.values() if own.start}, reverse=True)


def _text(file: Results) -> str:
    """Return text that tells two files apart by what they hold, not by their names."""
    times = [
        [*key, {name: sorted(own.times_us.items()) for name, own in contest.points.items()}]
        for key, contest in sorted(file.contests.items())
    ]
    return canonical_text(times)


def _add(
    kernel: MeasuredKernel, contests: Sequence[_Joined], over: Sequence[str], percent: float
) -> None:
    """Add a key of the kernel, or say why it has none."""
    key = contests[0].key
    if not all(own.done for own in contests):
        kernel.unfinished.append(key)
        return
    each = [_options(own, over, percent) if own.valid else {} for own in contests]
    shared = [name for name in each[0] if all(name in own for own in each)]
    if not shared:
        kernel.without.append(key)
        return
    options = {name: _worst([own[name] for own in each]) for name in sorted(shared)}
    kernel.keys.append(MeasuredKey(key, options))


def _options(contest: _Joined, over: Sequence[str], percent: float) -> dict[str, Option]:
    best, options = contest.best(), {}
    for point in contest.valid:
        shared = sorted(point.times_us.keys() & best.times_us.keys())
        ratios = [point.times_us[number] / best.times_us[number] for number in shared]
        ratio = statistics.median(ratios) if ratios else point.median_us / best.median_us
        use = {name: point.params[name] for name in over}
        options[use_id(use)] = Option(
            use,
            max(0.0, math.log(ratio)),
            point is best or is_surely_within(ratios, percent, points=len(contest.points)),
            point.artifact,
            contest.measured[point.id],
            surely_between(list(point.times_us.values()), points=len(contest.points)),
        )
    return options


def _worst(options: Sequence[Option]) -> Option:
    """Return what a configuration is in all contests of a key; its figures are the first's."""
    return options[0]._replace(
        loss=max(own.loss for own in options),
        is_within=all(own.is_within for own in options),
        surely_us=(
            min(own.surely_us[0] for own in options),
            max(own.surely_us[1] for own in options),
        ),
    )
