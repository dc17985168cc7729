"""An index: where the manifest of each request and the files of each action lie, in which packs.

    object    = bytes:u64 zstd          little-endian size of the record, and the record of kind
                                        `index`, without zstd's magic number
    index     = { "packs": [ [ digest, bytes ] ],
                  "frames": [ [ pack, offset, bytes, raw, digest ] ],
                  "requests": { manifest name: [ file digest, frame, action key ] },
                  "actions": { action key: [ record digest, [ frame ] ] } }
    pack      = number in "packs"; frame = number in "frames"; offset, bytes, raw as in a pack's
    file digest = the SHA-256 of the manifest's file; record digest = of the body of the record

The frames of an action are all that hold its record and blobs. What an index says is only where to
look: frames say what they hold, and are verified by what they hold.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pallasc.cache.manifests import MAX_SETS, set_prefix
from pallasc.cache.packs.format import Frame, check_frame
from pallasc.cache.remote import layout
from pallasc.errors import CorruptError
from pallasc.specs.bundle import compress

_LEVEL = 6
_DENSE = 6
"""How much smaller than its content an index may be; digests halve, and those that are there twice
take little more."""
_SPARSE = 14
"""Bytes of a content for each comma and bracket, at least; an index has about 40. So the memory of
what JSON makes of it is bounded before any is taken: a value takes about 100 bytes."""
_SIZE = struct.Struct("<Q")
_SMALL_BYTES = 2**20
"""A content of this size may have any values."""
_MOST_FRAMES_OF_ACTION = 4096


class PackedFrame(NamedTuple):
    """A frame and the digest of the pack that it lies in."""

    pack: str
    frame: Frame


class RequestRow(NamedTuple):
    """Where a manifest is: SHA-256 of its file, its frame, the action key that it leads to."""

    digest: str
    frame: PackedFrame
    action: str


class ActionRow(NamedTuple):
    """Where an artifact is: the digest of its record, all frames that it needs."""

    record: str
    frames: tuple[PackedFrame, ...]


@dataclass(slots=True)
class Index:
    """What some packs hold.

    Attributes:
        packs: bytes of each, by digest.
        requests: rows by the name of the manifest.
        actions: rows by action key.
    """

    packs: dict[str, int] = field(default_factory=dict)
    requests: dict[str, RequestRow] = field(default_factory=dict)
    actions: dict[str, ActionRow] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the object's bytes.

        Raises:
            CorruptError: it is larger than readers take.
        """
        packs = {digest: number for number, digest in enumerate(sorted(self.packs))}
        rows = [row.frame for row in self.requests.values()]
        rows += [frame for row in self.actions.values() for frame in row.frames]
        order = sorted(set(rows), key=lambda placed: (packs[placed.pack], placed.frame.offset))
        frames = {placed: number for number, placed in enumerate(order)}
        body = {
            "packs": [[digest, self.packs[digest]] for digest in packs],
            "frames": [[packs[placed.pack], *placed.frame] for placed in order],
            "requests": {
                key: [row.digest, frames[row.frame], row.action]
                for key, row in self.requests.items()
            },
            "actions": {
                key: [row.record, [frames[frame] for frame in row.frames]]
                for key, row in self.actions.items()
            },
        }
        record = layout.encode(layout.INDEX, body)
        if len(record) > layout.MAX_INDEX_BYTES:
            raise CorruptError(f"the index of {len(self.requests):,} variants is too large")
        return _SIZE.pack(len(record)) + compress.compress(record, _LEVEL)

    def without_packs(self, gone: Iterable[str]) -> Index:
        """Return what is left where these packs are not."""
        lost = set(gone)
        if not lost & self.packs.keys():
            return self
        return Index(
            {digest: size for digest, size in self.packs.items() if digest not in lost},
            {key: row for key, row in self.requests.items() if row.frame.pack not in lost},
            {
                key: row
                for key, row in self.actions.items()
                if not any(frame.pack in lost for frame in row.frames)
            },
        )


def joined(indexes: Sequence[Index]) -> Index:
    """Return one index for several, newest first: the newer row wins.

    Of the manifests of one request key, the newest `MAX_SETS` stay.
    """
    result = Index()
    sets: Counter[str] = Counter()
    for index in indexes:
        result.packs = index.packs | result.packs
        result.actions = index.actions | result.actions
        for name, row in index.requests.items():
            if name not in result.requests and sets[set_prefix(name)] < MAX_SETS:
                result.requests[name] = row
                sets[set_prefix(name)] += 1
    used = {row.frame.pack for row in result.requests.values()}
    used |= {frame.pack for row in result.actions.values() for frame in row.frames}
    result.packs = {digest: size for digest, size in result.packs.items() if digest in used}
    return result


def decode_index(data: bytes) -> Index:
    """Return an index from an object's bytes.

    Raises:
        CorruptError: it is not an index of this version, or contradicts itself.
    """
    if len(data) <= _SIZE.size:
        raise CorruptError("the index is cut short")
    (size,) = _SIZE.unpack_from(data)
    if size > min(layout.MAX_INDEX_BYTES, len(data) * _DENSE):
        raise CorruptError(f"the index has {len(data):,} bytes for a content of {size:,}")
    content = compress.decompress(data[_SIZE.size :], size)
    values = sum(map(content.count, (b",", b"[", b"{")))
    if values * _SPARSE > len(content) + _SMALL_BYTES:
        raise CorruptError(f"the index has {values:,} values in {len(content):,} bytes")
    body = layout.decode(layout.INDEX, content)
    try:
        return _index_of(body)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise CorruptError("the index is not what an index is") from error


def _index_of(body: Mapping[str, Any]) -> Index:
    if set(body) != {"packs", "frames", "requests", "actions"}:
        raise ValueError("other parts")
    packs = [(_digest(digest), _count(size)) for digest, size in body["packs"]]
    frames = [PackedFrame(packs[_count(pack)][0], _frame(*rest)) for pack, *rest in body["frames"]]
    requests = {
        _digest(key): RequestRow(_digest(digest), frames[_count(frame)], _digest(action))
        for key, (digest, frame, action) in body["requests"].items()
    }
    actions = {
        _digest(key): ActionRow(_digest(record), tuple(frames[_count(n)] for n in _few(numbers)))
        for key, (record, numbers) in body["actions"].items()
    }
    return Index(dict(packs), requests, actions)


def _frame(offset: object, size: object, raw: object, digest: object) -> Frame:
    frame = Frame(_count(offset), _count(size), _count(raw), _digest(digest))
    check_frame(0, frame)
    return frame


def _few(numbers: Any) -> list[object]:
    if not isinstance(numbers, list) or len(numbers) > _MOST_FRAMES_OF_ACTION:
        raise ValueError("frames")
    return numbers


def _digest(value: object) -> str:
    if not layout.is_digest(value):
        raise ValueError("digest")
    return str(value)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise ValueError("number")
    return value
