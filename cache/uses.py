"""Hits, misses and compilations of each build, logged without SQLite.

A build keeps its events in memory and publishes them at its end as one file `uses/` random name, a
record of kind `uses`. `fold` counts them into `stat/totals` and the index, and removes the files.
The totals name the files that they count, so a fold that dies half way counts nothing twice.

    event = { "kind": "hit" | "miss" | "made", "time": seconds, "key": action-key | "",
              "about": about | null, "seconds": number }

`seconds` is what compiling took, for a hit too where its manifest tells. What a killed build had in
memory is lost: it is for statistics alone. The last use of a record is its modification time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from types import TracebackType
from typing import TYPE_CHECKING, Literal, cast, get_args

from pallasc.cache import files, format
from pallasc.cache.about import About, about_from_json
from pallasc.cache.folders import Folders
from pallasc.cache.leases import Lease
from pallasc.cache.manifests import is_seconds, seconds_of
from pallasc.errors import CorruptError

if TYPE_CHECKING:
    from sqlite_utils import Database

    from pallasc.cache.index import Index
    from pallasc.cache.store import Store

FOLDER, TOTALS = "uses", "stat/totals"
_NAME = format.sha256(b"pallasc totals")
_USE = """
UPDATE artifacts SET
    hits = hits + ?, last_use_ns = max(last_use_ns, ?), created_ns = min(created_ns, ?)
WHERE key = ?
"""
_MOST = 2**62
MAX_AGE_S = 30 * 86_400.0
"""Age at which pruning drops logs that were never folded, as on file systems without locks."""

Kind = Literal["hit", "miss", "made"]


@dataclass(frozen=True, slots=True)
class Event:
    """One use of a store; see the grammar above."""

    kind: Kind
    time: float
    key: str = ""
    about: About | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, object]:
        """Return it as the log holds it."""
        about = None if self.about is None else self.about.to_json()
        return {
            "kind": self.kind,
            "time": self.time,
            "key": self.key,
            "about": about,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Event:
        """Return the event that the log holds.

        Raises:
            KeyError, TypeError, ValueError: it is not an event.
        """
        kind, key, time = value["kind"], value["key"], value["time"]
        if kind not in get_args(Kind) or not isinstance(key, str):
            raise ValueError("no event")
        if key and not format.is_name(key):
            raise ValueError("no key")
        if not isinstance(time, int | float) or not is_seconds(time):
            raise ValueError("no time")
        about, seconds = about_from_json(value["about"]), seconds_of(value["seconds"])
        return cls(cast(Kind, kind), float(time), key, about, seconds)


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
        self._events: list[Event] = []

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
        self._lease.use(format.check_name(action_key), self._store.packed)
        self._note("hit", action_key, about, seconds)

    def miss(self, *, about: About | None = None) -> None:
        """Note that something was not found."""
        self._note("miss", "", about, 0.0)

    def made(self, action_key: str, *, seconds: float, about: About | None = None) -> None:
        """Note that an artifact was compiled and published; it is held until the session ends."""
        self._lease.use(format.check_name(action_key), self._store.packed)
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
        body = {"events": [event.to_json() for event in events]}
        data, _ = format.encode(format.USES, name, body)
        folders = self._store.folders
        with contextlib.suppress(OSError), files.temporary(folders, data) as place:
            files.publish_first(folders, place, f"{FOLDER}/{name}")

    def _note(self, kind: Kind, key: str, about: About | None, seconds: float) -> None:
        self._events.append(Event(kind, self._now_s(), key, about, seconds))


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

    def plus(self, event: Event, seconds: float) -> Totals:
        """Return the totals with one more event."""
        since = min(self.since or event.time, event.time)
        if event.kind == "hit":
            return replace(self, since=since, hits=self.hits + 1, saved_s=self.saved_s + seconds)
        if event.kind == "made":
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
    events: list[Event] = []
    for name in _names(folders):
        if name not in folded:
            events += _events(folders, name)
        names.append(name)
    costs = dict(index.read("SELECT key, compile_s FROM artifacts WHERE compile_s > 0"))
    for event in events:
        if event.key and event.seconds:
            costs[event.key] = event.seconds
    for event in events:
        totals = totals.plus(event, event.seconds or costs.get(event.key, 0.0))
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


def _count(index: Index, events: Sequence[Event]) -> None:
    from pallasc.cache.refresh import add_about

    listed = [event for event in events if event.key]

    def work(database: Database) -> None:
        uses = [(event.kind == "hit", int(event.time * 1e9), event.key) for event in listed]
        database.conn.executemany(_USE, ((hit, at_ns, at_ns, key) for hit, at_ns, key in uses))
        add_about(database, [(event.key, event.about, event.seconds) for event in listed])

    if listed:
        index.write(work)


def _names(folders: Folders) -> list[str]:
    with contextlib.suppress(OSError):
        return [name for name in folders.names(FOLDER) if format.is_name(name)]
    return []


def _events(folders: Folders, name: str) -> list[Event]:
    """Return the events of one file; none if it is damaged or cannot be read."""
    with contextlib.suppress(OSError, CorruptError):
        place = f"{FOLDER}/{name}"
        file = files.read(folders, place, limit_bytes=format.MAX_RECORD_BYTES)
        if file is not None and not file.fault:
            return decode_events(name, file.data)
    return []


def decode_events(name: str, data: bytes) -> list[Event]:
    """Return the events that the bytes of `uses/` name say.

    Raises:
        CorruptError: if they are not such a record.
    """
    body, _ = format.decode(format.USES, name, data)
    try:
        events = body["events"]
        if len(body) > 1 or not isinstance(events, list):
            raise ValueError("unknown fields")
        return [Event.from_json(event) for event in events]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{format.USES} {name}: not a list of events: {error}") from error


def _load(folders: Folders) -> tuple[Totals, frozenset[str]]:
    """Return the totals and the names of the files that they count; nothing if it is damaged.

    Raises:
        OSError: if they cannot be read.
    """
    file = files.read(folders, TOTALS, limit_bytes=format.MAX_RECORD_BYTES)
    with contextlib.suppress(CorruptError):
        if file is not None and not file.fault:
            return decode_totals(file.data)
    return Totals(), frozenset()


def decode_totals(data: bytes) -> tuple[Totals, frozenset[str]]:
    """Return what the bytes of `stat/totals` say: the totals, the names of the files they count.

    Raises:
        CorruptError: if they are not such a record.
    """
    body, _ = format.decode(format.TOTALS, _NAME, data)
    fields = {field.name for field in dataclass_fields(Totals)}
    folded = body.get("folded")
    if (
        body.keys() != {*fields, "folded"}
        or not is_seconds(body["since"])
        or not all(_is_number(body[name], int) for name in ("hits", "misses", "made"))
        or not all(_is_number(body[name], int, float) for name in ("saved_s", "spent_s"))
        or not isinstance(folded, list)
        or not all(isinstance(name, str) and format.is_name(name) for name in folded)
    ):
        raise CorruptError(f"{format.TOTALS}: not the totals of a store")
    return Totals(**{name: body[name] for name in fields}), frozenset(folded)  # type: ignore[arg-type]


def _is_number(value: object, *types: type) -> bool:
    return type(value) in types and 0 <= value < _MOST  # type: ignore[operator]
