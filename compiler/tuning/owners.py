"""Whose artifacts the digests of rows are, where they are not of what the rows choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.lock import Lock
from pallasc.specs.spec import Variant


def owners(
    variants: Iterable[Variant],
    *,
    store: Store,
    lock: Lock | None = None,
    ptxas: Path | None = None,
) -> Mapping[str, list[Variant]]:
    """Return which of some variants an artifact is of, by its digest; nothing is compiled.

    Args:
        variants: the variants.
        store: what it knows of them counts.
        lock: so does what this says of them, which may be of an earlier toolchain.
        ptxas: as for `build`.

    Raises:
        ToolError: the toolchain is not complete.
    """
    found: dict[str, list[Variant]] = {}
    locked = {} if lock is None else lock.variants
    with prepare(ptxas) as setup:
        context = setup.context(store)
        lookup = Lookup(context, store)
        for variant in variants:
            artifact = lookup.find(lookup.requests.of(variant)).artifact
            digests = {artifact.digest} if artifact is not None else set()
            if variant.id in locked:
                digests.add(locked[variant.id].artifact)
            for digest in digests:
                found.setdefault(digest, []).append(variant)
        context.digests.save()
    return found
