"""Look at what a remote has, and verify it: what `pallasc cache remote-stats` shows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pallasc.cache import format
from pallasc.cache.manifests import set_prefix
from pallasc.cache.packs.reader import Pack, open_pack
from pallasc.cache.remote import layout
from pallasc.cache.remote.catalog import Catalog
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.guard import Guard
from pallasc.cache.remote.index import Index, PackedFrame, decode_index
from pallasc.cache.remote.reading import read_catalog, read_named
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.transfer import namespaces_of, opened
from pallasc.errors import CorruptError


class NamespaceStats(NamedTuple):
    """A namespace in figures.

    Attributes:
        namespace: its name.
        variants: requests that it answers.
        artifacts: records that it has.
        indexes, packs: how many of each.
        bytes: of indexes and packs.
        oldest_use_s, newest_use_s: of packs, seconds since 1970; 0 without packs.
    """

    namespace: str
    variants: int
    artifacts: int
    indexes: int
    packs: int
    bytes: int
    oldest_use_s: int
    newest_use_s: int


def survey(
    settings: RemoteSettings,
    namespaces: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> list[NamespaceStats]:
    """Return figures of namespaces; None for all, if the remote can be listed.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    with opened(settings, environ) as guard:
        names = namespaces_of(guard) if namespaces is None else namespaces
        return [_figures(guard, name) for name in names]


def _figures(guard: Guard, namespace: str) -> NamespaceStats:
    catalog, _ = read_catalog(guard, namespace)
    found: list[Index] = []
    for digest in catalog.newest():
        try:
            found.append(read_index(guard, namespace, digest))
        except (CorruptError, RemoteError) as error:
            if isinstance(error, RemoteError) and error.failure is not Failure.MISSING:
                raise
            guard.stats.refuse(error.message)
    times = [time for _, time in catalog.packs.values()]
    sized = [*catalog.indexes.values(), *catalog.packs.values()]
    return NamespaceStats(
        namespace,
        len({set_prefix(name) for index in found for name in index.requests}),
        len({key for index in found for key in index.actions}),
        len(catalog.indexes),
        len(catalog.packs),
        sum(size for size, _ in sized),
        min(times, default=0),
        max(times, default=0),
    )


def read_index(guard: Guard, namespace: str, digest: str) -> Index:
    """Return an index, straight from the remote.

    Raises:
        CorruptError: it is damaged.
        RemoteError: it cannot be read.
    """
    name = layout.index_name(namespace, digest)
    return decode_index(read_named(guard, name, digest, layout.MAX_INDEX_BYTES))


def verify(
    settings: RemoteSettings,
    namespaces: Sequence[str] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """Read everything that catalogs lead to; return what is wrong, [] if nothing is.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
    """
    with opened(settings, environ) as guard:
        names = namespaces_of(guard) if namespaces is None else namespaces
        return [f"{name}: {fault}" for name in names for fault in _faults(guard, name)]


def _faults(guard: Guard, namespace: str) -> Iterator[str]:
    before = guard.stats.refusals
    catalog, _ = read_catalog(guard, namespace)
    if guard.stats.refusals != before:
        yield "the catalog is damaged"
    packs: dict[str, Pack | None] = {}
    for digest in catalog.newest():
        try:
            index = read_index(guard, namespace, digest).without_packs(catalog.bad)
        except (CorruptError, RemoteError) as error:
            yield f"index {digest}: {error.message}"
            continue
        for pack in index.packs:
            if pack not in packs:
                packs[pack], fault = _open(guard, pack, catalog)
                if fault:
                    yield f"pack {pack}: {fault}"
        yield from _wrong_rows(index, packs)


def _open(guard: Guard, digest: str, catalog: Catalog) -> tuple[Pack | None, str]:
    """Return a pack and what is wrong with it; each file in it is verified."""
    try:
        data = read_named(guard, layout.pack_name(digest), digest, layout.MAX_PACK_BYTES)
        pack = open_pack(data, digest=digest)
        faults = [text for _, text in pack.faults()]
        for number in range(len(pack.frames)):
            for area, name, content in pack.entries(number):
                if area == format.BLOBS and format.sha256(content) != name:
                    faults.append(f"blob {name} is damaged")
                elif area in format.KINDS:
                    format.decode(format.KINDS[area], name, content)
    except (CorruptError, RemoteError) as error:
        return None, error.message
    if digest not in catalog.packs:
        faults.append("the catalog does not have it")
    return pack, "; ".join(faults)


def _wrong_rows(index: Index, packs: Mapping[str, Pack | None]) -> Iterator[str]:
    for key, row in index.requests.items():
        data = _read(packs, row.frame, format.MANIFESTS, key)
        if data is None or format.sha256(data) != row.digest:
            yield f"the manifest of request {key} is not where the index says"
    for key, action in index.actions.items():
        files = [_read(packs, frame, format.ARTIFACTS, key) for frame in action.frames]
        record = next((data for data in files if data is not None), None)
        if record is None:
            yield f"the record of action {key} is not where the index says"
            continue
        body, digest = format.decode_artifact(key, record)
        if digest != action.record:
            yield f"the record of action {key} is another than the index says"
        for blob in body["blobs"].values():
            found = (_read(packs, f, format.BLOBS, blob["digest"]) for f in action.frames)
            if all(data is None for data in found):
                yield f"blob {blob['digest']} of action {key} is not where the index says"


def _read(
    packs: Mapping[str, Pack | None], placed: PackedFrame, area: str, name: str
) -> bytes | None:
    """Return a file that lies in this frame, None if it does not."""
    pack = packs.get(placed.pack)
    place = None if pack is None else pack.find(area, name)
    if pack is None or place is None or pack.frames[place.frame] != placed.frame:
        return None
    return pack.read(area, name)
