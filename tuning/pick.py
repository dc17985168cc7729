"""Choose the rows of a tuning table from results, with as few configurations as possible.

For every key, at least one chosen configuration must be within the limit: at most a given
percentage slower than the best configuration for the key.

Several files may have results of different keys. A key of `tune.by` may have several contests, one
for each combination of the matrix parameters that are not in `by`. A configuration must be within
the limit in all contests of the key.

If the spec has buckets, keys are rounded to the key that names their bucket. A bucket has one row,
under that key. The row's configuration is within the limit for that key, and for as many measured
keys of the bucket as possible. The other measured keys get their own rows. If calls may be padded,
a bucket has a row only if the key that names it was measured, because calls are padded to that key.

To get few configurations, a greedy algorithm repeatedly takes the configuration that is within the
limit for the largest number of remaining keys (Chvátal, "A greedy heuristic for the set-covering
problem", 1979). Then swaps of single configurations reduce the geometric mean of the losses. All
ties go to the first configuration in canonical order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.canonical import Scalar, canonical_text
from pallasc.specs.gpus import Target, device_names
from pallasc.specs.spelling import suggestion
from pallasc.specs.tuning import Row, Tune, bucket_key, row_order
from pallasc.tuning.contest import is_surely_within
from pallasc.tuning.results import Contest, ContestKey, Results

Key = tuple[Scalar, ...]

ChangeKind = Literal["added", "changed", "measured", "dropped", "same"]
"""Change of a row; `measured`: the same configuration with new figures or another artifact."""


class TunedKernel(NamedTuple):
    """A tuned kernel of the specs.

    Attributes:
        tune: the `tune` field of its spec.
        ids: ids of all its points on the measured model.
        rows: rows of its table, for all models.
        table: the file of the table.
        shown: the name of that file in messages.
    """

    tune: Tune
    ids: set[str]
    rows: Sequence[Row]
    table: Path = Path()
    shown: str = ""


class Option(NamedTuple):
    """A configuration that was measured for a key.

    Attributes:
        row: the row that uses it.
        loss: log(its time / best time), at least 0; the largest one of all contests.
        is_within: True if it is known to be within the limit in every contest.
    """

    row: Row
    loss: float
    is_within: bool


@dataclass(slots=True)
class MeasuredKey:
    """A measured key.

    Attributes:
        key: the values of `tune.by`.
        options: its options by the canonical text of their `use`.
        use: the canonical text of the chosen `use`; None if no option is chosen.
    """

    key: Key
    options: Mapping[str, Option]
    use: str | None = None

    def is_within(self, use: str) -> bool:
        """Return True if a configuration is within the limit for this key."""
        return use in self.options and self.options[use].is_within

    @property
    def option(self) -> Option:
        """The chosen option; there must be one."""
        return self.options[self.use or ""]


class RowChange(NamedTuple):
    """A change: `row` is the new or the dropped row; `before` is None for an added row."""

    kind: ChangeKind
    row: Row
    before: Row | None


@dataclass(slots=True)
class Picked:
    """The decision on one kernel and one model of GPU.

    Attributes:
        name: the kernel.
        gpu: the model that its points were compiled for and measured on.
        keys: the measured keys in canonical order.
        rows: rows to write.
        changes: the change of each row of the table.
        unfinished: keys that were not measured completely.
        without: keys for which no chosen configuration has valid times in all contests.
        default: the configuration that has the smallest loss if it is used for every key.
        unknown: number of measured points that the spec does not have.
    """

    name: str
    gpu: str
    keys: list[MeasuredKey] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    changes: Sequence[RowChange] = ()
    unfinished: list[Key] = field(default_factory=list)
    without: list[Key] = field(default_factory=list)
    default: dict[str, Scalar] | None = None
    unknown: int = 0

    @property
    def served(self) -> list[MeasuredKey]:
        """The keys that have a row."""
        return [own for own in self.keys if own.use is not None]

    @property
    def beyond(self) -> list[Key]:
        """The keys whose configuration is not known to be within the limit."""
        return [own.key for own in self.served if not own.option.is_within]

    @property
    def uses(self) -> list[dict[str, Scalar]]:
        """The used configurations, in canonical order."""
        found = {own.use: own.option.row.use for own in self.served if own.use is not None}
        return [found[name] for name in sorted(found)]

    @property
    def configurations(self) -> dict[str, dict[str, Scalar]]:
        """The measured configurations by their canonical text, sorted by it."""
        found = {name: own.row.use for key in self.keys for name, own in key.options.items()}
        return dict(sorted(found.items()))

    def loss_percent(self) -> tuple[float, float]:
        """Return the geometric mean of the keys' losses and the largest loss, in percent."""
        losses = [own.option.loss for own in self.served] or [0.0]
        return 100 * math.expm1(statistics.fmean(losses)), 100 * math.expm1(max(losses))


def pick(
    files: Sequence[Results],
    kernels: Mapping[str, TunedKernel],
    percent: float,
    *,
    most: int | None = None,
) -> list[Picked]:
    """Choose the rows of each kernel in the results; kernels are sorted by name.

    Args:
        files: the results; their order does not matter.
        kernels: tuned kernels of the specs by name.
        percent: the limit, in percent.
        most: maximum number of configurations for a kernel, even if keys then exceed the limit.

    Raises:
        CorruptError: the last line of a file is incomplete.
        SpecError: the results do not match each other or the specs.
    """
    gpu = _checked_model(files)
    contests = _contests(files)
    decided = []
    for name in sorted({contest.kernel for contest in contests.values()}):
        if name not in kernels:
            raise SpecError(
                f"{files[0].file}: no spec tunes kernel {name!r} for {gpu}.",
                hint=suggestion(name, list(kernels), otherwise="Tuned kernels")
                or "Give the specs that the job was made of.",
            )
        own = [contests[key] for key in sorted(contests) if key[0] == name]
        picked, kernel = Picked(name, gpu), kernels[name]
        _measure_keys(own, picked, kernel, percent)
        _choose(picked, most)
        _add_rows(picked, kernel.tune)
        picked.changes = _changes(picked, kernel.rows)
        decided.append(picked)
    return decided


def with_model(file: Results, models: Iterable[Target]) -> Results:
    """Add the name of the model to results if only a spec defines the model.

    Args:
        file: the results.
        models: models that specs define; their description is the GPU's name in the driver.
    """
    if file.start.model is None:
        for model in models:
            if file.start.device in device_names(model.description):
                return replace(file, start=replace(file.start, model=model.name))
    return file


# ---- checks


def _checked_model(files: Sequence[Results]) -> str:
    """Check that files are complete, from one GPU, and have points compiled for its model.

    Returns:
        The GPU's model.
    """
    first = files[0]
    for file in files:
        if file.torn:
            raise CorruptError(
                f"{file.file}: the last line was cut, so the run is incomplete.",
                hint=f"To continue it: pallasc tune run JOB -o {file.file}",
            )
        if (file.start.device, file.start.model) != (first.start.device, first.start.model):
            raise SpecError(
                f"{file.file} has results of {file.start.device}, and {first.file} of "
                f"{first.start.device}.",
                hint="Run pallasc tune pick once for each GPU; rows of other GPUs stay in the "
                "table.",
            )
    model = first.start.model
    if model is None:
        raise SpecError(
            f"{first.file} has results of {first.start.device}, which is no model of a GPU that "
            "pallasc knows.",
            hint="Add the model to the specs under 'models', with this name as its description.",
        )
    for file in files:
        targets = sorted({point.target for each in file.contests.values() for point in each})
        if targets and model not in targets:
            raise SpecError(
                f"{file.file} was measured on {model}, and its points are compiled for "
                f"{', '.join(targets)}.",
                hint=f"Rows are for the model that a variant is compiled for: add {model} to the "
                "targets of the specs, and tune it.",
            )
    return model


def _contests(files: Sequence[Results]) -> dict[ContestKey, Contest]:
    """Return the contests of all files.

    Raises:
        SpecError: two files have results of one key, or a file is given twice.
    """
    contests: dict[ContestKey, Contest] = {}
    for file in files:
        if twice := next((contests[key] for key in file.contests if key in contests), None):
            raise SpecError(
                f"{file.file} has results of {twice.kernel}, key "
                f"{canonical_text(twice.key)}, and so has another file.",
                hint="Give one of them, once; rows of keys that it lacks stay in the table.",
            )
        contests |= file.contests
    return contests


# ---- measured keys


def _measure_keys(
    contests: Sequence[Contest], picked: Picked, kernel: TunedKernel, percent: float
) -> None:
    """Set `keys`, `unfinished`, `without`, and `unknown`.

    Raises:
        SpecError: points were measured with other key parameters than the spec's.
    """
    keys: dict[str, tuple[Key, list[Contest]]] = {}
    for contest in contests:
        here = [point for point in contest if point.target == picked.gpu]
        known = {point.id: point for point in here if point.id in kernel.ids}
        picked.unknown += len(here) - len(known)
        by = kernel.tune.by
        if any(tuple(point.params[name] for name in by) != contest.key for point in known.values()):
            raise SpecError(
                f"{picked.name}: the results are for other keys than the spec's, which have 'by': "
                f"{', '.join(by) or 'nothing'}.",
                hint="Plan and measure again; the spec was changed since.",
            )
        if known:
            own = keys.setdefault(canonical_text(contest.key), (contest.key, []))[1]
            own.append(replace(contest, points=known))
    for _, (key, each) in sorted(keys.items()):
        if not all(contest.done for contest in each):
            picked.unfinished.append(key)
        elif options := _worst([_options(own, picked.gpu, kernel.tune, percent) for own in each]):
            picked.keys.append(MeasuredKey(key, options))
        else:
            picked.without.append(key)


def _options(contest: Contest, gpu: str, tune: Tune, percent: float) -> dict[str, Option]:
    """Return the options of the valid points, compared with the winner if there is one."""
    valid = contest.valid
    if not valid:
        return {}
    best = min(
        valid,
        key=lambda own: (own.id != contest.winner, bool(own.dropped), own.median_us, own.id),
    )
    options = {}
    for point in valid:
        ratios = contest.ratios(point.id, best.id)
        ratio = statistics.median(ratios) if ratios else point.median_us / best.median_us
        use = {name: point.params[name] for name in tune.over}
        options[canonical_text(use)] = Option(
            Row(gpu, contest.key, use, point.artifact, "", contest.measured(point)),
            max(0.0, math.log(ratio)),
            point is best or is_surely_within(ratios, percent, points=len(contest.points)),
        )
    return options


def _worst(contests: Sequence[Mapping[str, Option]]) -> dict[str, Option]:
    """Return the options that all contests of a key have, with rows from the first contest."""
    shared = sorted(name for name in contests[0] if all(name in own for own in contests))
    return {
        name: contests[0][name]._replace(
            loss=max(own[name].loss for own in contests),
            is_within=all(own[name].is_within for own in contests),
        )
        for name in shared
    }


# ---- rows


def _choose(picked: Picked, most: int | None) -> None:
    """Set the configuration that each key uses, and the best one for all keys."""
    losses = [{name: own.loss for name, own in key.options.items()} for key in picked.keys]
    within = [[name for name in key.options if key.is_within(name)] for key in picked.keys]
    for name in choose(losses, within, most=1).used:
        picked.default = picked.configurations[name]
    chosen = choose(losses, within, most=most)
    for key, use in zip(picked.keys, chosen.of_key, strict=True):
        key.use = use
        if use is None:
            picked.without.append(key.key)


def _add_rows(picked: Picked, tune: Tune) -> None:
    """Set the rows. A key uses the row of its bucket if that configuration is within the limit."""
    measured = {canonical_text(own.key) for own in picked.served}
    buckets: dict[str, tuple[Key, list[MeasuredKey]]] = {}
    for own in picked.served:
        around = bucket_key(own.key, tune.by, tune.buckets)
        if around is None or (tune.pad and canonical_text(around) not in measured):
            picked.rows.append(own.option.row)
        else:
            buckets.setdefault(canonical_text(around), (around, []))[1].append(own)
    for around, group in buckets.values():
        shared = _shared_use(around, group)
        for own in group:
            own.use = shared if own.is_within(shared) else own.use
        like = [own for own in group if own.use == shared]
        figures = max(like, key=lambda own: own.key == around)
        picked.rows.append(replace(figures.option.row, key=around))
        picked.rows += [own.option.row for own in group if own.use != shared]


def _shared_use(around: Key, group: Sequence[MeasuredKey]) -> str:
    """Return the configuration of a bucket's row, which the key that names the bucket can use.

    It is the one within the limit for the most keys; of several, the one with the least loss.
    """
    end = next((own for own in group if own.key == around), None)

    def order(use: str) -> tuple[int, float, str]:
        near = [own.options[use] for own in group if own.is_within(use)]
        return -len(near), sum(option.loss for option in near), use

    uses = {own.use for own in group if own.use is not None}
    return min((u for u in uses if end is None or u == end.use or end.is_within(u)), key=order)


def _changes(picked: Picked, old: Sequence[Row]) -> list[RowChange]:
    """Return the changes of all rows of a kernel, in table order.

    Rows of other models stay, and so do rows of keys and buckets without a new row. If a measured
    key uses the row of its bucket, its own row is dropped.
    """
    before = {_row_id(row.gpu, row.key): row for row in old}
    written = {_row_id(row.gpu, row.key): row for row in picked.rows}
    gone = {_row_id(picked.gpu, own.key) for own in picked.served} - written.keys()
    after = {name: row for name, row in before.items() if name not in gone} | written
    changes = [RowChange(_kind(before.get(n), row), row, before.get(n)) for n, row in after.items()]
    changes += [RowChange("dropped", row, row) for name, row in before.items() if name in gone]
    return sorted(changes, key=lambda change: row_order(change.row))


def _kind(before: Row | None, after: Row) -> ChangeKind:
    if before is None:
        return "added"
    if canonical_text(before.use) != canonical_text(after.use):
        return "changed"
    return "same" if replace(before, place=after.place) == after else "measured"


def _row_id(gpu: str, key: Key) -> str:
    return canonical_text([gpu, key])


# ---- few configurations

UNSERVED = 1e6
"""Loss of a key for which no chosen configuration was measured; larger than any other loss."""

_MOST_ROUNDS = 20
"""Maximum number of swap rounds; usually, no swap reduces the loss after a few rounds."""

Losses = Mapping[str, float]
"""log(time / best time) of each configuration that was measured for a key."""


class Chosen(NamedTuple):
    """The configurations to use, sorted, and the one that each key uses.

    An element of `of_key` is None if no configuration in `used` was measured for that key.
    """

    used: tuple[str, ...]
    of_key: tuple[str | None, ...]


def choose(
    losses: Sequence[Losses], within: Sequence[Collection[str]], *, most: int | None = None
) -> Chosen:
    """Choose the configurations to use, and the configuration of each key.

    Args:
        losses: losses of each key by configuration.
        within: configurations within the limit for each key.
        most: maximum number of configurations, even if keys then exceed the limit.
    """
    names = sorted({name for own in losses for name in own})
    covered = {name: {key for key, own in enumerate(within) if name in own} for name in names}
    cover = greedy_cover(covered)
    if most is not None and len(cover) > most:
        cover, covered = cover[:most], {name: set() for name in names}
    used = _swapped(losses, covered, cover)
    pairs = zip(losses, within, strict=True)
    return Chosen(used, tuple(_fastest(own, near, used) for own, near in pairs))


def _fastest(losses: Losses, within: Collection[str], used: Sequence[str]) -> str | None:
    """Return the fastest used configuration within the limit for a key, else the fastest one."""
    usable = [name for name in used if name in losses]
    return min(usable, key=lambda name: (name not in within, losses[name]), default=None)


def greedy_cover(covered: Mapping[str, set[int]]) -> list[str]:
    """Return configurations that cover all keys in `covered`, in the order of the greedy choice."""
    left, chosen = set[int]().union(*covered.values()), list[str]()
    while left:
        best = max(covered, key=lambda name: len(covered[name] & left))
        chosen.append(best)
        left -= covered[best]
    for name in tuple(chosen):
        others = [other for other in chosen if other != name]
        if covered[name] <= set[int]().union(*(covered[other] for other in others)):
            chosen = others
    return chosen


def _swapped(
    losses: Sequence[Losses], covered: Mapping[str, set[int]], used: Sequence[str]
) -> tuple[str, ...]:
    """Reduce the loss by swaps that keep the number of configurations and the covered keys."""
    chosen = list(used)
    for _ in range(_MOST_ROUNDS):
        before = tuple(chosen)
        for place, name in enumerate(before):
            others = [*chosen[:place], *chosen[place + 1 :]]
            lost = [min([own[o] for o in others if o in own] or [UNSERVED]) for own in losses]
            need = covered[name].difference(*(covered[other] for other in others))
            usable = [own for own in covered if own not in others and need <= covered[own]]
            chosen[place] = min(usable, key=lambda own: _total(losses, lost, own))
        if tuple(chosen) == before:
            break
    return tuple(sorted(chosen))


def _total(losses: Sequence[Losses], lost: Sequence[float], name: str) -> float:
    """Return the keys' total loss after a configuration is added; `lost` are the losses before."""
    return sum(min(before, own.get(name, before)) for own, before in zip(losses, lost, strict=True))
