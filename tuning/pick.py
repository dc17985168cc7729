"""Rows of a table from results: as few configurations as are within the limit for every key.

Results of several files are merged; the rounds of a contest in several files all count. A key of
`tune.by` may have several contests, one for each combination of the matrix parameters that are not
in `by`; a row must be good in all of them.

A bucket gets one row, which is also the row of the exact key that names the bucket. It uses the
configuration that is within the limit for most of its keys, including that key; a key that it does
not suit gets its own row. If calls may be padded, a bucket has a row only if the key that names it
was measured, because calls are padded to it. A bucket's old row stays while a key that uses it is
not measured, and serves the keys that it suits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.canonical import canonical_text
from pallasc.specs.gpus import Target, device_names
from pallasc.specs.spelling import suggestion
from pallasc.specs.templates import Scalar
from pallasc.specs.tuning import Measured, Row, Tune, bucket_key, key_text, row_order
from pallasc.tuning.choose import choose
from pallasc.tuning.contest import is_surely_within
from pallasc.tuning.results import Contest, PointResults, Results

Key = tuple[Scalar, ...]

ChangeKind = Literal["added", "changed", "measured", "dropped", "same"]
"""Change of a row; `measured`: new figures or another artifact of the same variant."""


class TunedKernel(NamedTuple):
    """A tuned kernel of the specs.

    Attributes:
        tune: the `tune` field of its spec.
        ids: ids of all its points on the measured model.
        rows: rows of its table, for all models.
        keys: keys of all these points; if None, they are unknown, and any key is allowed.
    """

    tune: Tune
    ids: Collection[str]
    rows: Sequence[Row]
    keys: Collection[Key] | None = None


class Option(NamedTuple):
    """A configuration that was measured for a key.

    Attributes:
        use: the label of each parameter of `over`.
        loss: log(its time / best time), at least 0; the largest over all contests.
        is_within: True if it is certainly within the limit in every contest.
        artifact: digest of the measured artifact.
        measured: its figures.
    """

    use: dict[str, Scalar]
    loss: float
    is_within: bool
    artifact: str
    measured: Measured


class MeasuredKey(NamedTuple):
    """A key with its options by `use_id`, and the id of the option that it uses."""

    key: Key
    options: Mapping[str, Option]
    use: str = ""

    def is_within(self, use: str) -> bool:
        """Return True if a configuration is within the limit for this key."""
        return use in self.options and self.options[use].is_within

    @property
    def option(self) -> Option:
        """The option that it uses."""
        return self.options[self.use]


class RowChange(NamedTuple):
    """A change of a row: the new row, or the dropped one; `before` is None for an added row."""

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
        served: keys that have a row.
        unserved: keys for which no used configuration was measured.
        unfinished: keys that were not measured completely.
        without: keys for which no configuration has valid times in all contests.
        is_smallest: True if fewer configurations cannot be within the limit for every key.
        default: the configuration that loses least if it must serve every key.
        unknown: number of measured points that the spec does not have.
    """

    name: str
    gpu: str
    keys: list[MeasuredKey] = field(default_factory=list)
    rows: tuple[Row, ...] = ()
    changes: Sequence[RowChange] = ()
    served: list[MeasuredKey] = field(default_factory=list)
    unserved: list[Key] = field(default_factory=list)
    unfinished: list[Key] = field(default_factory=list)
    without: list[Key] = field(default_factory=list)
    is_smallest: bool = True
    default: dict[str, Scalar] | None = None
    unknown: int = 0

    @property
    def uses(self) -> list[dict[str, Scalar]]:
        """The used configurations, in canonical order."""
        found = {own.use: own.option.use for own in self.served}
        return [found[name] for name in sorted(found)]

    @property
    def configurations(self) -> dict[str, dict[str, Scalar]]:
        """The measured configurations by `use_id`, in canonical order."""
        found = {name: own.use for key in self.keys for name, own in key.options.items()}
        return dict(sorted(found.items()))

    @property
    def beyond(self) -> list[Key]:
        """The keys that lose, or may lose, more than the limit."""
        return [own.key for own in self.served if not own.option.is_within]

    def loss_percent(self) -> tuple[float, float]:
        """Return the geometric mean of the keys' losses and the largest loss, in percent."""
        losses = [own.option.loss for own in self.served] or [0.0]
        return 100 * math.expm1(statistics.fmean(losses)), 100 * math.expm1(max(losses))


def use_id(use: Mapping[str, Scalar]) -> str:
    """Return the id of a configuration; 1 and true differ."""
    return canonical_text(dict(use))


def pick(
    files: Sequence[Results],
    kernels: Mapping[str, TunedKernel],
    percent: float,
    *,
    most: int | None = None,
) -> list[Picked]:
    """Decide on each kernel in the results, sorted by name.

    Args:
        files: the results; their order does not matter.
        kernels: tuned kernels of the specs by name.
        percent: how much slower than the best of a key a configuration may be.
        most: maximum number of configurations for a kernel; keys then lose more if necessary.

    Raises:
        CorruptError: the end of a file is missing.
        SpecError: the results do not match each other or the specs.
    """
    _check_files(files)
    files = sorted(files, key=_file_order)
    gpu = files[0].start.model or ""
    names = {contest.kernel for file in files for contest in file.contests.values()}
    return [
        _picked(files, Picked(name, gpu), _known_kernel(files[0], name, kernels), percent, most)
        for name in sorted(names)
    ]


def with_model(file: Results, models: Iterable[Target]) -> Results:
    """Add the name of the model to results if only the specs know that GPU.

    Args:
        file: the results.
        models: models of the specs; a description is the GPU's name in the driver.
    """
    if file.start.model is None:
        for model in models:
            if file.start.device in device_names(model.description):
                return replace(file, start=replace(file.start, model=model.name))
    return file


# ---- checks


def _check_files(files: Sequence[Results]) -> None:
    """Check that files are complete, for one GPU model, and compatible."""
    first = files[0]
    for file in files:
        if file.torn:
            raise CorruptError(
                f"{file.file}: the last line was cut, so the run did not come to its end.",
                hint=f"Go on with it: pallasc tune run JOB -o {file.file}",
            )
        if (file.start.device, file.start.model) != (first.start.device, first.start.model):
            raise SpecError(
                f"{file.file} has results of {file.start.device}, and {first.file} of "
                f"{first.start.device}.",
                hint="Run pallasc tune pick once for each GPU; rows of other GPUs stay in the "
                "table.",
            )
    if first.start.model is None:
        raise SpecError(
            f"{first.file} has results of {first.start.device}, which is no model of a GPU that "
            "pallasc knows.",
            hint="Add the model to the specs under 'models', with this name as its description.",
        )
    _check_targets(files, first.start.model)
    _check_same_artifacts(files)
    _check_apart(files)


def _check_targets(files: Sequence[Results], model: str) -> None:
    for file in files:
        targets = sorted({point.target for _, point in _points(file)})
        if targets and model not in targets:
            raise SpecError(
                f"{file.file} was measured on {model}, and its points are compiled for "
                f"{', '.join(targets)}.",
                hint=f"Rows are for the model that a variant is compiled for: add {model} to the "
                "targets of the specs, and tune it.",
            )


def _check_same_artifacts(files: Sequence[Results]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for file in files:
        for _, point in _points(file):
            before, digest = seen.setdefault(point.id, (file.file, point.artifact))
            if digest != point.artifact:
                raise SpecError(
                    f"{point.id} was measured as artifact {digest[:12]}… in {before}, and as "
                    f"{point.artifact[:12]}… in {file.file}.",
                    hint="Give the results of one toolchain and one state of the specs.",
                )


def _check_apart(files: Sequence[Results]) -> None:
    """Check that no round is in two files, where it would count twice."""
    seen: dict[str, int] = {}
    for place, file in enumerate(files):
        for contest in file.contests.values():
            for round_ in contest.rounds.values():
                other = seen.setdefault(round_.check, place)
                if other != place:
                    raise SpecError(
                        f"{files[other].file} and {file.file} have the same round of "
                        f"{contest.kernel}, which would count twice.",
                        hint="One of them is a copy of the other, or goes on from one: give the "
                        "one that has more.",
                    )


def _known_kernel(file: Results, name: str, kernels: Mapping[str, TunedKernel]) -> TunedKernel:
    if name not in kernels:
        raise SpecError(
            f"{file.file}: no spec tunes kernel {name!r} for {file.start.model}.",
            hint=suggestion(name, list(kernels), otherwise="Tuned kernels")
            or "Give the specs that the job was made of.",
        )
    return kernels[name]


def _check_age(name: str, change: RowChange, tune: Tune) -> None:
    """Check that a row is not replaced by an older one."""
    old = change.before.measured if change.before is not None else None
    new = change.row.measured
    if old is not None and new is not None and old.date > new.date:
        raise SpecError(
            f"{name}: the row of {change.row.gpu}, {key_text(tune.by, change.row.key)} is of "
            f"{old.date}, and the results are older: {new.date}.",
            location=change.before.place if change.before is not None else None,
            hint="Give newer results, or remove the row.",
        )


def _points(file: Results) -> Iterable[tuple[Contest, PointResults]]:
    for contest in file.contests.values():
        for point in contest.points.values():
            yield contest, point


# ---- what was measured


def _file_order(file: Results) -> str:
    """Return text that orders files by date and contents, not by name."""
    dates = sorted((c.start.date for c in file.contests.values() if c.start), reverse=True)
    times = [
        [*key, {name: sorted(own.times_us.items()) for name, own in contest.points.items()}]
        for key, contest in sorted(file.contests.items())
    ]
    return canonical_text([dates, file.start.job, times])


@dataclass(slots=True)
class _Joined:
    """A contest with the rounds of all files that have it, numbered from the first file on."""

    points: dict[str, PointResults] = field(default_factory=dict)
    measured: dict[str, Measured] = field(default_factory=dict)
    winners: set[str] = field(default_factory=set)
    rounds: int = 0
    done: bool = True

    def add(self, file: Results, contest: Contest, ids: Collection[str]) -> None:
        """Add the points of a file that are in `ids` and compiled for the measured model."""
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
        if contest.winner in self.points:
            self.winners.add(contest.winner or "")
        self.rounds += len(contest.rounds)
        self.done = self.done and bool(contest.done)

    def options(self, over: Iterable[str], percent: float) -> dict[str, Option]:
        """Return the options of the valid points, compared with the winner if there is one."""
        valid = [own for own in self.points.values() if own.times_us and not own.failed]
        if not valid:
            return {}
        best = min(
            valid,
            key=lambda own: (own.id not in self.winners, bool(own.dropped), own.median_us, own.id),
        )
        options = {}
        for point in valid:
            shared = sorted(point.times_us.keys() & best.times_us.keys())
            ratios = [point.times_us[number] / best.times_us[number] for number in shared]
            ratio = statistics.median(ratios) if ratios else point.median_us / best.median_us
            use = {name: point.params[name] for name in over}
            options[use_id(use)] = Option(
                use,
                max(0.0, math.log(ratio)),
                point is best or is_surely_within(ratios, percent, points=len(self.points)),
                point.artifact,
                self.measured[point.id],
            )
        return options


def _measure_keys(
    files: Sequence[Results], picked: Picked, kernel: TunedKernel, percent: float
) -> None:
    """Set `keys`, `unfinished`, `without`, and `unknown`."""
    contests: dict[tuple[str, str], tuple[Key, _Joined]] = {}
    known = 0
    for file in files:
        own = {name: c for name, c in file.contests.items() if c.kernel == picked.name}
        for name, contest in sorted(own.items()):
            contests.setdefault(name, (contest.key, _Joined()))[1].add(file, contest, kernel.ids)
            here = [p.id for p in contest.points.values() if p.target == picked.gpu]
            known += sum(id_ in kernel.ids for id_ in here)
            picked.unknown += sum(id_ not in kernel.ids for id_ in here)
    if picked.unknown and not known:
        raise SpecError(
            f"{files[0].file}: no point of {picked.name} that was measured is one of its spec any "
            "more.",
            hint="Plan and measure them again: pallasc tune plan, then pallasc tune run.",
        )
    keys: dict[str, tuple[Key, list[_Joined]]] = {}
    for _, (key, joined) in sorted(contests.items(), key=lambda item: item[0]):
        if joined.points:
            keys.setdefault(_text(key), (key, []))[1].append(joined)
    for _, (key, each) in sorted(keys.items(), key=lambda item: item[0]):
        if not all(joined.done for joined in each):
            picked.unfinished.append(key)
        elif options := _worst([own.options(kernel.tune.over, percent) for own in each]):
            picked.keys.append(MeasuredKey(key, options))
        else:
            picked.without.append(key)


def _worst(contests: Sequence[Mapping[str, Option]]) -> dict[str, Option]:
    """Return the options that all contests of a key have, with figures from the first one."""
    shared = sorted(name for name in contests[0] if all(name in own for own in contests))
    return {
        name: contests[0][name]._replace(
            loss=max(own[name].loss for own in contests),
            is_within=all(own[name].is_within for own in contests),
        )
        for name in shared
    }


# ---- rows


def _picked(
    files: Sequence[Results],
    picked: Picked,
    kernel: TunedKernel,
    percent: float,
    most: int | None,
) -> Picked:
    _measure_keys(files, picked, kernel, percent)
    names = list(picked.configurations)
    place = {name: index for index, name in enumerate(names)}
    losses = [{place[n]: own.loss for n, own in key.options.items()} for key in picked.keys]
    within = [{place[n] for n in key.options if key.is_within(n)} for key in picked.keys]
    chosen = choose(losses, within, len(names), most=most)
    for own in choose(losses, within, len(names), most=1).columns:
        picked.default = picked.configurations[names[own]]
    pairs = list(zip(picked.keys, chosen.of_key, strict=True))
    picked.unserved = [key.key for key, index in pairs if index is None]
    picked.is_smallest = chosen.is_smallest and not picked.unserved
    served = [key._replace(use=names[index]) for key, index in pairs if index is not None]
    _add_rows(picked, served, kernel)
    picked.changes = _changes(picked, kernel.rows)
    for change in picked.changes:
        _check_age(picked.name, change, kernel.tune)
    return picked


def _add_rows(picked: Picked, served: Sequence[MeasuredKey], kernel: TunedKernel) -> None:
    """Set the rows, and the configurations that the keys use."""
    tune = kernel.tune
    kept = _kept_rows(picked.gpu, [own.key for own in served], kernel)
    known = {_text(own.key) for own in served} | kept.keys()
    groups: dict[str, tuple[Key | None, list[MeasuredKey]]] = {}
    for own in served:
        around = _bucket(own.key, tune)
        if around is not None and tune.pad and _text(around) not in known:
            around = None
        name = canonical_text([around is None, list(own.key if around is None else around)])
        groups.setdefault(name, (around, []))[1].append(own)
    rows: list[Row] = []
    for around, group in groups.values():
        stays = None if around is None else kept.get(_text(around))
        shared = None
        if around is not None:
            shared = use_id(stays.use) if stays is not None else _shared_use(around, group)
        group = [
            own._replace(use=shared) if shared is not None and own.is_within(shared) else own
            for own in group
        ]
        if around is not None and stays is None:
            like = [own for own in group if own.use == shared]
            figures = max(like, key=lambda own: (own.key == around, _sizes(own.key)))
            rows.append(_row(picked.gpu, around, figures.option))
        rows += [_row(picked.gpu, own.key, own.option) for own in group if own.use != shared]
        picked.served += group
    picked.rows = tuple(rows)


def _shared_use(around: Key, group: Sequence[MeasuredKey]) -> str:
    """Return the configuration of a bucket: one that the key naming the bucket may use.

    Of these, it is the one within the limit for most keys, then the one that loses least.
    """
    end = next((own for own in group if own.key == around), None)

    def order(use: str) -> tuple[int, float, str]:
        near = [own.options[use] for own in group if own.is_within(use)]
        return -len(near), sum(option.loss for option in near), use

    allowed = {
        own.use for own in group if end is None or own.use == end.use or end.is_within(own.use)
    }
    return min(allowed, key=order)


def _kept_rows(gpu: str, measured: Collection[Key], kernel: TunedKernel) -> dict[str, Row]:
    """Return the old rows of buckets to keep, by the text of their keys.

    A bucket's row is replaced if the key that names it was measured. If the spec has no such key,
    it is replaced if all keys without another row were measured.
    """
    tune, done = kernel.tune, set(map(_text, measured))
    own = {_text(row.key): row for row in kernel.rows if row.gpu == gpu and tune.buckets}
    waiting = {
        _text(around)
        for key in kernel.keys or ()
        if _text(key) not in done
        and (around := _bucket(key, tune)) is not None
        and (_text(key) == _text(around) or _text(key) not in own)
    }
    return {
        name: row
        for name, row in own.items()
        if name not in done and (kernel.keys is None or name in waiting)
    }


def _changes(picked: Picked, old: Sequence[Row]) -> list[RowChange]:
    """Return the changes of all rows of a kernel, in table order.

    Rows of other models stay, and so do rows of keys and buckets without a decision. A measured key
    that uses its bucket's row has no other row.
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
    return "same" if before == after else "measured"


def _row(gpu: str, key: Key, option: Option) -> Row:
    return Row(gpu, key, option.use, option.artifact, "", option.measured)


def _bucket(key: Key, tune: Tune) -> Key | None:
    return bucket_key(key, tune.by, tune.buckets, tune.rounding) if tune.buckets else None


def _row_id(gpu: str, key: Key) -> str:
    return canonical_text([gpu, list(key)])


def _text(key: Key) -> str:
    """Return a distinct text for each key; 1 and true differ."""
    return canonical_text(list(key))


def _sizes(key: Key) -> list[float]:
    return [float(v) if isinstance(v, int | float) else 0.0 for v in key]
