"""Many small packs become few larger ones, so that opening a store stays quick."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence

from pallasc.cache import files
from pallasc.cache.format import GONE, PACKS
from pallasc.cache.packs.writer import PackWriter
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store
from pallasc.cache.upkeep.verify_packs import open_for_verification
from pallasc.errors import CorruptError

MOST_PACKS = 32
"""So many packs are left alone."""
MAX_MERGED_BYTES = 64 * 2**20
"""A pack is evicted whole, so it must not become a large part of a store."""


def merge_packs(store: Store, *, most: int | None = None) -> int:
    """Merge small packs of a store where there are more than `most`, by default `MOST_PACKS`.

    Packs that were last used one after the other are merged, and the time of the result is the
    latest of theirs: nothing that a running build holds is held less. What counts as missing is
    left out. A pack that is damaged stays as it is.

    Returns:
        How many packs were replaced.

    Raises:
        OSError: the disk refuses; every file is in one pack or the other all the same.
    """
    packs = [(identity, digest) for digest, identity, _ in Scan(store.folders).packs()]
    if len(packs) <= (MOST_PACKS if most is None else most):
        return 0
    by_use = sorted(packs, key=lambda pack: (pack[0][1], pack[1]), reverse=True)
    merged = sum(_merge(store, group) for group in _groups(by_use))
    store.relist_packs()
    return merged


Listed = tuple[files.Identity, str]


def _groups(packs: Sequence[Listed]) -> Iterator[list[Listed]]:
    """Yield packs that become one, the last used first; each is small enough to gain from it."""
    group: list[Listed] = []
    size = 0
    for identity, digest in packs:
        if identity[2] > MAX_MERGED_BYTES // 2:
            continue
        if size + identity[2] > MAX_MERGED_BYTES:
            yield group
            group, size = [], 0
        group.append((identity, digest))
        size += identity[2]
    yield group


def _merge(store: Store, group: Sequence[Listed]) -> int:
    """Write one pack of several, then remove those; return how many were removed."""
    out = io.BytesIO()
    writer = PackWriter(out)
    copied = [listed for listed in group if _copy(store, listed[1], writer)]
    if len(copied) < 2:
        return 0
    summary = writer.close()
    with files.temporary(store.folders, out.getvalue()) as place:
        store.folders.touch(place, time_ns=max(identity[1] for identity, _ in copied))
        files.publish_first(store.folders, place, f"{PACKS}/{summary.digest}")
    removed = 0
    for identity, digest in copied:
        if digest != summary.digest:
            if not files.remove_same(store.folders, f"{PACKS}/{digest}", identity):
                continue  # a build began to use it
            removed += 1
            with contextlib.suppress(OSError):
                store.folders.unlink(f"{PACKS}/{digest}{GONE}")
    return removed


def _copy(store: Store, digest: str, writer: PackWriter) -> bool:
    """Copy a pack's frames if all are whole; tell whether they were."""
    with contextlib.suppress(CorruptError, OSError):
        opened = open_for_verification(store, digest)
        if any(isinstance(part, str) for part in opened.examine()):
            return False
        for number in range(len(opened.pack.frames)):
            writer.copy_from(opened.pack, number, without=opened.gone)
        return True
    return False
