"""The log of uses: what builds hit, missed and made, without SQLite on their way.

A build keeps its events in memory and publishes them at its end as one file `uses/` random name, a
record of kind `uses`. `fold` counts them into `stat/totals` and the index, and removes the files.
The totals name the files that they count, so a fold that dies half way counts nothing twice.

    event = { "kind": "hit" | "miss" | "made", "time": seconds, "key": action-key | "",
              "about": about | null, "seconds": number }

`seconds` is what compiling took, for a hit too where its manifest tells. What a killed build had in
memory is lost: it is for statistics. What was used last the modification times of records say.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pallasc.cache import files, format
from pallasc.cache.about import About, seconds_of
from pallasc.cache.folders import Folders
from pallasc.cache.leases import Lease
from pallasc.cache.manifests import is_seconds
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from sqlite_utils import Database

    from pallasc.cache.index import Index
    from pallasc.cache.store import Store

FOLDER, TOTALS = "uses", "stat/totals"
_NAME = format.sha256(b"pallasc totals")
_KINDS = ("hit", "miss", "made")
_USE = """
UPDATE artifacts SET
    hits = hits + ?, last_use_ns = max(last_use_ns, ?), created_ns = min(created_ns, ?)
WHERE key = ?
"""
_MOST = 2**62
MAX_AGE_S = 30 * 86_400.0
"""Uses that nobody could fold for so long, as where locks do not work, are dropped by pruning."""


class Session:
    """What one build does with a store: holds what it uses, and logs it.

    Nothing in here raises for the disk. Use it as a context manager around a build: at its end the
    log is published and the lease released.

    Args:
        store: the store that is used.
        now_s: the clock.
    """

    def __init__(self, store: Store, *, now_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now_s = now_s
        self._lease = Lease(store.folders)
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def hit(self, action_key: str, *, about: About | None = None, seconds: float = 0.0) -> None:
        """Note that an artifact was found; it is held until the session ends.

        Args:
            action_key: what was found.
            about: who asked for it.
            seconds: what compiling it once took, if that is known.
        """
        self._lease.use(format.check_name(action_key))
        self._note("hit", action_key, about, seconds)

    def miss(self, *, about: About | None = None) -> None:
        """Note that something was not found."""
        self._note("miss", "", about, 0.0)

    def made(self, action_key: str, *, seconds: float, about: About | None = None) -> None:
        """Note that an artifact was compiled and published; it is held until the session ends."""
        self._lease.use(format.check_name(action_key))
        self._note("made", action_key, about, seconds)

    def close(self) -> None:
        """Publish the log and hold nothing any more."""
        self.flush()
        self._lease.release()

    def flush(self) -> None:
        """Publish what was noted so far."""
        events, self._events = self._events, []
        if not events:
            return
        name = os.urandom(32).hex()
        data, _ = format.encode(format.USES, name, {"events": events})
        folders = self._store.folders
        with contextlib.suppress(OSError), files.temporary(folders, data) as place:
            files.publish_first(folders, place, f"{FOLDER}/{name}")

    def _note(self, kind: str, key: str, about: About | None, seconds: float) -> None:
        told = None if about is None else about.to_json()
        self._events.append(
            {"kind": kind, "time": self._now_s(), "key": key, "about": told, "seconds": seconds}
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over all builds that used a store, since it began or was last cleared.

    Attributes:
        since: the time of the first event, in seconds since the epoch; 0 before any.
        hits, misses, made: how many of each.
        saved_s: what compiling the hits would have taken, as far as that is known.
        spent_s: what compiling took.
    """

    since: float = 0.0
    hits: int = 0
    misses: int = 0
    made: int = 0
    saved_s: float = 0.0
    spent_s: float = 0.0

    def plus(self, event: dict[str, Any], seconds: float) -> Totals:
        """Return the totals with one more event."""
        since = min(self.since or event["time"], event["time"])
        if event["kind"] == "hit":
            return replace(self, since=since, hits=self.hits + 1, saved_s=self.saved_s + seconds)
        if event["kind"] == "made":
            return replace(self, since=since, made=self.made + 1, spent_s=self.spent_s + seconds)
        return replace(self, since=since, misses=self.misses + 1)


def fold(store: Store, index: Index) -> Totals:
    """Count the uses that were logged into the totals and the index, and return the totals.

    Args:
        store: the store.
        index: its index. Only one that lasts takes the uses out of the log.
    """
    folders, keep = store.folders, False
    try:
        totals, folded = _load(folders)
    except OSError:  # then they must not be written anew
        totals, folded, keep = Totals(), frozenset(), True
    names: list[str] = []
    events: list[dict[str, Any]] = []
    for name in _names(folders):
        if name not in folded:
            events += _events(folders, name)
        names.append(name)
    costs = dict(index.read("SELECT key, compile_s FROM artifacts WHERE compile_s > 0"))
    for event in events:
        if event["key"] and event["seconds"]:
            costs[event["key"]] = event["seconds"]
    for event in events:
        totals = totals.plus(event, event["seconds"] or costs.get(event["key"], 0.0))
    if not keep and index.durable and names:
        _count(index, events)
        if index.durable:  # still, after the writing
            _save(folders, totals, names)
    return totals


def _save(folders: Folders, totals: Totals, names: list[str]) -> None:
    """Write the totals, then remove what they count."""
    data, _ = format.encode(format.TOTALS, _NAME, {**asdict(totals), "folded": sorted(names)})
    with contextlib.suppress(OSError):
        with files.temporary(folders, data) as place:
            files.publish_last(folders, place, TOTALS)
        folders.sync("stat")
        for name in names:
            with contextlib.suppress(OSError):
                folders.unlink(f"{FOLDER}/{name}")


def _count(index: Index, events: Iterable[dict[str, Any]]) -> None:
    listed = [event for event in events if event["key"]]

    from pallasc.cache.refresh import add_about

    def work(database: Database) -> None:
        uses = [
            (event["kind"] == "hit", int(event["time"] * 1e9), event["key"]) for event in listed
        ]
        database.conn.executemany(_USE, ((hit, at_ns, at_ns, key) for hit, at_ns, key in uses))
        told = [{**(event["about"] or {}), "seconds": event["seconds"]} for event in listed]
        keys = [event["key"] for event in listed]
        add_about(database, zip(keys, told, strict=True))

    if listed:
        index.write(work)


def _names(folders: Folders) -> list[str]:
    with contextlib.suppress(OSError):
        return [name for name in folders.names(FOLDER) if format.is_name(name)]
    return []


def _events(folders: Folders, name: str) -> list[dict[str, Any]]:
    """Return the events of one file; none if it is damaged or cannot be read."""
    with contextlib.suppress(OSError, CorruptError):
        place = f"{FOLDER}/{name}"
        found = files.read(folders, place, limit_bytes=format.MAX_RECORD_BYTES)
        if found is not None and not found.fault:
            return decode_events(name, found.data)
    return []


def decode_events(name: str, data: bytes) -> list[dict[str, Any]]:
    """Return the events that the bytes of `uses/` name say.

    Raises:
        CorruptError: if they are no such record.
    """
    body, _ = format.decode(format.USES, name, data)
    try:
        if body.keys() != {"events"}:
            raise ValueError("unknown fields")
        return [_checked(event) for event in body["events"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{format.USES} {name}: not a list of events: {error}") from error


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of the right form.

    Raises:
        ValueError: it is not one.
    """
    key, about = event["key"], event["about"]
    if event["kind"] not in _KINDS or not (key == "" or format.is_name(key)):
        raise ValueError("no event")
    if not is_seconds(event["time"]):
        raise ValueError("no time")
    when = float(event["time"])
    return {
        "kind": event["kind"],
        "time": when,
        "key": key,
        "about": about if isinstance(about, dict) else None,
        "seconds": seconds_of(event["seconds"]),
    }


def _load(folders: Folders) -> tuple[Totals, frozenset[str]]:
    """Return the totals and the names of the files that they count; none if that is damaged.

    Raises:
        OSError: if they cannot be read.
    """
    found = files.read(folders, TOTALS, limit_bytes=format.MAX_RECORD_BYTES)
    with contextlib.suppress(CorruptError):
        if found is not None and not found.fault:
            return decode_totals(found.data)
    return Totals(), frozenset()


def decode_totals(data: bytes) -> tuple[Totals, frozenset[str]]:
    """Return what the bytes of `stat/totals` say: the totals, the names of the files they count.

    Raises:
        CorruptError: if they are no such record.
    """
    body, _ = format.decode(format.TOTALS, _NAME, data)
    fields = {field.name for field in dataclass_fields(Totals)}
    counts: list[Any] = [body.get(name) for name in ("hits", "misses", "made")]
    sums: list[Any] = [body.get(name) for name in ("saved_s", "spent_s")]
    folded = body.get("folded")
    if (
        body.keys() != {*fields, "folded"}
        or not is_seconds(body["since"])
        or not all(type(count) is int and 0 <= count < _MOST for count in counts)
        or not all(type(each) in (int, float) and 0 <= each < _MOST for each in sums)
        or not isinstance(folded, list)
        or not all(isinstance(name, str) and format.is_name(name) for name in folded)
    ):
        raise CorruptError(f"{format.TOTALS}: not the totals of a store")
    return Totals(**{name: body[name] for name in fields}), frozenset(folded)
