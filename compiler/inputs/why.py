"""Explain a miss: which labelled fields of the key differ from the nearest entry, which file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from pallasc.cache import format
from pallasc.cache.manifests import Manifest
from pallasc.cache.scan import Scan
from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.manifest import fields_in, short_fields
from pallasc.compiler.inputs.request import request_fields
from pallasc.compiler.toolchain.components import TOOL, components_in
from pallasc.compiler.toolchain.context import Context
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.artifacts.budgets import check_budget
from pallasc.specs.lock import VARIABLE
from pallasc.specs.lock import differences as lock_differences
from pallasc.specs.spec import Variant


@dataclass(frozen=True, slots=True)
class Difference:
    """A labelled field, or a source, with its value in the store and now; None where absent."""

    label: str
    stored: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a variant is a hit or a miss.

    Attributes:
        variant: its id.
        hit: whether the store has it.
        reason: one sentence.
        key: the request key.
        nearest: the id of the variant behind the nearest entry, None where there is none.
        fields: how the request differs from that entry's.
        sources: files and packages that changed since.
        toolchain: how the toolchain differs from that entry's, with versions, in clauses.
        over_budget: which limit of its spec the stored artifact exceeds, so that building it fails.
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
        """Return it as plain data."""
        return asdict(self)


def explain_variants(
    variants: Iterable[Variant],
    context: Context,
    store: Store,
    versions: Callable[[], Mapping[str, str]] = dict,
) -> list[Explanation]:
    """Explain each variant; the store's manifests are read once.

    Args:
        variants: what to explain.
        context: the toolchain's identity and the digests of files.
        store: where to look.
        versions: returns those of the toolchain's parts; asked where they matter.
    """
    lookup = Lookup(context, store)
    manifests: list[Manifest] | None = None
    result = []
    for variant in variants:
        request = lookup.requests.of(variant)
        key = request.key
        found = lookup.find(request)
        if found.artifact is not None:
            result.append(_hit(variant, key, found.artifact))
            continue
        own = next(filter(None, map(store.get_manifest, request.keys)), None)
        if own is not None:
            changes = lookup.current(request.place).changes(own)
            sources = tuple(clause for change in changes for clause in change.sentences())
            result.append(
                Explanation(variant.id, False, found.reason, key, variant.id, (), sources)
            )
            continue
        if found.untrusted:
            result.append(Explanation(variant.id, False, found.reason, key, variant.id))
            continue
        if manifests is None:
            manifests = all_manifests(store)
        result.append(_compare(variant, key, context, versions, manifests))
    return result


def _hit(variant: Variant, key: str, artifact: Artifact) -> Explanation:
    over = check_budget(artifact, variant.budget)
    if over is None:
        return Explanation(variant.id, True, "the store has it", key, variant.id)
    reason = f"the store has it, but it is over its budget: {over.message}"
    return Explanation(variant.id, True, reason, key, variant.id, over_budget=over.message)


def all_manifests(store: Store) -> list[Manifest]:
    """Return the manifests of compilations in the store."""
    keys = [key for key, _ in Scan(store.folders).area(format.MANIFESTS)]
    found = (store.get_manifest(key) for key in keys)
    return [manifest for manifest in found if manifest is not None and manifest.request]


def _compare(
    variant: Variant,
    key: str,
    context: Context,
    versions: Callable[[], Mapping[str, str]],
    manifests: list[Manifest],
) -> Explanation:
    """Compare a request with the nearest one: of the same kernel, with the fewest differences."""
    fields = short_fields(request_fields(variant, context))
    same = [manifest for manifest in manifests if manifest.name == variant.name]
    if not same:
        return Explanation(variant.id, False, "no kernel of this name was compiled yet", key)
    nearest = min(
        same,
        key=lambda m: (
            len(differences(fields_in(m.request), fields)),
            m.variant != variant.id,
        ),
    )
    found = tuple(differences(fields_in(nearest.request), fields))
    name = nearest.variant or variant.name
    own = [each for each in found if not each.label.startswith((TOOL, VARIABLE))]
    before = components_in(fields_in(nearest.request), nearest.versions)
    clauses = tuple(lock_differences(before, context.components(versions())))
    reason = ", ".join(difference.label for difference in own)
    reason = f"its key differs from that of {name} in: {reason}" if own else ""
    if clauses:
        apart = f"{name} was compiled with another toolchain: {'; '.join(clauses)}"
        reason = f"{reason}; {apart}" if reason else apart
    return Explanation(variant.id, False, reason, key, name, found, toolchain=clauses)


def differences(stored: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    """Return the fields whose values differ, by label."""
    return [
        Difference(label, stored.get(label), now.get(label))
        for label in sorted({*stored, *now})
        if stored.get(label) != now.get(label)
    ]
