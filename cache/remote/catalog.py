"""The catalog of a namespace: which indexes there are, and what they stand on.

    catalog = { "indexes": { digest: [ bytes, time ] }, "packs": { digest: [ bytes, time ] },
                "costs": { digest: [ bytes, time ] }, "bad": { digest: time } }
    time    = seconds since 1970, whole; of a pack, when a writer last wrote or used it; of an
              index, later than that of all that were there before
    bad     = packs that a writer found damaged or gone

It changes by compare-and-swap where the server can do that; elsewhere the writer reads it back, and
writes again what another one has overwritten. What is lost all the same costs misses, no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pallasc.cache.remote import layout
from pallasc.errors import CorruptError

_PARTS = ("indexes", "packs", "costs", "bad")
_MOST_COSTS = 16
_MOST_BAD = 10_000
_LATEST = 2**40
Sized = tuple[int, int]
"""Bytes and time of an object."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What a namespace has; see the module for the fields."""

    indexes: Mapping[str, Sized] = field(default_factory=dict)
    packs: Mapping[str, Sized] = field(default_factory=dict)
    costs: Mapping[str, Sized] = field(default_factory=dict)
    bad: Mapping[str, int] = field(default_factory=dict)

    def newest(self) -> list[str]:
        """Return the digests of the indexes, newest first."""
        return sorted(self.indexes, key=lambda digest: (-self.indexes[digest][1], digest))

    def encode(self) -> bytes:
        """Return the object's bytes."""
        return layout.encode(layout.CATALOG, {name: dict(getattr(self, name)) for name in _PARTS})

    def changed(self, change: Change) -> Catalog:
        """Return this catalog after a change."""
        after = max((time for _, time in self.indexes.values()), default=0) + 1
        new = {digest: (size, max(time, after)) for digest, (size, time) in change.indexes.items()}
        indexes = {**_without(self.indexes, change.dropped_indexes), **new}
        packs = {**_without(self.packs, change.dropped_packs), **change.packs}
        for digest, time in change.used.items():
            if digest in packs and packs[digest][1] < time:
                packs[digest] = (packs[digest][0], time)
        costs = _latest({**self.costs, **change.costs}, _MOST_COSTS)
        bad = {**self.bad, **change.bad}
        kept = sorted(bad, key=lambda digest: (-bad[digest], digest))[:_MOST_BAD]
        return Catalog(indexes, packs, costs, {d: bad[d] for d in kept if d not in change.packs})


@dataclass(frozen=True, slots=True)
class Change:
    """What a writer does to a catalog; it can be done again to a newer one.

    Attributes:
        indexes: new ones.
        packs: new ones.
        costs: new ones.
        bad: packs that were found damaged or gone.
        used: packs that were read, and when.
        dropped_indexes: those that a new one holds all of, or that are gone.
        dropped_packs: those that no index needs any more.
    """

    indexes: Mapping[str, Sized] = field(default_factory=dict)
    packs: Mapping[str, Sized] = field(default_factory=dict)
    costs: Mapping[str, Sized] = field(default_factory=dict)
    bad: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    dropped_indexes: frozenset[str] = frozenset()
    dropped_packs: frozenset[str] = frozenset()

    def is_in(self, catalog: Catalog) -> bool:
        """Tell whether a catalog has all that this change adds."""
        return (
            self.indexes.keys() <= catalog.indexes.keys()
            and self.packs.keys() <= catalog.packs.keys()
            and not self.dropped_indexes & catalog.indexes.keys()
            and not self.dropped_packs & catalog.packs.keys()
        )


def _without(table: Mapping[str, Sized], dropped: frozenset[str]) -> dict[str, Sized]:
    return {digest: value for digest, value in table.items() if digest not in dropped}


def _latest(table: Mapping[str, Sized], most: int) -> dict[str, Sized]:
    kept = sorted(table, key=lambda digest: (-table[digest][1], digest))[:most]
    return {digest: table[digest] for digest in kept}


def decode_catalog(data: bytes) -> Catalog:
    """Return a catalog from an object's bytes.

    Raises:
        CorruptError: it is not a catalog of this version.
    """
    body = layout.decode(layout.CATALOG, data)
    if set(body) != set(_PARTS):
        raise CorruptError("the catalog has other parts than it should")
    sized: dict[str, dict[str, Sized]] = {}
    for name in ("indexes", "packs", "costs"):
        table = body[name]
        if not isinstance(table, dict) or not all(
            layout.is_digest(digest) and _is_sized(value) for digest, value in table.items()
        ):
            raise CorruptError(f"the catalog's {name} are not digests with bytes and time")
        sized[name] = {digest: (value[0], value[1]) for digest, value in table.items()}
    bad = body["bad"]
    if not isinstance(bad, dict) or not all(
        layout.is_digest(digest) and _is_number(time) for digest, time in bad.items()
    ):
        raise CorruptError("the catalog's bad packs are not digests with a time")
    return Catalog(sized["indexes"], sized["packs"], sized["costs"], bad)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < _LATEST


def _is_sized(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
