"""Bring variants from a remote into the local store: manifests are judged, then artifacts follow.

Only what was asked for and accepted becomes part of the store: the manifest, the one record that it
names by digest, and blobs, which are their own proof.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pallasc.cache import format
from pallasc.cache.manifests import Manifest, manifest_from_json
from pallasc.cache.packs.format import (
    Entry,
    packed_name,
    read_content,
    read_frame,
    read_head,
)
from pallasc.cache.packs.reader import open_pack
from pallasc.cache.packs.writer import PackWriter
from pallasc.cache.remote.guard import Guard
from pallasc.cache.remote.index import ActionRow, PackedFrame, RequestRow
from pallasc.cache.remote.reading import FrameReader, Known
from pallasc.cache.signing import Trust
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

Accept = Callable[[str, Manifest], bool]
LOCAL_PACK_BYTES = 64 * 2**20
"""What arrives is published in packs of about this size."""
_MOST_CANDIDATES = 3
"""Manifests of one request that are looked at, newest first."""


class Accepted(NamedTuple):
    """A manifest that was judged to be true here.

    Attributes:
        manifest: its fields.
        data: its file's bytes; empty where the local store has the same.
        present: what the local store has in its place, None for nothing.
        row: where the artifact is; None where the local store has it.
    """

    manifest: Manifest
    data: bytes
    present: bytes | None
    row: ActionRow | None


@dataclass(slots=True)
class Fetched:
    """What came of a fetch.

    Attributes:
        actions: action keys of what the local store has now, by request key.
        saved_s: what these took to compile.
    """

    actions: dict[str, str] = field(default_factory=dict)
    saved_s: float = 0.0


class Fetch:
    """One fetch.

    Args:
        guard: the remote.
        store: the local store.
        known: what the remote has.
        trust: what vouches for manifests; None where no signature is required of remotes.
        hold: where the store cannot be written, what arrives is found in it all the same, for as
            long as this process has it open.
    """

    def __init__(
        self, guard: Guard, store: Store, known: Known, trust: Trust | None, *, hold: bool = False
    ) -> None:
        self._guard, self._store, self._trust, self._hold = guard, store, trust, hold
        self._indexes = list(known.indexes.values())
        areas = (format.MANIFESTS, format.ARTIFACTS, format.PACKS)
        self._is_empty = not any(os.path.lexists(store.folder / area) for area in areas)
        sizes: dict[str, int] = {}
        for index in self._indexes:
            sizes.update(index.packs)
        self.reader = FrameReader(guard, sizes)

    def run(self, wanted: Sequence[str], accept: Accept) -> Fetched:
        """Bring what is wanted and accepted; see `Remote.fetch`."""
        accepted = self._judge(wanted, accept)
        result = Fetched()
        for key in self._bring(accepted):
            result.actions[key] = accepted[key].manifest.action
            result.saved_s += accepted[key].manifest.cost_s
        return result

    def _candidates(self, key: str) -> list[RequestRow]:
        """Return rows of different manifests, newest first; of equal ones the newest row."""
        rows: dict[str, RequestRow] = {}
        for index in self._indexes:
            if key in index.requests:
                rows.setdefault(index.requests[key].digest, index.requests[key])
        return list(rows.values())[:_MOST_CANDIDATES]

    def _judge(self, wanted: Sequence[str], accept: Accept) -> dict[str, Accepted]:
        """Return the accepted manifest of each key that has one."""
        accepted: dict[str, Accepted] = {}
        candidates = {key: rows for key in wanted if (rows := self._candidates(key))}
        for turn in range(_MOST_CANDIDATES):
            looked_at = {
                key: rows[turn]
                for key, rows in candidates.items()
                if key not in accepted and turn < len(rows)
            }
            for key, data in self._manifests(looked_at):
                found = self._judged(key, data, accept)
                if found is not None:
                    accepted[key] = found
            if not looked_at or self._guard.failed:
                break
        return accepted

    def _manifests(self, rows: Mapping[str, RequestRow]) -> Iterator[tuple[str, bytes]]:
        """Yield the files of manifests that arrive and have the digest of their row."""
        by_frame: dict[PackedFrame, dict[str, str]] = {}
        for key, row in rows.items():
            by_frame.setdefault(row.frame, {})[key] = row.digest
        for placed, stored in self.reader.read(by_frame):
            try:
                entries = read_frame(stored, placed.frame)
            except CorruptError as error:
                self._guard.wrong(f"pack {placed.pack}: {error.message}")
                continue
            here = by_frame[placed]
            for area, name, data in entries:
                if area == format.MANIFESTS and name in here:
                    if format.sha256(data) == here[name]:
                        yield name, data
                    else:
                        self._guard.stats.refuse(f"manifest {name}: another than the index says")

    def _judged(self, key: str, data: bytes, accept: Accept) -> Accepted | None:
        try:
            body, _ = format.decode(format.KINDS[format.MANIFESTS], key, data)
        except CorruptError as error:
            self._guard.wrong(error.message)
            return None
        manifest = manifest_from_json(body)
        if self._trust is not None and not self._trust.vouches(
            format.KINDS[format.MANIFESTS], key, body
        ):
            self._guard.stats.refuse(f"manifest {key}: no trusted key signed it")
            return None
        if manifest.specs or manifest.check or manifest.toolchains:
            # What a store remembers under keys of their own, and that nobody may send.
            self._guard.stats.refuse(f"manifest {key}: it is not that of a variant")
            return None
        if not manifest.action or not manifest.record or not accept(key, manifest):
            return None
        present = held = None
        if not self._is_empty:
            present = self._store.get_file(format.MANIFESTS, key)
            held = self._store.get_artifact(manifest.action)
        if held is not None and held.digest == manifest.record:
            return Accepted(manifest, b"" if present == data else data, present, None)
        if held is not None and self._store.get_artifact(manifest.action, verify=True) is not None:
            return None  # another record, which stays
        for index in self._indexes:
            row = index.actions.get(manifest.action)
            if row is not None and row.record == manifest.record:
                self.reader.is_worth(row.frames)
                return Accepted(manifest, data, present, row)
        return None

    def _bring(self, accepted: Mapping[str, Accepted]) -> list[str]:
        """Publish the artifacts of accepted manifests, and those manifests; return their keys."""
        done = [key for key, a in accepted.items() if not a.data]
        moved = [key for key, a in accepted.items() if a.data and a.row is None]
        done += self._publish(moved, accepted, _LocalPack({}))
        batch: list[str] = []
        size = 0
        for pack, keys in self._by_pack(accepted).items():
            batch += keys
            size += self.reader.sizes[pack]
            if size >= LOCAL_PACK_BYTES:
                done += self._bring_batch(batch, accepted)
                batch, size = [], 0
        return done + self._bring_batch(batch, accepted)

    def _by_pack(self, accepted: Mapping[str, Accepted]) -> dict[str, list[str]]:
        """Return the keys whose artifacts have to be read, by the first pack of each."""
        by_pack: dict[str, list[str]] = {}
        for key, a in accepted.items():
            if a.row is not None and a.row.frames:
                by_pack.setdefault(a.row.frames[0].pack, []).append(key)
        return by_pack

    def _bring_batch(self, keys: Sequence[str], accepted: Mapping[str, Accepted]) -> list[str]:
        """Read the artifacts of these keys and publish them as one pack; return the complete."""
        if not keys:
            return []
        chosen = {key: accepted[key] for key in keys}
        wanted = {frame: None for a in chosen.values() if a.row for frame in a.row.frames}
        local = _LocalPack({a.manifest.action: a.manifest.record for a in chosen.values()})
        for placed, stored in self.reader.read(wanted, worth=True):
            try:
                local.copy(placed, stored)
            except CorruptError as error:
                self.reader.bad.add(placed.pack)
                self._guard.wrong(f"pack {placed.pack}: {error.message}")
        complete = [key for key, a in chosen.items() if local.is_whole(a.manifest.action)]
        return self._publish(complete, accepted, local)

    def _publish(
        self, keys: Sequence[str], accepted: Mapping[str, Accepted], local: _LocalPack
    ) -> list[str]:
        """Add manifests to a pack and the pack to the store; return the keys that are there now."""
        if not keys:
            return []
        from pallasc.cache.add_pack import publish_pack

        entries = [Entry(format.MANIFESTS, key, accepted[key].data) for key in keys]
        local.writer.add(entries)
        local.writer.close()
        newer = [entry for entry in entries if accepted[entry.name].present is not None]
        try:
            publish_pack(self._store, local.out.getvalue(), newer)
        except OSError as error:
            self._store.not_written(error)
            return self._held(keys, accepted, local) if self._hold else []
        return list(keys)

    def _held(
        self, keys: Sequence[str], accepted: Mapping[str, Accepted], local: _LocalPack
    ) -> list[str]:
        """Have the store hold a pack that it cannot take; return the keys that this makes hits."""
        with contextlib.suppress(OSError), tempfile.TemporaryFile(prefix="pallasc-") as file:
            file.write(local.out.getvalue())
            file.flush()
            self._store.hold_pack(open_pack(os.dup(file.fileno())))
            return [key for key in keys if accepted[key].present is None]
        return []


class _LocalPack:
    """A pack for the local store, of what was accepted; every file in it is verified.

    Args:
        records: digests of the accepted records, by action key.
    """

    def __init__(self, records: Mapping[str, str]) -> None:
        self.out = io.BytesIO()
        self.writer = PackWriter(self.out)
        self._records = records
        self._blobs: dict[str, dict[str, int]] = {}
        self._sizes: dict[str, int] = {}

    def is_whole(self, action: str) -> bool:
        """Tell whether record and blobs of an action have arrived."""
        return action in self._blobs and all(
            self._sizes.get(digest) == size for digest, size in self._blobs[action].items()
        )

    def copy(self, placed: PackedFrame, stored: bytes) -> None:
        """Copy a frame without what was not accepted.

        Raises:
            CorruptError: a file of the frame is not what its name says; nothing of it was copied.
        """
        content = read_content(stored, placed.frame)
        left_out: set[bytes] = set()
        sizes: dict[str, int] = {}
        blobs: dict[str, dict[str, int]] = {}
        for area, name, at, size in read_head(content):
            data = content[at : at + size]
            if area == format.BLOBS:
                if (found := format.sha256(data)) != name:
                    raise CorruptError(f"blob {name}: its SHA-256 is {found}")
                sizes[name] = size
            elif area == format.ARTIFACTS and (needed := self._blobs_of(name, data)) is not None:
                blobs[name] = needed
            else:
                left_out.add(packed_name(area, name))
        self.writer.copy(stored, placed.frame, content=content, without=left_out)
        self._sizes |= sizes
        self._blobs |= blobs

    def _blobs_of(self, action: str, data: bytes) -> dict[str, int] | None:
        """Return digests and sizes of a record's blobs, None for one that was not accepted.

        Raises:
            CorruptError: it is not a record.
        """
        if action not in self._records:
            return None
        record, digest = format.decode_artifact(action, data)
        if digest != self._records[action]:
            return None
        return {blob["digest"]: blob["size"] for blob in record["blobs"].values()}
