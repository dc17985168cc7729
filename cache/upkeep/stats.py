"""What a store holds, and how much time it saved."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass

from pallasc.cache import format
from pallasc.cache.about import About
from pallasc.cache.format import BLOBS
from pallasc.cache.index import LOCK_TIMEOUT_S, Index, open_index
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store
from pallasc.cache.upkeep.limits import Limits, read_limits
from pallasc.cache.uses import Totals, fold

_VERSION = re.compile(r"v[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stats:
    """A store in figures.

    Attributes:
        folder: where it lies.
        entries, manifests, blobs: how many of each, in packs or not.
        source_lines: how many of the manifests have the source lines of an artifact.
        packs: how many files hold many of them each.
        bytes: blobs, records, manifests and packs together.
        cubin_bytes: the cubins alone, as often as records name them.
        limit_bytes, limit_age_s: what it may grow to; None is without limit.
        quarantined: how many corrupt files are kept.
        oldest_use: when the entry that goes first was last used, seconds since the epoch.
        totals: hits, misses, and what they saved.
        other_versions: folders of stores of other versions beside it, which are left alone.
        warnings: what could not be looked at.
    """

    folder: str
    entries: int
    manifests: int
    source_lines: int
    blobs: int
    packs: int
    bytes: int
    cubin_bytes: int
    limit_bytes: int | None
    limit_age_s: float | None
    quarantined: int
    oldest_use: float | None
    totals: Totals
    other_versions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as JSON; the totals among the other figures."""
        figures = asdict(self)
        totals = figures.pop("totals")
        lists = {name: list(figures[name]) for name in ("other_versions", "warnings")}
        return {**figures, **totals, **lists}


@dataclass(frozen=True, slots=True)
class Listed:
    """An artifact as the index knows it; times in seconds since the epoch.

    `created` is when it was first seen, `compile_s` how long compiling took, 0 if not known.
    """

    key: str
    variants: tuple[About, ...]
    requests: tuple[str, ...]
    bytes: int
    cubin_bytes: int
    created: float
    last_use: float
    hits: int
    compile_s: float

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


def stats(
    store: Store, *, limits: Limits | None = None, timeout_s: float = LOCK_TIMEOUT_S
) -> Stats:
    """Return a store in figures. A store that is not there is empty, and is not made.

    Raises:
        SpecError: a variable of the environment is not a size or age.
    """
    limits = read_limits() if limits is None else limits
    scan = Scan(store.folders)
    blobs = dict(scan.area(BLOBS))
    packs = list(scan.packs())
    with open_index(store, timeout_s=timeout_s) as index:
        totals = fold(store, index)
        entries, record_bytes, cubin_bytes, oldest_ns = index.read(
            "SELECT count(*), total(iif(pack = '', bytes, 0)), total(cubin_bytes), min(last_use_ns)"
            " FROM artifacts"
        )[0]
        manifests, manifest_bytes, source_lines = index.read(
            "SELECT count(*), total(iif(pack = '', bytes, 0)), total(lines) FROM requests"
        )[0]
        faults = (*map(str, scan.faults), *index.refreshed.faults)
    return Stats(
        folder=str(store.folder),
        entries=entries,
        manifests=manifests,
        source_lines=int(source_lines),
        blobs=len(blobs.keys() | _in_packs(store)),
        packs=len(packs),
        bytes=sum(identity[2] for identity in (*blobs.values(), *(seen for _, seen, _ in packs)))
        + int(record_bytes)
        + int(manifest_bytes),
        cubin_bytes=int(cubin_bytes),
        limit_bytes=limits.max_bytes,
        limit_age_s=limits.max_age_s,
        quarantined=_count(store, "quarantine"),
        oldest_use=None if oldest_ns is None else oldest_ns / 1e9,
        totals=totals,
        other_versions=_other_versions(store),
        warnings=faults,
    )


def artifacts(store: Store, *, name: str | None = None, key_prefix: str = "") -> list[Listed]:
    """Return the artifacts of a store, the last used first.

    Args:
        store: the store.
        name: only those that a kernel of this name led to.
        key_prefix: only those whose action key begins with this.
    """
    with open_index(store) as index:
        fold(store, index)
        return _listed(index, name, key_prefix)


def _listed(index: Index, name: str | None, key_prefix: str) -> list[Listed]:
    variants: dict[str, list[About]] = {}
    for action, kernel, target, params in index.read("SELECT * FROM variants ORDER BY 1, 2, 3, 4"):
        variants.setdefault(action, []).append(_about(kernel, target, params))
    requests: dict[str, list[str]] = {}
    for action, request in index.read("SELECT action, request FROM requests ORDER BY 1, 2"):
        requests.setdefault(action, []).append(request)
    rows = index.read(
        "SELECT key, bytes + blob_bytes, cubin_bytes, created_ns, last_use_ns, hits, compile_s"
        " FROM artifacts WHERE substr(key, 1, ?) = ? ORDER BY last_use_ns DESC, key",
        (len(key_prefix), key_prefix),
    )
    return [
        Listed(
            key,
            tuple(variants.get(key, ())),
            tuple(requests.get(key, ())),
            size,
            cubins,
            created_ns / 1e9,
            last_use_ns / 1e9,
            hits,
            compile_s,
        )
        for key, size, cubins, created_ns, last_use_ns, hits, compile_s in rows
        if name is None or any(about.name == name for about in variants.get(key, ()))
    ]


def _about(name: str, target: str, params: str) -> About:
    return About(name, target, json.loads(params))


def _count(store: Store, folder: str) -> int:
    try:
        return sum(not name.endswith(".reason") for name in store.folders.names(folder))
    except OSError:
        return 0


def _in_packs(store: Store) -> set[str]:
    """Return the digests of the blobs in packs."""
    with contextlib.suppress(OSError):  # which the walk has told
        return set() if store.packed is None else store.packed.names(BLOBS)
    return set()


def _other_versions(store: Store) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(store.root))
        return tuple(name for name in names if _VERSION.fullmatch(name) and name != format.FOLDER)
    return ()
