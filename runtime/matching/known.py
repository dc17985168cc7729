"""Kernels that are open in this process, used to find blobs that JAX programs name by digest."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol
from weakref import WeakValueDictionary

from pallasc.errors import CorruptError, PallascError
from pallasc.runtime.matching.candidates import Candidate


class Provider(Protocol):
    """An object that has variants."""

    def variants_of(self, kernel: str) -> Iterable[Candidate]:
        """Return the variants of a kernel, an empty iterable if it has no such kernel."""


_lock = threading.Lock()
# By identity: mappings have no hash.
_providers: WeakValueDictionary[int, Provider] = WeakValueDictionary()


def note(provider: Provider) -> None:
    """Search this provider too, as long as it is alive."""
    with _lock:
        _providers[id(provider)] = provider


def find_blob(kernel: str, variant: str, digest: str) -> bytes | None:
    """Return a cubin or constant of a variant, None if no open bundle has it.

    Args:
        kernel: its name.
        variant: its ID.
        digest: digest of the blob.

    Raises:
        CorruptError: no provider has it, and one that may have it is damaged.
    """
    with _lock:
        providers = list(_providers.values())
    damaged: CorruptError | None = None
    for provider in providers:
        try:
            for candidate in provider.variants_of(kernel):
                if candidate.id == variant and digest in candidate.artifact.record["blobs"]:
                    return candidate.artifact.blob(digest)
        except CorruptError as error:  # another provider may have it
            damaged = error
        except PallascError:  # closed
            continue
    if damaged is not None:
        raise damaged
    return None
