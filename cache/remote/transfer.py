"""Push and pull whole stores: what `pallasc cache push`, `pull` and `sync` do.

Unlike a build, a command about the remote fails where the remote fails, with `RemoteError`. It may
be killed at any moment and started again: what was made known stays, the rest is sent again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from pallasc.cache.entries import entries_of_variant
from pallasc.cache.manifests import Manifest
from pallasc.cache.remote import layout
from pallasc.cache.remote.failure import Failure, RemoteError
from pallasc.cache.remote.fetching import Fetch
from pallasc.cache.remote.guard import COMMAND, Guard
from pallasc.cache.remote.opening import open_guard, trust_of
from pallasc.cache.remote.reading import Known, read_known
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.remote.writing import Writer, group_of
from pallasc.cache.store import Store
from pallasc.errors import CorruptError

PACK_BYTES = 8 * 2**20
"""A pack that a push sends has about this size."""
BATCH = 20_000
"""Variants after which a push makes known what it has sent."""
Judge = Callable[[RemoteStats, str, Manifest], bool]
OnStep = Callable[[int, int], None]
"""Is called with the number of variants that are done, and of all."""


class Transfer(NamedTuple):
    """What was done.

    Attributes:
        moved: variants that were sent or brought.
        present: variants that were there before.
        left: variants that the local store lacks a part of, or that did not arrive.
        stats: requests, bytes and refusals.
    """

    moved: int
    present: int
    left: int
    stats: RemoteStats


@contextmanager
def opened(settings: RemoteSettings, environ: Mapping[str, str]) -> Iterator[Guard]:
    """Give a remote for a command, which is patient and fails with the remote's error."""
    guard = open_guard(settings, environ, limits=COMMAND, timeout_s=settings.timeout_s)
    try:
        yield guard
    finally:
        guard.close()


def _known(guard: Guard, store: Store, namespace: str) -> Known:
    return guard.result(guard.submit(lambda: read_known(guard, store.root, namespace)))


def push(
    settings: RemoteSettings,
    store: Store,
    requests: Mapping[str, Sequence[str]],
    *,
    environ: Mapping[str, str] = os.environ,
    on_step: OnStep = lambda done, of: None,
) -> Transfer:
    """Send variants of the local store to the remote.

    Args:
        settings: of the remote; `write` is not looked at.
        store: the local store.
        requests: request keys by namespace.
        environ: where credentials are looked up.
        on_step: is called as variants are done.

    Raises:
        RemoteError: the remote fails.
        CorruptError: a key is not one.
    """
    moved = left = done = 0
    total = sum(map(len, requests.values()))
    with opened(settings, environ) as guard:
        for namespace, keys in requests.items():
            for at in range(0, len(keys), BATCH):
                known = _known(guard, store, namespace)
                writer = Writer(guard, namespace, known, pack_bytes=PACK_BYTES)
                for key in keys[at : at + BATCH]:
                    try:
                        entries = entries_of_variant(store, key)
                        if entries is None:
                            left += 1
                        elif writer.add(group_of(key, entries)):
                            moved += 1
                    except CorruptError as error:
                        guard.stats.refuse(error.message)
                        left += 1
                    done += 1
                    on_step(done, total)
                writer.finish()
        guard.stats.offered = moved
        return Transfer(moved, total - moved - left, left, guard.stats)


def pull(
    settings: RemoteSettings,
    store: Store,
    namespaces: Sequence[str] | None = None,
    *,
    accept: Judge = lambda stats, key, manifest: True,
    environ: Mapping[str, str] = os.environ,
    on_step: OnStep = lambda done, of: None,
) -> Transfer:
    """Bring all variants of the remote into the local store.

    Nothing is judged but signatures, where they are required, and what `accept` looks at: the next
    build does that. A manifest that leads to an artifact of the local store stays.

    Args:
        settings: of the remote.
        store: the local store.
        namespaces: which ones; None for all, if the remote can be listed.
        accept: tells whether an entry may be taken, given its request key and manifest.
        environ: where credentials are looked up.
        on_step: is called as variants are done.

    Raises:
        RemoteError: the remote fails, or cannot be listed.
        SpecError, ToolError: signatures are required, and a key cannot be used.
    """
    trust = trust_of(settings, environ)
    moved = present = left = 0
    with opened(settings, environ) as guard:
        for namespace in namespaces_of(guard) if namespaces is None else namespaces:
            known = _known(guard, store, namespace)
            wanted = sorted({key for index in known.indexes.values() for key in index.requests})
            absent = [key for key in wanted if _is_absent(store, key)]
            for at in range(0, len(absent), BATCH):
                batch = absent[at : at + BATCH]
                found = Fetch(guard, store, known, trust).run(batch, partial(accept, guard.stats))
                if guard.failed is not None:
                    raise guard.failed
                moved += len(found.actions)
                left += len(batch) - len(found.actions)
                on_step(at + len(batch), len(absent))
            present += len(wanted) - len(absent)
        guard.stats.hits = moved
        return Transfer(moved, present, left, guard.stats)


def _is_absent(store: Store, key: str) -> bool:
    manifest = store.find_manifest(key)
    if manifest is None:
        return True
    # One without an action is not of a variant, and nothing of a remote takes its place.
    return bool(manifest.action) and store.get_artifact(manifest.action) is None


def namespaces_of(guard: Guard) -> list[str]:
    """Return the namespaces of a remote.

    Raises:
        RemoteError: it cannot be listed, or the listing fails.
    """
    if not guard.objects.has_listing:
        raise RemoteError(
            f"{guard.stats.url}: it cannot be listed, so its namespaces are not known",
            Failure.UNSUPPORTED,
            hint="Only the namespace of a toolchain that is installed can be asked for there.",
        )
    found = set()
    for item in guard.list(f"{layout.ROOT}/"):
        parts = item.name.removeprefix(f"{layout.ROOT}/").split("/")
        if len(parts) == 2 and parts[1] == "catalog" and layout.is_digest(parts[0]):
            found.add(parts[0])
    return sorted(found)
