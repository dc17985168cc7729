"""Parts of shards, as the command line writes them, of artifacts that nothing compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pallasc.cache.entries import entries_of_variant
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.compiler.shards.part import Head, Toolchain, write_part
from pallasc.compiler.shards.shard import RULE, Shard
from pallasc.specs.canonical import digest
from pallasc.specs.lock import Component, Entry

TOOLCHAIN = Toolchain(
    {"jax": Component("a" * 64, "0.12.0")},
    {"python": "cpython 3.12", "pallasc": "b" * 64},
    {"jax": "0.12.0"},
    "c" * 64,
)
JUNIT = (
    '<testsuites name="pallasc build"><testsuite name="k (shard {shard})" tests="{tests}" '
    'failures="0" errors="0" skipped="0" time="0.1"></testsuite></testsuites>'
)


def name_of(word: str, what: str) -> str:
    """Return a digest that stands for something of a variant."""
    return digest(f"{what} {word}".encode())


def row(word: str, **changed: object) -> dict[str, object]:
    """Return what `--json` prints of a variant."""
    return {
        "id": word,
        "status": "compiled",
        "seconds": 0.5,
        "saved_s": 0.0,
        "cubin_bytes": 100,
        "kernels": [],
        "warnings": [],
        "error": None,
        **changed,
    }


class Parts:
    """Writes parts of variants whose ids are words.

    Args:
        folder: where they are written, beside a store for each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def head(self, shard: str, words: Sequence[str], every: Sequence[str], **changed: Any) -> Head:
        """Return the head of a part; `changed` replaces fields of it."""
        number, of = map(int, shard.split("/"))
        report = {
            "variants": [row(word) for word in words],
            "errors": [],
            "notes": [],
            "interrupted": False,
            "seconds": 1.0 * number,
            "shard": {"expected_s": 1.0},
        }
        head = Head(
            shard=Shard(number, of),
            rule=RULE,
            costs="d" * 64,
            whole=True,
            toolchain=TOOLCHAIN,
            listed={word: name_of(word, "spec")[:16] for word in every},
            own=list(words),
            entries={word: self.entry(word) for word in words},
            costs_s=dict.fromkeys(words, 0.5),
            sources={},
            report=report,
            junit=JUNIT.format(shard=shard, tests=len(words)),
        )
        return head._replace(**changed)

    def entry(self, word: str) -> Entry:
        """Return the entry of a variant in a lock."""
        return Entry(*(name_of(word, what) for what in ("action", "artifact", "request")))

    def files(self, words: Sequence[str], contents: Mapping[str, bytes] | None = None) -> list[Any]:
        """Return the files of variants; `contents` replaces what their blobs hold."""
        store = Store(self.folder / "stores" / name_of(" ".join(words), "store")[:8])
        for word in words:
            entry = self.entry(word)
            data = (contents or {}).get(word, word.encode() * 100)
            store.put_artifact(entry.action, {"of": word}, {"cubin": data})
            store.put_manifest(entry.request, Manifest(action=entry.action, name=word))
        return [entries_of_variant(store, self.entry(word).request) for word in words]

    def write(
        self,
        shard: str,
        words: str,
        every: str,
        *,
        name: str = "",
        contents: Mapping[str, bytes] | None = None,
        pack_bytes: int = 1 << 20,
        **changed: Any,
    ) -> Path:
        """Write the part of a shard and return its file."""
        path = self.folder / f"{name or shard.replace('/', '-')}.part"
        head = self.head(shard, words.split(), every.split(), **changed)
        write_part(path, head, self.files(words.split(), contents), pack_bytes=pack_bytes)
        return path
