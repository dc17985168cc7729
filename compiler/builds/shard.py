"""Shards: the variants of a build divided between machines that do not communicate.

Each job builds the variants of its shard of the list, which must be the same in all jobs:

* If the lock file has costs, the longest variant is assigned first, to the shard that will then
  have the least work. A variant without a cost counts as the median. The first variant for an
  architecture also costs the start of a worker, so each shard has few architectures.
* Without costs, a digest of the variant's id determines its shard.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pallasc.errors import SpecError
from pallasc.specs.loading.lock import LOCK_FILE, read_lock
from pallasc.specs.spec import Variant

MOST_SHARDS = 1000
START_MS = 2500
"""Startup time of a worker, which imports JAX before its first variant."""

_SHARD = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", re.ASCII)


class Shard(NamedTuple):
    """One of several shards: its number from 1, and the number of shards."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class Share(NamedTuple):
    """The variants of one shard.

    Attributes:
        shard: the shard.
        variants: its variants, in the order of the list.
        others: number of variants in all other shards.
        expected_s: compile time of its variants by the recorded costs, None without costs.
        costs_from: the lock file with the costs, "" without costs.
    """

    shard: Shard
    variants: tuple[Variant, ...]
    others: int
    expected_s: float | None
    costs_from: str


def parse_shard(text: str) -> Shard:
    """Parse a shard such as `3/8`.

    Raises:
        SpecError: the text is not a shard.
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


def share_of(shard: Shard, variants: Sequence[Variant], lock_file: Path | None = None) -> Share:
    """Return the variants of a shard.

    Args:
        shard: the shard.
        variants: the variants of all shards.
        lock_file: the file with the costs; `pallasc.lock` in the current folder by default, if it
            exists.

    Raises:
        SpecError: `lock_file` does not exist, or the lock file is damaged.
    """
    lock = read_lock(lock_file or LOCK_FILE)
    if lock is None and lock_file is not None:
        raise SpecError(f"there is no {lock_file}.", hint="Name the lock file that all jobs have.")
    costs = {} if lock is None else lock.costs
    archs = {variant.id: variant.target.arch for variant in variants}
    if not costs:
        own = tuple(v for v in variants if _by_digest(v.id, shard.of) == shard.number)
        return Share(shard, own, len(variants) - len(own), None, "")
    usual_s = median(costs.values())
    costs_ms = {name: round(1000 * costs.get(name, usual_s)) for name in archs}
    shards = assign(costs_ms, archs, shard.of)
    own = tuple(variant for variant in variants if shards[variant.id] == shard.number)
    starts = len({variant.target.arch for variant in own})
    expected_ms = sum(costs_ms[variant.id] for variant in own) + START_MS * starts
    source = str(lock_file or LOCK_FILE)
    return Share(shard, own, len(variants) - len(own), expected_ms / 1000, source)


def assign(costs_ms: Mapping[str, int], archs: Mapping[str, str], shards: int) -> dict[str, int]:
    """Return the shard of each variant, numbered from 1.

    Args:
        costs_ms: compile times in milliseconds by id; integers, so that all machines agree.
        archs: architectures by id.
        shards: number of shards.
    """
    loads_ms = [0] * shards
    started: list[set[str]] = [set() for _ in loads_ms]
    assigned = {}
    for name in sorted(costs_ms, key=lambda name: (-costs_ms[name], name)):
        arch = archs[name]
        after_ms = [
            load_ms + (0 if arch in has else START_MS)
            for load_ms, has in zip(loads_ms, started, strict=True)
        ]
        chosen = after_ms.index(min(after_ms))
        loads_ms[chosen] = after_ms[chosen] + costs_ms[name]
        started[chosen].add(arch)
        assigned[name] = chosen + 1
    return assigned


def _by_digest(variant_id: str, shards: int) -> int:
    found = hashlib.sha256(variant_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(found[:8], "big") % shards + 1
