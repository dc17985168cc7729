"""The remote store of a build; local misses are looked up there before they are compiled.

A build without misses sends no request. All misses are requested together, before a worker is
started. Downloaded entries are published in the local store, and found there like any other hit.
Compiled variants are sent while others compile, and the rest at the end. Entries that depend on
this machine are not sent (`inputs/manifest`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from pallasc.cache.manifests import Manifest, set_prefix
from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup, Miss
from pallasc.compiler.inputs.manifest import installed_or_remembered, why_not_portable
from pallasc.compiler.toolchain.identity import python_name
from pallasc.compiler.toolchain.setup import Setup
from pallasc.specs.settings import SALT, cache_salt

if TYPE_CHECKING:
    from pallasc.cache.remote.remote import Remote
    from pallasc.cache.remote.settings import RemoteSettings, RemoteStats
    from pallasc.compiler.inputs.manifest import RememberedToolchain

_NOT_NAMES = ("computed with", "traced with", "ptxas")
"""Recorded versions that the namespace omits: slow to determine, or combined from several."""


class RemoteTier:
    """The remote store of one build.

    Args:
        settings: the remote store's address, and whether the build writes to it.
        store: the local store.
        setup: the toolchain.
    """

    def __init__(
        self, settings: RemoteSettings, store: Store, setup: Setup | RememberedToolchain
    ) -> None:
        self._settings, self._store, self._setup = settings, store, setup
        self._opened: Remote | None = None
        self.notes: list[str] = []
        """Notes on variants that were not sent."""

    def open(self) -> Remote:
        """Return the remote, opened at the first call; no request is made.

        Raises:
            SpecError, ToolError: remote entries must be signed, and a key cannot be used.
        """
        if self._opened is None:
            from pallasc.cache.remote.remote import Remote

            self._opened = Remote(
                self._settings, self._store, namespace(self._setup), tell=self._store.tell
            )
        return self._opened

    def fetch(self, lookup: Lookup, misses: Iterable[Miss]) -> set[str]:
        """Copy remote entries of the misses into the local store; return their request keys."""
        remote = self.open()
        wanted: dict[str, list[Miss]] = {}
        for miss in misses:
            wanted.setdefault(set_prefix(miss.key), []).append(miss)

        def accept(name: str, manifest: Manifest) -> bool:
            return is_portable(remote.stats, name, manifest) and any(
                lookup.fits(name, manifest, miss) for miss in wanted[set_prefix(name)]
            )

        keys = [same[0].key for same in wanted.values()]
        return {wanted[set_prefix(name)][0].key for name in remote.fetch(keys, accept)}

    def offer(self, name: str, variant: str) -> None:
        """Send a variant that was compiled, unless it depends on this machine.

        Args:
            name: the name of its manifest.
            variant: the variant's id, for notes.
        """
        if not self._settings.write:
            return
        manifest = self._store.find_manifest(name)
        if manifest is None:
            return
        why = why_not_portable(manifest)
        if why:
            self.notes.append(f"{variant} is not sent to the remote store: {why}")
        else:
            self.open().offer(name)

    def finish(self) -> RemoteStats:
        """Send the rest, and return the statistics; an interrupt stops sending."""
        if self._opened is None:
            from pallasc.cache.remote.settings import RemoteStats

            return RemoteStats(url=self._settings.address.text)
        with suppress(KeyboardInterrupt):
            return self._opened.finish()
        return self._opened.stats


def is_portable(stats: RemoteStats, key: str, manifest: Manifest) -> bool:
    """Return True if a remote entry may be used here; otherwise count it as rejected.

    Builds never send an entry that contains paths of a machine. Such an entry is rejected, because
    its sender could make this machine read those paths.
    """
    why = why_not_portable(manifest)
    if why:
        stats.refuse(f"manifest {key}: {why}")
    return not why


def namespace(setup: Setup | RememberedToolchain) -> str:
    """Return the namespace of a toolchain, which divides the entries of a remote.

    The namespace consists of versions and the salt, so it is known before any file is hashed. It
    only groups entries: a hit is found by its request key.
    """
    from pallasc.cache.remote.transfer import namespace_of
    from pallasc.version import installed_version

    if isinstance(setup, Setup):
        versions: Mapping[str, str] = {
            package.name: package.version for package in setup.toolchain.packages
        }
    else:
        versions = {k: v for k, v in setup.versions.items() if k not in _NOT_NAMES}
    salt = cache_salt(os.environ)
    return namespace_of(
        {
            **versions,
            "python": python_name(),
            "pallasc": installed_version(),
            **({SALT: salt} if salt else {}),
        }
    )


def sendable(names: Iterable[str], store: Store) -> tuple[list[str], dict[str, str]]:
    """Return the names of the manifests that may be sent, and why the others may not.

    The reasons, by variant id, say how an entry depends on this machine.
    """
    found = [(name, manifest) for name in names if (manifest := store.find_manifest(name))]
    bound = {m.variant: why for _, m in found if (why := why_not_portable(m))}
    return [name for name, manifest in found if manifest.variant not in bound], bound


def namespace_here(store: Store) -> str:
    """Return the namespace of the installed toolchain, or without one, of a remembered one.

    Raises:
        PallascError: no toolchain is installed, and the store remembers none.
    """
    with installed_or_remembered(store) as setup:
        return namespace(setup)
