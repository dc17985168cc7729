"""Explain misses: the key fields that differ from the nearest entry, or the changed sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.compiler.inputs.lookup import Lookup, LookupResult
from pallasc.compiler.inputs.manifest import short_fields
from pallasc.compiler.inputs.request import Request, request_fields
from pallasc.compiler.toolchain.identity import TOOL, components_in
from pallasc.specs.loading.lock import VARIABLE, differences
from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Difference:
    """A labeled field with its stored and current values; None if absent."""

    label: str
    stored: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons why variants of one request are misses.

    Attributes:
        reason: one sentence.
        key: request key.
        nearest: id of the nearest entry's variant, None if there is none.
        fields: differences between the request and the nearest entry's request.
        sources: files and packages that differ from the set of sources with the fewest changes.
        toolchain: differences between the toolchains, with versions, in words.
    """

    reason: str
    key: str
    nearest: str | None = None
    fields: tuple[Difference, ...] = ()
    sources: tuple[str, ...] = ()
    toolchain: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)


class Explainer:
    """Explains the misses of a build; reads the store's manifests once.

    Args:
        lookup: the look-up that missed.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._context, self._store = lookup.context, lookup.store

    @cached_property
    def _stored(self) -> list[Manifest]:
        manifests = map(self._store.get_manifest, self._store.names(MANIFESTS))
        return [each for each in manifests if each is not None and each.request]

    def explain(self, variant: Variant, request: Request, found: LookupResult) -> Explanation:
        """Explain the miss `found` by its changed sources, or by the most similar request.

        Raises:
            ToolError: the assembler cannot be asked for its version.
        """
        key = request.key
        if not found.is_new:
            sources = tuple(change.sentence for change in found.changes)
            return Explanation(found.reason, key, variant.id, sources=sources)
        now = short_fields(request_fields(variant, self._context))
        same = [(m, _fields(m)) for m in self._stored if m.name == variant.name]
        if not same:
            reason = "the store has no entry for this kernel: it is new, or cannot be cached"
            return Explanation(reason, key)
        nearest, before = min(
            same, key=lambda each: (len(_differences(each[1], now)), each[0].variant != variant.id)
        )
        differing = tuple(_differences(before, now))
        name = nearest.variant or variant.name
        then = components_in(before, nearest.versions)
        clauses = tuple(differences(then, self._context.components()))
        labels = [d.label for d in differing if not d.label.startswith((TOOL, VARIABLE))]
        is_own = name == variant.id  # which its own explanation need not name
        reasons = []
        if labels:
            other = "" if is_own else f" from that of {name}"
            reasons.append(f"its key differs{other} in: {', '.join(labels)}")
        if clauses:
            other = "" if is_own or labels else f"{name} was "
            reasons.append(f"{other}compiled with another toolchain: {'; '.join(clauses)}")
        return Explanation("; ".join(reasons), key, name, differing, toolchain=clauses)


def _fields(manifest: Manifest) -> dict[str, str]:
    """Return the labeled fields of a manifest's request key, {} if they are damaged."""
    try:
        fields = json.loads(manifest.request)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    """Return the fields whose values differ, sorted by label."""
    return [
        Difference(label, stored.get(label), now.get(label))
        for label in sorted({*stored, *now})
        if stored.get(label) != now.get(label)
    ]
