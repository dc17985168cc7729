"""Take bundles apart and put them together: selection, splitting, merging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pallasc.specs.bundle.bundle import Bundle
from pallasc.specs.bundle.items import Item
from pallasc.specs.bundle.manifest import Entry
from pallasc.specs.bundle.provenance import Provenance
from pallasc.specs.select import select
from pallasc.specs.spec import Variant
from pallasc.specs.templates import Scalar


def merged_items(bundles: Iterable[Bundle]) -> Iterator[Item]:
    """Yield the variants of several bundles, to be written into one.

    The same variant may be in several of them, if its artifact is the same; what one bundle has of
    it with debug sections or PTX, and another without, is taken with them. The bundles must stay
    open until all is written.
    """
    for bundle in bundles:
        yield from bundle.items()


def merged_provenance(bundles: Iterable[Bundle]) -> tuple[Provenance, ...]:
    """Return the provenance of all bundles."""
    return tuple(origin for bundle in bundles for origin in bundle.provenance)


def split_entries(
    entries: Iterable[Entry], by: Literal["target", "arch"]
) -> dict[str, list[Entry]]:
    """Return the entries of each target or architecture, sorted by its name."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.target if by == "target" else entry.arch, []).append(entry)
    return dict(sorted(groups.items()))


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
    """Return the entries that an expression means (`specs/select.py`), in their order.

    Raises:
        SpecError: the expression is wrong, or means none of them.
    """
    views = [
        _Selectable(one, one.id, one.name, one.params, _Model(one.target, one.arch))
        for one in entries
    ]
    chosen: Sequence[Any] = select(cast("list[Variant]", views), expression)
    return [view.entry for view in chosen]
