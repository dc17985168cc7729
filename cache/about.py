"""What is known of an artifact besides its record: who asked for it, and what it cost."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pallasc.cache.format import StoredRecord

if TYPE_CHECKING:
    from pallasc.cache.manifests import AboutJson
    from pallasc.specs.spec import Variant

_BLOB = struct.Struct(">32sQ")
_MOST_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class About:
    """A variant as it was asked for: its kernel's name, its target, its parameters."""

    name: str = ""
    target: str = ""
    params: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, variant: Variant) -> About:
        """Return what a store logs of a variant."""
        return cls(variant.name, variant.target.name, dict(variant.params))

    def to_json(self) -> AboutJson:
        """Return it as JSON, as manifests and the log of uses hold it."""
        return {"name": self.name, "target": self.target, "params": dict(self.params)}


def about_from_json(value: object) -> About | None:
    """Return what `to_json` gave; None if it is something else. Never raises."""
    if not isinstance(value, Mapping) or not isinstance(value.get("params", {}), Mapping):
        return None
    name, target = value.get("name", ""), value.get("target", "")
    if not _is_text(name) or not _is_text(target) or not (name or target):
        return None
    about = About(name, target, value.get("params", {}))
    try:
        return about if len(json.dumps(about.to_json())) <= _MOST_CHARACTERS else None
    except (RecursionError, ValueError):
        return None


def _is_text(value: object) -> bool:
    """Tell whether SQLite can hold this text: JSON may escape half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def cubin_bytes(record: StoredRecord) -> int:
    """Return the size of all cubins that an artifact's kernels name."""
    kernels = record["artifact"].get("kernels")
    if not isinstance(kernels, list):
        return 0
    names = [kernel.get("cubin") for kernel in kernels if isinstance(kernel, dict)]
    cubins = {name for name in names if isinstance(name, str)}
    return sum(blob["size"] for name, blob in record["blobs"].items() if name in cubins)


def pack_blobs(record: StoredRecord) -> bytes:
    """Return digests and sizes of a record's blobs, each once, as the index holds them."""
    sizes = {blob["digest"]: blob["size"] for blob in record["blobs"].values()}
    return b"".join(_BLOB.pack(bytes.fromhex(name), size) for name, size in sorted(sizes.items()))


def unpack_blobs(data: bytes) -> list[tuple[str, int]]:
    """Return what `pack_blobs` packed."""
    return [(name.hex(), size) for name, size in _BLOB.iter_unpack(data)]
