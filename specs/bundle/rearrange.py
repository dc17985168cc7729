"""Choose from bundles and put them together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.items import Item
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.bundle.provenance import Provenance
from pallasc.specs.bundle.signature import pack_signatures, sign
from pallasc.specs.bundle.source import MemorySource
from pallasc.specs.loading.select import select
from pallasc.specs.templates import Scalar

if TYPE_CHECKING:
    from pallasc.specs.bundle.signature import Ed25519PrivateKey


def merged_items(choices: Iterable[tuple[Bundle, Sequence[Entry]]]) -> Iterator[Item]:
    """Yield variants of several bundles, to be written into one.

    A variant may be in several of them if its artifact is the same; if only some have its debug
    sections or PTX, it is taken with them. The bundles must stay
    open until all is written.
    """
    for bundle, entries in choices:
        yield from bundle.items(entries)


def merged_provenance(bundles: Iterable[Bundle]) -> tuple[Provenance, ...]:
    """Return the provenance of all bundles."""
    return tuple(origin for bundle in bundles for origin in bundle.provenance)


@dataclass(frozen=True, slots=True)
class Conflict:
    """A variant whose artifacts in several bundles differ.

    Attributes:
        variant: its id.
        artifacts: the bundle and the digest of its artifact, for each bundle that has one.
    """

    variant: str
    artifacts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        places = ", ".join(f"{digest[:12]} in {name}" for name, digest in self.artifacts)
        return f"{self.variant}: {places}"


def find_conflicts(choices: Iterable[tuple[Bundle, Sequence[Entry]]]) -> list[Conflict]:
    """Return the variants that bundles do not agree on, in the order of their keys.

    Args:
        choices: each bundle with the entries that are taken from it.
    """
    by_key: dict[bytes, list[tuple[str, Entry]]] = {}
    for bundle, entries in choices:
        for entry in entries:
            by_key.setdefault(entry.key, []).append((bundle.name, entry))
    return [
        Conflict(own[0][1].id, tuple((name, entry.digest) for name, entry in own))
        for _, own in sorted(by_key.items())
        if len({entry.digest for _, entry in own}) > 1
    ]


@dataclass(frozen=True, slots=True)
class _Model:
    """The target of an entry, as an expression sees it."""

    name: str
    arch: str


@dataclass(frozen=True, slots=True)
class _Selectable:
    """An entry, as an expression sees a variant."""

    entry: Entry
    id: str
    name: str
    params: tuple[tuple[str, Scalar], ...]
    target: _Model


def select_entries(entries: Iterable[Entry], expression: str) -> list[Entry]:
    """Return the entries that an expression means (`specs/loading/select.py`), in their order.

    Raises:
        SpecError: the expression is wrong, or selects none of them.
    """
    views = [
        _Selectable(entry, entry.id, entry.name, entry.params, _Model(entry.target, entry.arch))
        for entry in entries
    ]
    return [view.entry for view in select(views, expression)]


def signed(data: bytes, private_key: Ed25519PrivateKey, name: str = "the bundle") -> bytes:
    """Return the bytes of a bundle with one signature more; one by the same key is replaced.

    Args:
        data: the bytes of a bundle.
        private_key: the key to sign with.
        name: what messages call the bundle.

    Raises:
        CorruptError: the bundle is damaged, and must not be signed.
    """
    with Bundle(MemorySource(data), name) as bundle:
        bundle.verify()
        head = bundle.reader.head
        signatures = [*bundle.signatures, sign(head.root, private_key)]
        return data[: head.body_end] + pack_signatures(signatures)
