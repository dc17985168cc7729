"""Open what a user's settings name; no request is made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pallasc.cache.remote.address import Address
from pallasc.cache.remote.guard import Guard, Limits
from pallasc.cache.remote.objects import Objects
from pallasc.cache.remote.settings import RemoteSettings
from pallasc.cache.remote.stats import RemoteStats
from pallasc.cache.signing import Trust, read_trust


def open_objects(address: Address, environ: Mapping[str, str], *, timeout_s: float) -> Objects:
    """Return the objects of an address; no request is made."""
    if address.scheme == "file":
        from pallasc.cache.remote.folder_objects import FolderObjects

        return FolderObjects(Path(address.path), timeout_s=min(timeout_s, 10.0))
    if address.is_bazel:
        from pallasc.cache.remote.bazel_objects import BazelObjects

        return BazelObjects(address, environ=environ, timeout_s=timeout_s)
    from pallasc.cache.remote.obstore_objects import ObstoreObjects

    return ObstoreObjects(address, environ=environ, timeout_s=timeout_s)


def open_guard(
    settings: RemoteSettings, environ: Mapping[str, str], *, limits: Limits, timeout_s: float
) -> Guard:
    """Return a guarded remote; its threads are started by the first request."""
    objects = open_objects(settings.address, environ, timeout_s=timeout_s)
    return Guard(objects, RemoteStats(url=settings.address.text), limits=limits)


def trust_of(settings: RemoteSettings, environ: Mapping[str, str]) -> Trust | None:
    """Return what vouches for manifests, None where no signature is required of remotes.

    Raises:
        SpecError, ToolError: one is required, and a key cannot be used.
    """
    return read_trust(environ, required=True) if settings.signed else None
