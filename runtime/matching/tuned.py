"""Select among variants that differ only in tuned parameters, by the rows of a tuning table.

Variants for the same arrays that differ only in tuned parameters and target are a **group**. Of a
group, a call uses the variant with a row for this GPU and the exact key, else the variant with a
row for the key's bucket, else the default. Without a default, the call is rejected. A row applies
to GPUs with the name of the GPU that it was measured on, or with the name of that GPU's model.
Tuned parameters in the call take precedence over the table: if they leave one variant in a group,
that variant is used. If nothing was tuned, all variants of a group may be used.

When a kernel is first used on an architecture, its variants are indexed by their arrays. The first
launch with new arrays searches this index; routes keep the choice for later launches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from pallasc.errors import SelectionError
from pallasc.runtime.device.devices import Device, device_models
from pallasc.runtime.matching.candidates import ArrayType, Candidate, by_arrays
from pallasc.runtime.matching.selection import (
    arch_refusal,
    cut,
    device_refusal,
    likest,
    none_fits,
    refusal,
    resource_refusal,
    several_fit,
)
from pallasc.specs.artifacts import cached_property
from pallasc.specs.tuning import (
    How,
    Row,
    chosen_by,
    is_for,
    key_text,
    names_of,
    row_order,
    use_text,
)

Types = tuple[ArrayType, ...]

_RANKS: Mapping[How | None, int] = {"row": 0, "bucket": 1, "default": 2, None: 3}


class Choice(NamedTuple):
    """The variant that a call selects, and why.

    Attributes:
        variant: its ID.
        how: `row`, the row of its key; `bucket`, the row of its bucket; `default`, because no row
            applies; `call`, parameters in the call; `only`, because there is no other.
        row: the row, None if there is none.
        padded: the arrays of the call that are padded for it, by path.
    """

    variant: str
    how: Literal["row", "bucket", "default", "call", "only"]
    row: Row | None = None
    padded: tuple[str, ...] = ()

    def __str__(self) -> str:
        texts = {
            "row": "the row of its key",
            "bucket": "the row of its bucket",
            "default": "the default",
            "call": "parameters in the call",
            "only": "the only one",
        }
        row = f", measured for {self.row.gpu}" if self.row and self.row.measured else ""
        padded = f"; {', '.join(self.padded)} padded" if self.padded else ""
        return f"{self.variant}: {texts[self.how]}{row}{padded}"


class Group(NamedTuple):
    """Variants that differ only in tuned parameters, and in their target.

    Attributes:
        ranks: the variants that may be used, the best rank first; within a rank, the one with the
            most similar model is used.
        variants: all of them.
    """

    ranks: tuple[tuple[Candidate, ...], ...]
    variants: tuple[Candidate, ...]

    def choose(self, device: Device) -> Candidate | None:
        """Return the best variant that can run on a GPU of this architecture, None if none can.

        Raises:
            SelectionError: several matrix points are left, and nothing decides between them.
        """
        for rank in self.ranks:
            able = [own for own in rank if resource_refusal(own, device) is None]
            if able:
                return able[0] if len(able) == 1 else _one(able, device)
        return None


class Selector:
    """Selection among the variants of a kernel.

    Args:
        candidates: the variants.
        given: parameters that the caller chose; the variants have them.
        whole: the selector of the whole kernel, if these are only some of its variants.

    Attributes:
        candidates, given: as above.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        given: Mapping[str, object] | None = None,
        whole: Selector | None = None,
    ) -> None:
        self.candidates = tuple(candidates)
        self.given = dict(given or {})
        self._whole = self if whole is None else whole
        self._indexes: dict[object, Mapping[Types, Sequence[Candidate]]] = {}

    def among(
        self, candidates: Iterable[Candidate], given: Mapping[str, object] | None = None
    ) -> Selector:
        """Return the selector for some of the variants."""
        return Selector(candidates, {**self.given, **(given or {})}, self._whole)

    @cached_property
    def is_tuned(self) -> bool:
        """True if rows or a default decide."""
        if self._whole is not self:
            return self._whole.is_tuned
        for own in self.candidates:
            tuning = own.tuning
            if tuning is not None and (tuning.rows or tuning.is_default):
                return True
        return False

    @cached_property
    def _over(self) -> frozenset[str]:
        """The tuned parameters."""
        if self._whole is not self:
            return self._whole._over
        tunings = (own.tuning for own in self.candidates)
        return frozenset(name for tuning in tunings if tuning for name in tuning.over)

    def point(self, candidate: Candidate) -> tuple[Any, ...]:
        """Return a variant's point in the matrix, without the parameters that rows decide."""
        return _point(candidate, self._over if self.is_tuned else ())

    def select(self, device: Device, types: Types | None = None) -> Candidate:
        """Return the variant that fits.

        Args:
            device: the GPU.
            types: the arrays; None if all variants take the same.

        Raises:
            SelectionError: no variant fits, several variants fit, or no row applies.
        """
        key = self.candidates[0].arrays if types is None else types
        variants = self._index(device).get(key)
        if variants is None:
            raise self._none_fits(device, key)
        groups = self._groups(variants, {device.name})
        if len(groups) == 1:
            chosen = groups[0].choose(device)
            if chosen is not None:
                return chosen
            raise self._refusal(groups[0], device, key)
        return self._of_several(groups, device, key)

    def fitting(self, device: Device) -> list[Candidate]:
        """Return the variants that calls can select on a GPU: one per point and set of arrays.

        Raises:
            SelectionError: no variant can run on the GPU.
        """
        groups = [
            group
            for variants in self._index(device).values()
            for group in self._groups(variants, {device.name})
        ]
        chosen = [own for group in groups if (own := group.choose(device)) is not None]
        if chosen:
            return chosen
        reasons = [device_refusal(own, device) for own in self.candidates]
        if all(reasons):
            raise none_fits(self.candidates, reasons, device)
        raise self._refusal(groups[0], device, groups[0].variants[0].arrays)

    def explain(self, chosen: Candidate, device: Device) -> Choice:
        """Return why `select` returns this variant."""
        over = set(() if chosen.tuning is None else chosen.tuning.over)
        how = _how(chosen, {device.name}) if self.is_tuned else None
        if how is not None and not (over and over <= self.given.keys()):
            return Choice(chosen.id, *how)
        return Choice(chosen.id, "call" if over & self.given.keys() else "only")

    def by_targets(self, types: Types, names: Collection[str]) -> list[Candidate]:
        """Return the variants to use on each target, when the GPU of the launch is not yet known.

        Args:
            types: the arrays.
            names: GPUs of this machine; if empty, the rows for each target's own model apply.

        Raises:
            SelectionError: no target has a row that applies, or several variants fit a target.
        """
        listed = [own for own in self.candidates if own.arrays == types]
        if not self.is_tuned:
            return listed
        targets: dict[str, list[Candidate]] = {}
        for own in listed:
            targets.setdefault(own.target, []).append(own)
        chosen: list[Candidate] = []
        refused: list[SelectionError] = []
        for target, variants in targets.items():
            is_here = not names or not names_of(target).isdisjoint(names)
            for group in self._groups(variants, names_of(target) if is_here else names):
                if not group.ranks:
                    refused.append(self._no_row(group, f"target {target}"))
                    continue
                if len(group.ranks[0]) > 1:
                    raise several_fit(group.ranks[0])
                chosen += group.ranks[0]
        if refused and not chosen:
            raise refused[0]
        return chosen

    def taken_here(self, chosen: Candidate) -> list[Candidate]:
        """Return the variants that this process's GPUs use for the arrays of a chosen variant."""
        models = device_models()
        taken = [chosen]
        for device in models if len(models) > 1 else ():
            with suppress(SelectionError):  # calls on that GPU are rejected
                taken.append(self.select(device, chosen.arrays))
        return list({id(own): own for own in taken}.values())

    def _index(self, device: Device) -> Mapping[Types, Sequence[Candidate]]:
        """Return the variants that run on a GPU's architecture, by their arrays."""
        key = device.major, device.minor
        index = self._indexes.get(key)
        if index is None:
            archs = {own.arch for own in self.candidates}
            runs = {arch for arch in archs if arch_refusal(arch, *key) is None}
            index = by_arrays(own for own in self.candidates if own.arch in runs)
            self._indexes[key] = index
        return index

    def _groups(self, variants: Sequence[Candidate], names: Collection[str]) -> list[Group]:
        is_given = not self.is_tuned or not self._over.isdisjoint(self.given)
        if len(variants) == 1:
            return [_ranked(variants, names, is_given=is_given)]
        groups: dict[object, list[Candidate]] = {}
        for own in variants:
            groups.setdefault(self.point(own), []).append(own)
        return [_ranked(group, names, is_given=is_given) for group in groups.values()]

    def _of_several(self, groups: Sequence[Group], device: Device, types: Types) -> Candidate:
        """Return the variant of the only group that can run.

        Raises:
            SelectionError: several groups can run, or none.
        """
        fitting = [
            (group, group.choose(device))
            for group in groups
            if any(device_refusal(own, device) is None for own in group.variants)
        ]
        if len(fitting) > 1:
            points = [own or group.variants[0] for group, own in fitting]
            raise several_fit(points, decided=self._over if self.is_tuned else ())
        for group, chosen in fitting:
            if chosen is None:
                raise self._refusal(group, device, types)
            return chosen
        raise self._refusal(groups[0], device, types)

    def _none_fits(self, device: Device, types: Types) -> SelectionError:
        """Return the error if none of the variants can be used, with the reason for each."""
        reasons = [refusal(own, device, types) for own in self.candidates]
        return none_fits(self.candidates, reasons, device, types)

    def _refusal(self, group: Group, device: Device, types: Types) -> SelectionError:
        """Return the error for a group in which no variant can be used."""
        if not self.is_tuned:
            return self._none_fits(device, types)
        candidates = [own for rank in group.ranks for own in rank]
        if not candidates:
            candidates = list(group.variants)
            if any(device_refusal(own, device) is None for own in candidates):
                return self._no_row(group, str(device), device.name)
        reasons = [device_refusal(own, device) for own in candidates]
        return none_fits(candidates, reasons, device, types)

    def _no_row(self, group: Group, where: str, device: str = "") -> SelectionError:
        """Return the error for a group that no row of the table covers."""
        first = group.variants[0]
        tuning = next(own.tuning for own in group.variants if own.tuning is not None)
        listed = _rows_of(self._whole.candidates, device)
        lines = "".join(f"\n  {line}" for line in cut([text for _, text in listed]))
        models = sorted({gpu for gpu, _ in listed})
        of = f" for {', '.join(models)}" if models else ""
        example = ", ".join(f"{name}={first.params[name]!r}" for name in tuning.over)
        return SelectionError(
            f"no row of the table of {first.name} is for "
            f"{key_text(tuning.by, tuning.key_of(first.params))} on {where}, and there is no "
            f"default. Its rows{of}:{lines or ' none.'}",
            hint=f"Say what to use, by name: {example}. Or tune the kernel on this GPU.",
        )


def _point(candidate: Candidate, without: Collection[str] = ()) -> tuple[Any, ...]:
    """Return a variant's point in the matrix; 1 and True are different."""
    return tuple(
        (name, type(value), value)
        for name, value in sorted(candidate.params.items())
        if name not in without
    )


def _one(candidates: Sequence[Candidate], device: Device) -> Candidate:
    if len({_point(own) for own in candidates}) > 1:
        raise several_fit(candidates)
    return likest(candidates, device)


def _how(candidate: Candidate, names: Collection[str]) -> tuple[How, Row | None] | None:
    tuning = candidate.tuning
    if tuning is None:
        return None
    return chosen_by(tuning, candidate.params, lambda row: is_for(row, names))


def _ranked(variants: Sequence[Candidate], names: Collection[str], *, is_given: bool) -> Group:
    """Rank variants as a group.

    Variants that no row or default selects come last; they are left out if the kernel is tuned and
    the call gives no tuned parameter (`is_given`).
    """
    if len(variants) == 1 and _how(variants[0], names) is not None:
        return Group((tuple(variants),), tuple(variants))
    ranks: dict[int, list[Candidate]] = {}
    for own in variants:
        how = _how(own, names)
        if how is not None or is_given or own.tuning is None:
            ranks.setdefault(_RANKS[how[0] if how else None], []).append(own)
    return Group(tuple(tuple(ranks[rank]) for rank in sorted(ranks)), tuple(variants))


def _rows_of(candidates: Iterable[Candidate], device: str) -> list[tuple[str, str]]:
    """Return model and text of the variants' rows; rows for a GPU with this name go first."""
    rows: dict[Any, tuple[str, str]] = {}
    for own in candidates:
        if own.tuning is None:
            continue
        for row in own.tuning.rows:
            order = (not is_for(row, {device}), *row_order(row))
            text = f"{row.gpu}, {key_text(own.tuning.by, row.key)}: {use_text(row.use)}"
            rows[order] = row.gpu, text
    return [rows[order] for order in sorted(rows)]
