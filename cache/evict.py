"""Eviction: limits of a store, and the decision which files to evict. Nothing is changed on disk.

Records and packs (see `inventory.Unit`) are evicted, least recently used first, until the rest fits
the limits. A blob is evicted with the last record that names it, and a manifest with the record
that it leads to. A pack is evicted as a whole.

Some files stay even if the store remains too large: records that the caller keeps, records that a
running build holds, packs that contain such a record, young blobs, and records that name a young
blob. A young blob stays because another process may be about to publish a record that names it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pallasc.cache.inventory import Inventory, StoredFile, Unit
from pallasc.cache.uses import Held
from pallasc.errors import SpecError

DEFAULT_BYTES = 10 * 2**30
SIZE_VARIABLE, AGE_VARIABLE = "PALLASC_CACHE_SIZE", "PALLASC_CACHE_AGE"

AGE, SIZE, CLEAR = "age", "size", "clear"
"""Reasons to evict a record or a pack."""

_UNITS = {"b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_AGES_S = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_NONE = {"0", "none", "unlimited"}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_SIZE_HINT = "Write a number and a unit, such as 5GiB or 500MB; 0 or none: no limit."
_AGE_HINT = "Write hours, days or weeks: 12h, 90d, 2w, none."


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a store; None for no limit.

    Attributes:
        max_bytes: total size of blobs, records, manifests, and packs.
        max_age_s: time after which an unused file is evicted.
        grace_s: time for which a blob is kept, because a record that names it may follow.
        quarantine_s: time for which corrupt files are kept.
        clear: evict everything.
    """

    max_bytes: int | None = DEFAULT_BYTES
    max_age_s: float | None = None
    grace_s: float = 300.0
    quarantine_s: float = 7 * 86_400.0
    clear: bool = False


def read_limits(size: str | None = None, age: str | None = None) -> Limits:
    """Return the limits of `--size` and `--age`, else of the environment, else the defaults.

    Raises:
        SpecError: a text is not a size or an age.
    """
    size_name, age_name = "--size", "--age"
    if size is None:
        size_name = SIZE_VARIABLE
        size = os.environ.get(SIZE_VARIABLE, "").strip() or f"{DEFAULT_BYTES}B"
    if age is None:
        age_name = AGE_VARIABLE
        age = os.environ.get(AGE_VARIABLE, "").strip() or "none"
    return Limits(parse_size(size, what=size_name), parse_age(age, what=age_name))


def parse_size(text: str, *, what: str = "size", least_bytes: int = 1) -> int | None:
    """Return the number of bytes in a text such as `5GiB` or `500 MB`; None for no limit.

    Args:
        text: a number with its unit, or `0` or `none`.
        what: the option or variable, for messages.
        least_bytes: the smallest accepted size.

    Raises:
        SpecError: the text is not a size, or is too small.
    """
    if text.strip().lower() in _NONE:
        return None
    match = _AMOUNT.fullmatch(text)
    if match is not None and not match[2]:
        raise SpecError(f"{what}: {text!r} has no unit", hint=_SIZE_HINT)
    if match is None or match[2].lower() not in _UNITS:
        raise SpecError(f"{what}: {text!r} is not a size", hint=_SIZE_HINT)
    # Zero with a unit, or less than a byte, would silently mean that nothing is kept.
    amount = int(float(match[1]) * _UNITS[match[2].lower()])
    if amount < least_bytes:
        least = f"{least_bytes >> 20} MiB" if least_bytes > 1 else "a byte"
        raise SpecError(f"{what}: {text!r} is less than {least}", hint=_SIZE_HINT)
    return amount


def parse_age(text: str, *, what: str = "age") -> float | None:
    """Return the number of seconds in a text such as `90d`, `12h`, or `2w`; None for no limit.

    Raises:
        SpecError: the text is not an age.
    """
    if text.strip().lower() in _NONE:
        return None
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _AGES_S or float(match[1]) == 0:
        raise SpecError(f"{what}: {text!r} is not an age", hint=_AGE_HINT)
    return float(match[1]) * _AGES_S[match[2].lower()]


class Eviction(NamedTuple):
    """A record or pack to evict, the reason, and its size with its blobs and manifests."""

    unit: Unit
    reason: str
    bytes: int


class Plan(NamedTuple):
    """Files to remove.

    Attributes:
        evictions: records and packs, in eviction order.
        orphans: blobs that no remaining record names.
        dangling: manifests that lead to no remaining record, or are too old.
        bytes_before, bytes_after: size of the store.
        held: number of artifacts kept although a limit would evict them.
        complete: the inventory is complete; otherwise nothing is removed.
    """

    evictions: tuple[Eviction, ...] = ()
    orphans: tuple[str, ...] = ()
    dangling: tuple[str, ...] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    held: int = 0
    complete: bool = True


def decide(inventory: Inventory, limits: Limits, held: Held, *, now_ns: int) -> Plan:
    """Select the files to remove so that the rest fits the limits.

    A blob that is younger than the grace period, or that a running build may have published, is not
    removed yet, and neither are the records that name it.

    Args:
        inventory: contents of the store; if it has faults, nothing is removed.
        limits: the limits.
        held: files to keep: those that running builds hold, and records that the caller keeps.
        now_ns: the current time.
    """
    if inventory.faults:
        return Plan(bytes_before=inventory.bytes, bytes_after=inventory.bytes, complete=False)
    return _Decision(inventory, limits, held, now_ns).plan()


class _Decision:
    """The state of one decision: the files that remain so far."""

    def __init__(self, inventory: Inventory, limits: Limits, held: Held, now_ns: int) -> None:
        self.limits, self.held = limits, held
        self.units = [
            Unit(record.name, record.identity, frozenset({record.name}), record.facts.blobs)
            for record in inventory.records.values()
            if not record.pack
        ]
        self.units += inventory.packs
        self.manifests = [found for found in inventory.manifests.values() if not found.pack]
        self.blobs = inventory.blobs
        self.identities = {**self.blobs, **{found.name: found.identity for found in self.manifests}}
        self.total = self.before = inventory.bytes
        self.grace_ns = now_ns - round(limits.grace_s * 1e9)
        age_s = limits.max_age_s
        self.oldest_ns = None if age_s is None else now_ns - round(age_s * 1e9)
        self.references = Counter(name for unit in self.units for name in unit.blobs)
        self.keys = Counter(key for unit in self.units for key in unit.keys)
        self.leading: dict[str, list[str]] = {}
        for found in self.manifests:
            self.leading.setdefault(found.facts.action, []).append(found.name)
        self.retained: set[str] = set()

    def plan(self) -> Plan:
        self.total -= self._bytes([*self._orphans(), *self._dangling()])
        evictions = tuple(self._decide_units())
        orphans, dangling = self._orphans(), self._dangling()
        dangling += self._last_manifests({*dangling})
        held = len(self.retained)
        return Plan(evictions, tuple(orphans), tuple(dangling), self.before, self.total, held)

    def _orphans(self) -> list[str]:
        return [name for name in self.blobs if not self.references[name] and self._is_old(name)]

    def _dangling(self) -> list[str]:
        return [found.name for found in self.manifests if self._is_useless(found)]

    def _decide_units(self) -> Iterator[Eviction]:
        """Decide about each record and pack."""
        for unit in sorted(self.units, key=lambda unit: (unit.identity[1], unit[0])):
            reason = self._reason(unit.identity[1])
            if not reason:
                break
            if self._is_needed(unit):
                self.retained |= unit.keys
            else:
                yield self._evict(unit, reason)

    def _is_needed(self, unit: Unit) -> bool:
        is_held = self.held.holds(unit.keys, unit.identity[1])
        return is_held or not all(map(self._is_old, self.blobs.keys() & unit.blobs))

    def _reason(self, last_use_ns: int) -> str:
        """Return the reason to evict the next unit; "" if this unit and all later ones may stay."""
        if self.limits.clear:
            return CLEAR
        if self.oldest_ns is not None and last_use_ns < self.oldest_ns:
            return AGE
        return SIZE if self._is_too_large() else ""

    def _is_too_large(self) -> bool:
        return self.limits.max_bytes is not None and self.total > self.limits.max_bytes

    def _evict(self, unit: Unit, reason: str) -> Eviction:
        self.references.subtract(unit.blobs)
        self.keys.subtract(unit.keys)
        gone = [name for name in unit.blobs if name in self.blobs and not self.references[name]]
        orphaned = (key for key in unit.keys if not self.keys[key])
        gone += [name for key in orphaned for name in self.leading.get(key, ())]
        freed = unit.identity[2] + self._bytes(gone)
        self.total -= freed
        return Eviction(unit, reason, freed)

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.identities[name][2] for name in names)

    def _is_old(self, name: str) -> bool:
        time_ns = self.identities[name][1]
        return time_ns <= self.grace_ns and not self.held.is_recent(time_ns)

    def _is_useless(self, manifest: StoredFile) -> bool:
        if manifest.facts.action in self.keys:
            return not self.keys[manifest.facts.action]
        if not self._is_old(manifest.name):
            return False
        aged = self.oldest_ns is not None and manifest.identity[1] < self.oldest_ns
        return bool(manifest.facts.action) or aged

    def _last_manifests(self, gone: set[str]) -> list[str]:
        """If the store is still too large, select manifests without an action key, oldest first."""
        taken = []
        names = [name for name in self.leading.get("", ()) if name not in gone]
        for name in sorted(names, key=lambda name: self.identities[name][1]):
            if self._is_too_large() and self._is_old(name):
                self.total -= self._bytes([name])
                taken.append(name)
        return taken
