"""Pairs the variants of one side with the variants of the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pallasc.analysis.compare.sides import Side, Subject


@dataclass(frozen=True, slots=True)
class Pair:
    """Two variants to compare; one is None if its side lacks it."""

    first: Subject | None
    second: Subject | None

    @property
    def label(self) -> str:
        """The id of both, or `one → other`."""
        names: dict[str, str] = {}
        for each in filter(None, (self.first, self.second)):
            names.setdefault(each.identity, each.id)
        return " → ".join(names.values())


def align(first: Side, second: Side, *, by_parameters: bool = False) -> list[Pair]:
    """Return the pairs of two sides, in the order of the first side, then of the second.

    Variants pair by id. A single variant on each side pairs regardless of its id. `by_parameters`
    pairs two selections from one spec: parameters that have no value in common are the subject of
    the comparison, and variants pair by the other parameters, kernel and target.
    """
    if len(first.variants) == len(second.variants) == 1:
        return [Pair(*first.variants.values(), *second.variants.values())]
    if not by_parameters:
        return _by_key(_by_identity(first), _by_identity(second))
    ignored = _disjoint(first.variants.values(), second.variants.values())
    return _by_key(_keyed(first, ignored), _keyed(second, ignored))


def _by_key(first: Mapping[str, Subject], second: Mapping[str, Subject]) -> list[Pair]:
    pairs = [Pair(subject, second.get(key)) for key, subject in first.items()]
    return [*pairs, *(Pair(None, each) for key, each in second.items() if key not in first)]


def _by_identity(side: Side) -> dict[str, Subject]:
    return {subject.identity: subject for subject in side.variants.values()}


def _disjoint(first: Iterable[Subject], second: Iterable[Subject]) -> set[str]:
    """Return the parameters that have no value in common; `@` stands for the target."""
    values = _values(first), _values(second)
    return {name for name in values[0].keys() & values[1] if not values[0][name] & values[1][name]}


def _values(subjects: Iterable[Subject]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for subject in subjects:
        for name, value in (*subject.params.items(), ("@", subject.target), ("", subject.name)):
            values.setdefault(name, set()).add(value)
    return values


def _keyed(side: Side, ignored: set[str]) -> dict[str, Subject]:
    """Key variants by all but the ignored parameters; by id if several share that key."""
    keyed: dict[str, list[Subject]] = {}
    for subject in side.variants.values():
        parts = {**subject.params, "@": subject.target, "": subject.name}
        key = str(sorted((name, value) for name, value in parts.items() if name not in ignored))
        keyed.setdefault(key, []).append(subject)
    return {
        key if len(same) == 1 else subject.id: subject
        for key, same in keyed.items()
        for subject in same
    }
