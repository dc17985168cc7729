"""The variants of a store that `pallasc cache push` may send to a remote one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pallasc.cache.store import Store
from pallasc.compiler.builds.remote_tier import namespace
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.portable import why_not_portable
from pallasc.compiler.inputs.remembered_toolchain import installed_or_remembered
from pallasc.specs.garbage import collector_paused
from pallasc.specs.spec import Variant


class Sendable(NamedTuple):
    """What of some variants may be sent.

    Attributes:
        namespace: of the toolchain.
        keys: names of the manifests of variants that the store has.
        absent: number of variants that the store lacks.
        bound: why variants depend on this machine and stay, by their ids.
    """

    namespace: str
    keys: tuple[str, ...]
    absent: int
    bound: dict[str, str]


def sendable(variants: Sequence[Variant], store: Store) -> Sendable:
    """Look variants up, and return what may be sent of them; nothing is compiled.

    Raises:
        ToolError: the toolchain is incomplete, or none is installed and the store remembers none.
    """
    keys: dict[str, None] = {}
    bound: dict[str, str] = {}
    absent = 0
    with installed_or_remembered(store) as setup, collector_paused():
        context = setup.context(store)
        lookup = Lookup(context, store)
        for variant in variants:
            request = lookup.requests.of(variant)
            found = lookup.find(request)
            if found.artifact is None:
                absent += 1
            elif why := why_not_portable(found.manifest):
                bound[variant.id] = why
            else:
                keys[found.manifest_key] = None
        context.digests.save()
        return Sendable(namespace(setup), tuple(keys), absent, bound)


def namespace_here(store: Store) -> str:
    """Return the namespace of the toolchain here; raises as `sendable` does."""
    with installed_or_remembered(store) as setup:
        return namespace(setup)
