"""Write variants to a remote: packs as they fill, then an index, then the catalog.

Requests are made in threads; the packs of a build that is killed are garbage until a variant of
theirs is pushed again.
"""

from __future__ import annotations

import contextlib
import io
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from pallasc.cache import format
from pallasc.cache.packs.format import Entry, Frame, Place
from pallasc.cache.packs.writer import PackWriter
from pallasc.cache.remote import layout
from pallasc.cache.remote.catalog import Catalog, Change, Sized
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.guard import Guard
from pallasc.cache.remote.index import ActionRow, Index, PackedFrame, RequestRow, joined
from pallasc.cache.remote.reading import Known, read_catalog
from pallasc.errors import CorruptError

PACK_BYTES = 4 * 2**20
"""A pack of a build is sent when it has this size, so that little is lost and waited for."""
MOST_INDEXES = 12
"""A writer that finds more of them joins them."""
MOST_PACKS = 32
"""A writer that had to read from more of them sends what it read once more, in few packs."""
_MOST_UNDER_WAY = 16
"""Packs of a command that are sent at the same time or wait for it: bounds the memory they take."""
_ATTEMPTS = 10
"""Of writing the catalog, where others write it too."""
_USED_AGAIN_S = 24 * 3600
"""A pack's time of use is written again after this time."""


class Group(NamedTuple):
    """The files of one variant; `action` and `record` say where its manifest leads."""

    request: str
    action: str
    record: str
    entries: Sequence[Entry]


def group_of(request_key: str, entries: Sequence[Entry]) -> Group:
    """Return the group of a variant's files, as `entries_of_variant` gives them.

    Raises:
        CorruptError: manifest or record is damaged, or missing.
    """
    records = [entry for entry in entries if entry.area == format.ARTIFACTS]
    if len(records) != 1:
        raise CorruptError(f"{request_key}: its files have {len(records)} records instead of 1")
    _, digest = format.decode_artifact(records[0].name, records[0].data)
    return Group(request_key, records[0].name, digest, entries)


class Writer:
    """Collects variants, sends packs, and in the end makes them known.

    Args:
        guard: the remote.
        namespace: the namespace.
        known: what the remote had when it was read.
        pack_bytes: when a pack is sent.
    """

    def __init__(
        self, guard: Guard, namespace: str, known: Known, *, pack_bytes: int = PACK_BYTES
    ) -> None:
        self._guard, self._namespace, self._known = guard, namespace, known
        self._pack_bytes = pack_bytes
        self._index = Index()
        self._groups: list[Group] = []
        self._sent: dict[str, Future[None]] = {}
        self._opened()

    def _opened(self) -> None:
        self._out = io.BytesIO()
        self._writer = PackWriter(self._out)
        self._groups = []
        self._actions: dict[str, str] = {}

    def add(self, group: Group, *, again: bool = False) -> bool:
        """Take a variant, unless the remote has it.

        Args:
            group: its files.
            again: also where the remote has it, so that it lies beside the others in one pack.

        Returns:
            False if it is there, or has another record there: then compiling it is not
            deterministic, which is counted.
        """
        held = self._held_action(group.action)
        if held is not None and held != group.record:
            text = f"action key {group.action}: {held} there, {group.record} here"
            if text not in self._guard.stats.conflicts:
                self._guard.stats.conflicts.append(text)
            return False
        if held is not None and not again:
            manifests = [entry for entry in group.entries if entry.area == format.MANIFESTS]
            rows = [i.requests.get(group.request) for i in self._indexes()]
            digests = {row.digest for row in rows if row is not None}
            if all(format.sha256(entry.data) in digests for entry in manifests):
                return False
            group = group._replace(entries=manifests)
        self._writer.add(group.entries)
        self._groups.append(group)
        self._actions[group.action] = group.record
        if self._writer.bytes_so_far >= self._pack_bytes:
            self.flush()
        return True

    def _indexes(self) -> list[Index]:
        return [self._index, *self._known.indexes.values()]

    def _held_action(self, action: str) -> str | None:
        """Return the digest of the record that the remote, or what is being sent, has."""
        if action in self._actions:
            return self._actions[action]
        for index in self._indexes():
            if action in index.actions:
                return index.actions[action].record
        return None

    def flush(self) -> None:
        """Send the pack that is being filled."""
        if not self._groups:
            return
        summary = self._writer.close()
        data, digest = self._out.getvalue(), summary.digest
        groups = self._groups
        self._opened()
        self._index.packs[digest] = summary.size
        for group in groups:
            self._add_rows(group, digest, summary.frames, summary.names)
        name = layout.pack_name(digest)
        self._sent[digest] = self._guard.submit(lambda: self._guard.put(name, data))
        if self._guard.limits.wait_s is None:  # a build does not wait, and gives up instead
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        """Wait until few packs are under way; requests end by themselves."""
        under_way = {future for future in self._sent.values() if not future.done()}
        while len(under_way) >= _MOST_UNDER_WAY:
            under_way = set(wait(under_way, return_when=FIRST_COMPLETED).not_done)

    def _add_rows(
        self,
        group: Group,
        pack: str,
        frames: Sequence[Frame],
        names: Mapping[tuple[str, str], Place],
    ) -> None:
        numbers = set()
        for entry in group.entries:
            number = names[entry.area, entry.name].frame
            if entry.area != format.MANIFESTS:
                numbers.add(number)
                continue
            self._index.requests[entry.name] = RequestRow(
                format.sha256(entry.data), PackedFrame(pack, frames[number]), group.action
            )
        if numbers:
            placed = tuple(PackedFrame(pack, frames[number]) for number in sorted(numbers))
            self._index.actions[group.action] = ActionRow(group.record, placed)

    def finish(
        self,
        *,
        used: frozenset[str] = frozenset(),
        bad: frozenset[str] = frozenset(),
        costs: Mapping[str, bytes] | None = None,
    ) -> None:
        """Send what is left, and make all known.

        Args:
            used: packs that were read: they are needed still.
            bad: packs that were found damaged or gone.
            costs: new snapshots of costs, by digest.

        Raises:
            RemoteError: the remote does not take it.
        """
        self.flush()
        lost = self._lost()
        now = int(time.time())
        change = Change(
            packs={d: (size, now) for d, size in self._index.packs.items() if d not in lost},
            bad=dict.fromkeys(sorted(bad), now),
            used={d: now for d in used if self._is_stale(d, now)},
            costs={d: (len(data), now) for d, data in (costs or {}).items()},
            dropped_indexes=frozenset(self._known.lost),
        )
        future = self._guard.submit(lambda: self._make_known(change, lost, costs or {}, now))
        self._guard.result(future)

    def _is_stale(self, digest: str, now: int) -> bool:
        sized = self._known.catalog.packs.get(digest)
        return sized is not None and sized[1] < now - _USED_AGAIN_S

    def _lost(self) -> set[str]:
        """Wait for the packs; return those that could not be sent.

        Raises:
            RemoteError: the remote is left alone.
        """
        by_future = {future: digest for digest, future in self._sent.items()}
        lost = set(self._sent)
        for future in self._guard.each(by_future):
            error = future.exception()
            if error is None:
                lost.discard(by_future[future])
            elif not isinstance(error, RemoteError):
                raise error
            else:
                self._guard.stats.refuse(error.message)
        if self._guard.failed is not None:
            raise self._guard.failed
        return lost

    def _encoded(self, index: Index) -> tuple[Index, bytes, frozenset[str]]:
        """Return the new index, its bytes, and the older ones that it takes the place of.

        Raises:
            RemoteError: it is too large.
        """
        with contextlib.suppress(CorruptError):  # all in one are too many
            if len(self._known.indexes) >= MOST_INDEXES:
                whole = joined([index, *self._known.indexes.values()])
                return whole, whole.encode(), frozenset(self._known.indexes)
        try:
            return index, index.encode(), frozenset()
        except CorruptError as error:
            hint = "Send fewer variants at a time."
            raise RemoteError(error.message, Failure.TOO_LARGE, hint=hint) from error

    def _make_known(
        self, change: Change, lost: set[str], costs: Mapping[str, bytes], now: int
    ) -> None:
        """Write the index and the catalog."""
        index = self._index.without_packs(lost)
        for digest, data in costs.items():
            self._guard.put(layout.costs_name(self._namespace, digest), data)
        new: dict[str, Sized] = {}
        dropped = change.dropped_indexes
        if index.requests or index.actions:
            index, data, replaced = self._encoded(index)
            dropped |= replaced
            digest = layout.sha256(data)
            needs = {layout.pack_name(pack): index.packs[pack] for pack in sorted(index.packs)}
            self._guard.put(layout.index_name(self._namespace, digest), data, needs=needs)
            new[digest] = (len(data), now)
            dropped -= {digest}
        change_ = Change(
            new, change.packs, change.costs, change.bad, change.used, frozenset(dropped)
        )
        if new or change.costs or change.bad or change.used or dropped:
            write_catalog(self._guard, self._namespace, change_, self._known)


def write_catalog(
    guard: Guard, namespace: str, change: Change, known: Known | None = None
) -> Catalog:
    """Change the catalog, whoever else changes it.

    Args:
        guard: the remote.
        namespace: the namespace.
        change: what to change.
        known: how it was read before, to save reading it again.

    Raises:
        RemoteError: it cannot be written, or others write it without end.
    """
    name = layout.catalog_name(namespace)
    catalog, version = (
        read_catalog(guard, namespace) if known is None else (known.catalog, known.version)
    )
    for attempt in range(_ATTEMPTS):
        if attempt or not guard.objects.has_versions:
            catalog, version = read_catalog(guard, namespace)
        if guard.put_if(name, catalog.changed(change).encode(), version):
            # Some servers ignore the condition, and some have none: look whether it stayed.
            catalog, version = read_catalog(guard, namespace)
            if change.is_in(catalog):
                return catalog
        time.sleep(random.uniform(0, 0.02 * 2 ** min(attempt, 5)))
    raise RemoteError(
        f"{guard.stats.url}/{name}: other writers change it without end", Failure.BUSY
    )
