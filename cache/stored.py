"""What the store answers: what became of an offer, and a record with its blobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pallasc.cache.format import StoredRecord
from pallasc.errors import CorruptError


class Source(Protocol):
    """The store, as far as records read from it."""

    def get_blob(self, digest: str) -> bytes | None:
        """Return a blob, verified; None if it is not there."""

    def get_artifact(self, action_key: str, *, verify: bool = ...) -> object:
        """Read a record; a corrupt one is put away."""


class PutResult(NamedTuple):
    """What became of something that was offered to the store.

    Attributes:
        stored: the store holds it now, through this call or an earlier one.
        digest: SHA-256 of what was offered.
        existed: an equal one was already there.
        stored_digest: digest of what the store holds under the same key, if that differs.
        reason: why it is not stored.
    """

    stored: bool
    digest: str
    existed: bool = False
    stored_digest: str = ""
    reason: str = ""

    @property
    def conflict(self) -> bool:
        """Tell whether something else is stored under the key: compiling is not deterministic."""
        return bool(self.stored_digest)


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """A record and its blobs.

    Attributes:
        key: the action key that it lies under.
        record: the whole record, `artifact` and `blobs`.
        digest: SHA-256 of the record: equal for equal artifacts, under whatever key.
        artifact_digest: SHA-256 of `artifact` as canonical JSON, None where it was not verified.
    """

    key: str
    record: StoredRecord
    digest: str
    _store: Source = field(repr=False, compare=False)
    _held: Mapping[str, bytes] = field(repr=False, compare=False, default_factory=dict)
    artifact_digest: str | None = field(default=None, compare=False)

    @property
    def artifact(self) -> dict[str, object]:
        """Return what was given to `put_artifact`."""
        return self.record["artifact"]

    @property
    def names(self) -> list[str]:
        """Return the names of the blobs, sorted."""
        return sorted(self.record["blobs"])

    def blob(self, name: str) -> bytes | None:
        """Return a blob, verified; None if it is gone or corrupt: then the artifact is a miss.

        Raises:
            CorruptError: if the record names no such blob.
        """
        if name in self._held:
            return self._held[name]
        if name not in self.record["blobs"]:
            raise CorruptError(f"artifact {self.key} has no blob {name!r}, only {self.names}")
        digest = self.record["blobs"][name]["digest"]
        data = self._store.get_blob(digest)
        if data is None or len(data) != self.record["blobs"][name]["size"]:
            self._store.get_artifact(self.key, verify=True)  # puts the record away, to heal
            return None
        return data


def answer_second(key: str, stored: str, offered: str) -> PutResult:
    """Return the answer to an offer under a key that has an artifact already."""
    if stored == offered:
        return PutResult(stored=True, digest=offered, existed=True)
    reason = f"action key {key} gave {stored} before and {offered} now: it is not deterministic"
    return PutResult(stored=False, digest=offered, stored_digest=stored, reason=reason)
