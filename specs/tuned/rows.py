"""Rows of a table from what was measured: one for each key, or a bucket's and its exceptions.

A bucket's row is also that of the exact key that the bucket is named after. It uses the chosen
configuration that is within the limit for most of the bucket's keys, for that one among them; a key
for which it is not has a row of its own, which goes before the bucket's. Where calls may be padded,
a bucket has a row only if the key that it is named after was measured, as calls are padded to it.
A row that keys use which were not measured now (`kept`) stays, and serves those that it suits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallasc.specs.canonical import canonical_text
from pallasc.specs.templates import Scalar
from pallasc.specs.tuned.choose import choose
from pallasc.specs.tuned.kept import kept_rows
from pallasc.specs.tuned.measured import MeasuredKernel, MeasuredKey, Option, use_id
from pallasc.specs.tuned.padded import is_served
from pallasc.specs.tuning import Row, Tune, bucket_key


class Served(NamedTuple):
    """A key and what it uses.

    Attributes:
        key: the key with all that was measured.
        use: the configuration, by `use_id`.
        padded: the variant of its bucket's end serves it, too.
    """

    key: MeasuredKey
    use: str
    padded: bool = False

    @property
    def option(self) -> Option:
        """What was measured of it."""
        return self.key.options[self.use]


@dataclass(frozen=True, slots=True)
class Picked:
    """What is used of a kernel on a model of GPU.

    Attributes:
        kernel: what was measured.
        rows: the rows of its table that are written.
        served: its keys that have a row, with what they use.
        unserved: keys of which no configuration that is used was measured.
        is_smallest: no fewer configurations are within the limit for every key.
        default: what loses least where one configuration is used for every key, None without keys.
    """

    kernel: MeasuredKernel
    rows: tuple[Row, ...]
    served: tuple[Served, ...]
    unserved: tuple[MeasuredKey, ...]
    is_smallest: bool
    default: dict[str, Scalar] | None

    @property
    def uses(self) -> list[dict[str, Scalar]]:
        """The configurations that are used, in canonical order."""
        found = {own.use: own.option.use for own in self.served}
        return [found[name] for name in sorted(found)]

    @property
    def configurations(self) -> int:
        """How many configurations were measured."""
        return len({name for key in self.kernel.keys for name in key.options})

    @property
    def artifacts(self) -> int:
        """How many artifacts its keys use."""
        return len({own.option.artifact for own in self.served})

    @property
    def measured_artifacts(self) -> int:
        """How many artifacts were measured."""
        return len({own.artifact for key in self.kernel.keys for own in key.options.values()})

    @property
    def beyond(self) -> list[Served]:
        """The keys that lose more than the limit, or may."""
        return [own for own in self.served if not own.option.is_within]

    @property
    def mean_loss_percent(self) -> float:
        """The geometric mean of what keys lose, in percent."""
        losses = [own.option.loss for own in self.served]
        return 100 * math.expm1(sum(losses) / len(losses)) if losses else 0.0

    @property
    def worst_loss_percent(self) -> float:
        """What the key loses that loses most, in percent."""
        return 100 * math.expm1(max((own.option.loss for own in self.served), default=0.0))


def pick_rows(
    kernel: MeasuredKernel,
    tune: Tune,
    percent: float,
    *,
    most: int | None = None,
    old: Sequence[Row] = (),
    keys: Collection[_Key] | None = None,
) -> Picked:
    """Return the rows of a kernel with as few configurations as serve all keys within the limit.

    Args:
        kernel: what was measured.
        tune: of its spec.
        percent: the limit.
        most: how many configurations may be used; keys then lose more where they must.
        old: the rows that its table has.
        keys: all of its spec, None where they are not known.
    """
    names = sorted({name for key in kernel.keys for name in key.options})
    place = {name: index for index, name in enumerate(names)}
    losses = [{place[n]: own.loss for n, own in key.options.items()} for key in kernel.keys]
    within = [{place[n] for n, own in key.options.items() if own.is_within} for key in kernel.keys]
    chosen = choose(losses, within, len(names), most=most)
    one = choose(losses, within, len(names), most=1).columns
    pairs = list(zip(kernel.keys, chosen.of_key, strict=True))
    used = [(key, names[i]) for key, i in pairs if i is not None]
    of_gpu = [row for row in old if row.gpu == kernel.gpu]
    kept = kept_rows(of_gpu, [key.key for key, _ in used], tune, keys)
    rows, served = list[Row](), list[Served]()
    for around, group in _buckets(used, tune, kept):
        stays = kept.get(canonical_text(list(around))) if around is not None else None
        if stays is not None:
            use: str | None = use_id(stays.use)
        else:
            use = _shared(around, group, tune, percent) if around is not None else None
        own = [_served(key, name, around, use, group, tune, percent) for key, name in group]
        rows += _rows(kernel.gpu, None if stays else around, own, use)
        served += own
    return Picked(
        kernel=kernel,
        rows=tuple(rows),
        served=tuple(served),
        unserved=tuple(key for key, index in pairs if index is None),
        is_smallest=chosen.is_smallest and len(served) == len(pairs),
        default=_use(kernel, names[one[0]]) if one else None,
    )


_Key = tuple[Scalar, ...]
_Group = list[tuple[MeasuredKey, str]]
"""Keys of a bucket, each with the configuration that was chosen for it alone."""


def _buckets(
    chosen: _Group, tune: Tune, kept: Mapping[str, Row]
) -> list[tuple[_Key | None, _Group]]:
    """Return the keys by their buckets; those that are in none each by itself, with None."""
    groups: dict[str, tuple[_Key | None, _Group]] = {}
    known = {canonical_text(list(key.key)) for key, _ in chosen} | kept.keys()
    for key, name in chosen:
        around = bucket_key(key.key, tune.by, tune.buckets, tune.rounding) if tune.buckets else None
        if around is not None and tune.pad and canonical_text(list(around)) not in known:
            around = None
        own = [around is None, list(key.key if around is None else around)]
        groups.setdefault(canonical_text(own), (around, []))[1].append((key, name))
    return list(groups.values())


def _shared(around: _Key, group: _Group, tune: Tune, percent: float) -> str:
    """Return the configuration of a bucket: one that the key it is named after may use.

    Of these, the one whose variant serves most keys by padding, then the one that is within the
    limit for most keys, then the one with which least is lost.
    """
    end = _end(around, group)
    own = next((name for key, name in group if key is end), None)

    def order(name: str) -> tuple[int, int, float, str]:
        padded = end is not None and sum(
            is_served(key, end, name, tune, percent) for key, _ in group
        )
        near = [key.options[name] for key, _ in group if _is_within(key, name)]
        return -padded, -len(near), sum(option.loss for option in near), name

    used = {name for _, name in group}
    allowed = [name for name in used if end is None or name == own or _is_within(end, name)]
    return min(allowed, key=order)


def _served(
    key: MeasuredKey,
    name: str,
    around: _Key | None,
    shared: str | None,
    group: _Group,
    tune: Tune,
    percent: float,
) -> Served:
    """Return what a key uses beside its bucket's configuration."""
    if around is None or shared is None:
        return Served(key, name)
    end = _end(around, group)
    use = shared if _is_within(key, shared) else name
    padded = end is not None and use == shared and is_served(key, end, shared, tune, percent)
    return Served(key, use, padded)


def _rows(gpu: str, around: _Key | None, served: Sequence[Served], shared: str | None) -> list[Row]:
    """Return the row of a bucket, and those of keys that use something else.

    The bucket's figures are those of the key that it is named after, else of the largest that
    uses its configuration. Without `around` there is no such row, or it stays as it is.
    """
    if around is None:
        return [_row(gpu, own.key.key, own.option) for own in served if own.use != shared]
    like = [own for own in served if own.use == shared]
    figures = max(like, key=lambda own: (own.key.key == around, _sizes(own.key)))
    others = [_row(gpu, own.key.key, own.option) for own in served if own.use != shared]
    return [_row(gpu, around, figures.option), *others]


def _row(gpu: str, key: _Key, option: Option) -> Row:
    return Row(gpu, key, option.use, option.artifact, "", option.measured)


def _end(around: _Key, group: _Group) -> MeasuredKey | None:
    return next((key for key, _ in group if key.key == around), None)


def _is_within(key: MeasuredKey, name: str) -> bool:
    return name in key.options and key.options[name].is_within


def _sizes(key: MeasuredKey) -> list[float]:
    return [float(v) if isinstance(v, int | float) else 0.0 for v in key.key]


def _use(kernel: MeasuredKernel, name: str) -> dict[str, Scalar]:
    return next(key.options[name].use for key in kernel.keys if name in key.options)
