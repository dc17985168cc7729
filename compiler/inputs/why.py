"""Explain misses: the fields of the key that differ from the nearest entry, or changed sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.manifest import short_fields
from pallasc.compiler.inputs.request import request_fields
from pallasc.compiler.toolchain.identity import TOOL, components_in
from pallasc.compiler.toolchain.setup import Context
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.budgets import check_budget
from pallasc.specs.lock import VARIABLE, differences
from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Difference:
    """A labelled field with its stored and its current value; None if absent."""

    label: str
    stored: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a variant is a hit or a miss.

    Attributes:
        variant: id of the variant.
        hit: whether the store has it.
        reason: one sentence.
        key: request key.
        nearest: id of the variant of the nearest entry, None if there is none.
        fields: differences between the request and that entry's.
        sources: files and packages that differ from the set of sources with the fewest changes.
        toolchain: differences between the toolchains, with versions, in words.
        over_budget: limit of the spec that the stored artifact exceeds, which fails a build.
    """

    variant: str
    hit: bool
    reason: str
    key: str
    nearest: str | None = None
    fields: tuple[Difference, ...] = ()
    sources: tuple[str, ...] = ()
    toolchain: tuple[str, ...] = ()
    over_budget: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)


def explain_variants(
    variants: Iterable[Variant],
    context: Context,
    store: Store,
    versions: Callable[[], Mapping[str, str]] = dict,
) -> list[Explanation]:
    """Explain each variant; the store's manifests are read once.

    Args:
        variants: the variants.
        context: the toolchain's identity and the digests of files.
        store: the store.
        versions: returns the versions of the toolchain's parts; called only if they matter.
    """
    lookup = Lookup(context, store)
    stored: list[Manifest] | None = None
    result = []
    for variant in variants:
        request = lookup.requests.of(variant)
        found = lookup.find(request)
        if found.artifact is not None:
            result.append(_hit(variant, request.key, found.artifact))
        elif not found.is_new:
            sources = tuple(change.sentence for change in found.changes)
            result.append(
                Explanation(variant.id, False, found.reason, request.key, variant.id, (), sources)
            )
        else:
            if stored is None:
                manifests = map(store.get_manifest, store.names(MANIFESTS))
                stored = [each for each in manifests if each is not None and each.request]
            result.append(_compare(variant, request.key, context, versions, stored))
    return result


def _hit(variant: Variant, key: str, artifact: Artifact) -> Explanation:
    over = check_budget(artifact, variant.budget)
    if over is None:
        return Explanation(variant.id, True, "the store has it", key, variant.id)
    reason = f"the store has it, but it is over its budget: {over.message}"
    return Explanation(variant.id, True, reason, key, variant.id, over_budget=over.message)


def _compare(
    variant: Variant,
    key: str,
    context: Context,
    versions: Callable[[], Mapping[str, str]],
    stored: list[Manifest],
) -> Explanation:
    """Compare a request with the most similar one of the same kernel."""
    now = short_fields(request_fields(variant, context))
    same = [(m, _fields(m)) for m in stored if m.name == variant.name]
    if not same:
        return Explanation(variant.id, False, "no kernel with this name has been compiled yet", key)
    nearest, before = min(
        same, key=lambda each: (len(_differences(each[1], now)), each[0].variant != variant.id)
    )
    differing = tuple(_differences(before, now))
    name = nearest.variant or variant.name
    components = components_in(before, nearest.versions)
    clauses = tuple(differences(components, context.components(versions())))
    labels = [d.label for d in differing if not d.label.startswith((TOOL, VARIABLE))]
    is_own = name == variant.id  # which its own explanation need not name
    reasons = []
    if labels:
        other = "" if is_own else f" from that of {name}"
        reasons.append(f"its key differs{other} in: {', '.join(labels)}")
    if clauses:
        other = "" if is_own or labels else f"{name} was "
        reasons.append(f"{other}compiled with another toolchain: {'; '.join(clauses)}")
    reason = "; ".join(reasons)
    return Explanation(variant.id, False, reason, key, name, differing, toolchain=clauses)


def _fields(manifest: Manifest) -> dict[str, str]:
    """Return the labelled fields of a manifest's request key, {} if they are damaged."""
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
