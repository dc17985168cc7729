"""Which variants a shard has: a function of the costs record and of a variant's own id.

* The variants of the record are divided by the rule "longest first": each goes to the shard that
  has the least to do afterwards. The first variant for an architecture also costs the start of a
  worker for it, so that shards keep to an architecture unless others would wait.
* A variant that the record lacks goes to the shard that a digest of its id names.

Neither depends on the list of a job: every variant is in exactly one shard also where the lists of
the jobs differ.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pallasc.compiler.shards.costs import Costs
from pallasc.errors import SpecError
from pallasc.specs.gpus import DEFAULT_MODELS, MODELS
from pallasc.specs.spec import Variant

RULE = 1
"""Version of the rule; parts of shards that were divided by different rules do not fit together."""

MOST_SHARDS = 10_000
START_MS = 2500
"""What the first variant for an architecture costs besides: its worker imports JAX."""

_SHARD = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


class Shard(NamedTuple):
    """One of several shards.

    Attributes:
        number: its number, from 1.
        of: how many there are.
    """

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def parse_shard(text: str) -> Shard:
    """Return the shard that a text such as `3/8` names.

    Raises:
        SpecError: it names none.
    """
    found = _SHARD.fullmatch(text)
    if found is None:
        raise SpecError(
            f"--shard must be K/N, such as 3/8, got {text!r}.",
            hint="K is the number of this shard, from 1, and N is how many there are.",
        )
    shard = Shard(int(found[1]), int(found[2]))
    if not 1 <= shard.of <= MOST_SHARDS:
        raise SpecError(f"--shard {text}: there are 1 to {MOST_SHARDS:,} shards, got {shard.of:,}.")
    if not 1 <= shard.number <= shard.of:
        hint = "Shards are numbered from 1: add 1 to a number that starts at 0."
        raise SpecError(
            f"--shard {text}: of {shard.of:,} shards, the first is 1/{shard.of} and the last "
            f"{shard.of}/{shard.of}.",
            hint=hint if shard.number == 0 else None,
        )
    return shard


class Division:
    """Divides variants between shards.

    Args:
        costs: the record; the same in all jobs.
        shards: how many shards there are.
    """

    def __init__(self, costs: Costs, shards: int) -> None:
        self.costs = costs
        self.shards = shards
        self._recorded = assign(costs.milliseconds, shards)

    def shard_of(self, variant_id: str) -> int:
        """Return the number of a variant's shard, from 1."""
        recorded = self._recorded.get(variant_id)
        return _by_digest(variant_id, self.shards) if recorded is None else recorded

    def knows(self, variant_id: str) -> bool:
        """Tell whether the record has a variant."""
        return variant_id in self._recorded

    def expected_s(self, variant_ids: Iterable[str]) -> float:
        """Return how long variants take one after the other, as far as the record knows."""
        known = [name for name in variant_ids if name in self._recorded]
        starts = len({architecture_of(name) for name in known})
        costs_ms = self.costs.milliseconds
        return (sum(costs_ms[name] for name in known) + START_MS * starts) / 1000


class Share(NamedTuple):
    """The part of a list of variants that one shard has.

    Attributes:
        shard: the shard.
        variants: its variants, in the order of the list.
        listed: all variants of the list.
        unknown: how many variants of the list the record lacks.
        expected_s: how long its variants take, as far as the record knows.
        costs: the record.
    """

    shard: Shard
    variants: tuple[Variant, ...]
    listed: tuple[Variant, ...]
    unknown: int
    expected_s: float
    costs: Costs


def share_of(shard: Shard, variants: Sequence[Variant], costs: Costs) -> Share:
    """Return the variants of a shard."""
    division = Division(costs, shard.of)
    names = [variant.id for variant in variants]
    pairs = zip(variants, names, strict=True)
    own = tuple(variant for variant, name in pairs if division.shard_of(name) == shard.number)
    unknown = sum(not division.knows(name) for name in names)
    expected_s = division.expected_s(variant.id for variant in own)
    return Share(shard, own, tuple(variants), unknown, expected_s, costs)


def assign(costs_ms: Mapping[str, int], shards: int) -> dict[str, int]:
    """Return the shard of each variant of a record, numbered from 1.

    Args:
        costs_ms: compile times in milliseconds by id.
        shards: how many shards there are.
    """
    loads_ms = [0] * shards
    groups_of: list[set[str]] = [set() for _ in loads_ms]
    # Loads only grow, so an entry whose load is no longer that of its shard is out of date.
    by_load = [(0, index) for index in range(shards)]
    by_group: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    assigned = {}
    for name in sorted(costs_ms, key=lambda name: (-costs_ms[name], name)):
        group = architecture_of(name)
        candidates = [(load_ms + START_MS, index) for load_ms, index in _first(by_load, loads_ms)]
        candidates += _first(by_group[group], loads_ms)
        load_ms, chosen = min(candidates)
        loads_ms[chosen] = load_ms + costs_ms[name]
        groups_of[chosen].add(group)
        heapq.heappush(by_load, (loads_ms[chosen], chosen))
        for each in groups_of[chosen]:
            heapq.heappush(by_group[each], (loads_ms[chosen], chosen))
        assigned[name] = chosen + 1
    return assigned


def _first(heap: list[tuple[int, int]], loads_ms: Sequence[int]) -> list[tuple[int, int]]:
    """Return the smallest entry of a heap that is up to date; none if there is none."""
    while heap and loads_ms[heap[0][1]] != heap[0][0]:
        heapq.heappop(heap)
    return heap[:1]


def architecture_of(variant_id: str) -> str:
    """Return the architecture that an id names by its target; for a user's own model, the model."""
    target = variant_id.rpartition("@")[2]
    model = MODELS.get(DEFAULT_MODELS.get(target, target))
    return target if model is None else model.arch


def _by_digest(variant_id: str, shards: int) -> int:
    found = hashlib.sha256(variant_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(found[:8], "big") % shards + 1
