"""What variants cost to compile, from records that all jobs of a run have.

Sources, the first that is given or exists: a file that the user names, a lock file, nothing. A file
is a lock, or a report that `build`, `merge` or `check` printed with `--json`: it has the time of
each variant.

The record alone decides how variants are divided, so it must be the same in all jobs; its digest is
in every report and in every part, and `pallasc merge` compares it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from pallasc.cache.manifests import seconds_of
from pallasc.errors import SpecError
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.loading.lock_file import parse_lock, read_lock
from pallasc.specs.lock import LOCK_FILE, Lock
from pallasc.specs.user_files import read_regular

_MOST_BYTES = 1 << 30
_UNKNOWN_S = 1.0
"""The cost of every variant where none is known: then each shard gets as many."""


class Costs:
    """What each variant costs; the same record divides variants in the same way everywhere.

    Args:
        seconds: compile times by id.
        source: where they come from, for people; "" if there are none.
        missing: why there are none, for people.
    """

    def __init__(
        self,
        seconds: Mapping[str, float],
        source: str = "",
        *,
        missing: str = "no lock file and no --costs has any",
    ) -> None:
        self.milliseconds = {name: round(1000 * seconds[name]) for name in sorted(seconds)}
        """Whole numbers, whose sums are the same in every order."""
        self.source, self.missing = source, missing

    @cached_property
    def digest(self) -> str:
        """Digest of the record, "" if it is empty."""
        return digest(canonical_json(self.milliseconds)) if self.milliseconds else ""


NO_COSTS = Costs({})
"""The record of a project that has none yet."""


def find_costs(file: Path | None = None, lock: Path | None = None) -> Costs:
    """Return the record that a build is divided by.

    Args:
        file: a lock or a report; None for the lock.
        lock: the lock file; `pallasc.lock` in the current folder by default, if it exists.

    Raises:
        SpecError: a file that is named does not exist, cannot be read, or has no times; or the lock
            is damaged.
    """
    if file is not None:
        return _costs_of_file(file)
    place = lock or LOCK_FILE
    found = read_lock(place)
    if found is None and lock is not None:
        raise SpecError(f"there is no {lock}.", hint="Name the lock file that all jobs have.")
    return costs_of_lock(found, str(place)) if found is not None else NO_COSTS


def costs_of_lock(lock: Lock, source: str) -> Costs:
    """Return the costs of a lock's variants; one without counts as their median."""
    usual_s = median(lock.costs.values()) if lock.costs else _UNKNOWN_S
    return Costs({name: lock.costs.get(name, usual_s) for name in lock.variants}, source)


def _costs_of_file(file: Path) -> Costs:
    text = read_regular(str(file), most_bytes=_MOST_BYTES).decode("utf-8-sig", "replace")
    if not text.lstrip().startswith("{"):
        try:
            lock = parse_lock(text, str(file))
        except SpecError as error:
            raise _neither(file, error.message) from None
        if not lock.variants:
            raise _without_times(file)
        return costs_of_lock(lock, str(file))
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _neither(file, str(error)) from None
    seconds = dict(_times(report))
    if not seconds:
        raise _without_times(file)
    return Costs(seconds, str(file))


def _neither(file: Path, why: str) -> SpecError:
    return SpecError(
        f"{file} is neither a lock file nor a report: {why.rstrip('.')}.",
        hint="Write a report with: pallasc build SPECS --json > report.json",
    )


def _without_times(file: Path) -> SpecError:
    return SpecError(
        f"{file} has no variant with a time.",
        hint="Name a lock file, or a report: pallasc build SPECS --json > report.json",
    )


def _times(report: Any) -> Iterator[tuple[str, float]]:
    """Yield the ids of a report and their times; rows without a time, or malformed, are left out.

    A variant that was found costs what it cost when it was compiled; one that was checked, what
    its levels took.
    """
    rows = report.get("variants") if isinstance(report, dict) else None
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or type(row.get("id")) is not str:
            continue
        results = row.get("results")
        if isinstance(results, list):
            taken_s = sum(seconds_of(each.get("seconds")) for each in results if type(each) is dict)
        else:
            found = row.get("status") in ("hit", "lowered", "shared")
            taken_s = seconds_of(row.get("saved_s" if found else "seconds"))
        if taken_s:
            yield row["id"], taken_s
