"""Make the part of a shard from the report of its build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pallasc.cache.entries import entries_of_action, entries_of_variant
from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.store import Store
from pallasc.compiler.builds.relock import compile_times
from pallasc.compiler.builds.report import Report, VariantResult
from pallasc.compiler.builds.tuned_rows import tables_of
from pallasc.compiler.inputs.remembered_toolchain import (
    RememberedToolchain,
    installed_or_remembered,
)
from pallasc.compiler.inputs.request import Request, Requests
from pallasc.compiler.shards.part import Head, Toolchain, write_part
from pallasc.compiler.shards.shard import RULE, Share
from pallasc.compiler.toolchain.identity import JAX, recorded
from pallasc.compiler.toolchain.setup import Context
from pallasc.errors import ToolError
from pallasc.specs.canonical import canonical_json, digest
from pallasc.specs.lock import Entry as Locked
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.packs.format import Entry

_NO_TOOLCHAIN = Toolchain({}, {}, {}, "")
_SHORT = 16
"""Digits of the digests that lists of variants are compared by."""


def make_part(
    path: Path,
    share: Share,
    report: Report,
    *,
    store: Store,
    whole: bool,
    documents: tuple[Mapping[str, object], str],
    specs: Sequence[str] = (),
    ptxas: Path | None = None,
) -> None:
    """Write the part of a shard: all that `pallasc merge` needs of it.

    Args:
        path: the file.
        share: the shard's variants, and those that were listed.
        report: the report of building them.
        store: the store that they were built into.
        whole: whether all variants of the specs were listed.
        documents: the report as `--json` prints it, and as JUnit XML.
        specs: keys of the manifests in which the store remembers Python specs.
        ptxas: as for `build`.

    Raises:
        SpecError: it cannot be written.
        ToolError: the store lost an artifact, or could not keep it.
    """
    done = [result for result in report.results if result.artifact and result.action_key]
    requests = _requests(done, report.context)
    head = Head(
        shard=share.shard,
        rule=RULE,
        costs=share.costs.digest,
        whole=whole,
        toolchain=_toolchain(report.context, store, ptxas),
        listed={variant.id: asked_for(variant) for variant in share.listed},
        own=[variant.id for variant in share.variants],
        entries={
            result.variant.id: Locked(
                str(result.action_key), result.artifact.digest, requests[result.variant.id].key
            )
            for result in done
            if result.artifact is not None
        },
        costs_s=compile_times(report.results),
        sources=_sources(done, store),
        report=documents[0],
        junit=documents[1],
        tables=tables_of(share.listed),
    )
    write_part(path, head, chain(_specs(specs, store), _files(done, store)))


def _specs(keys: Sequence[str], store: Store) -> Iterator[Sequence[Entry]]:
    """Yield what the store remembers of Python specs, which then need not be executed again."""
    from pallasc.cache.packs.format import Entry

    for key in keys:
        data = store.get_file(MANIFESTS, key)
        if data is not None:
            yield [Entry(MANIFESTS, key, data)]


def asked_for(variant: Variant) -> str:
    """Return a digest of what a variant asks for, to compare the lists of jobs by."""
    return digest(canonical_json(variant.request()))[:_SHORT]


def _requests(done: Sequence[VariantResult], context: Context | None) -> dict[str, Request]:
    if context is None:
        return {}
    requests = Requests(context)
    return {result.variant.id: requests.of(result.variant) for result in done}


def _toolchain(context: Context | None, store: Store, ptxas: Path | None) -> Toolchain:
    if context is None:
        return _NO_TOOLCHAIN
    with installed_or_remembered(store, ptxas=ptxas) as setup:
        versions = dict(setup.versions_now())
        jax = setup.jax if isinstance(setup, RememberedToolchain) else recorded(JAX)
    return Toolchain(context.components(versions), dict(context.identity), versions, jax)


def _sources(done: Sequence[VariantResult], store: Store) -> dict[str, str]:
    """Return the digests of the files that kernels were made from; none where two differ."""
    found: dict[str, set[str]] = {}
    for result in done:
        manifest = _manifest(result, store)
        files = {} if manifest is None else manifest.files
        for label, value in files.items():
            found.setdefault(f"{result.variant.name} {label}", set()).add(value)
    return {label: min(values) for label, values in found.items() if len(values) == 1}


def _manifest(result: VariantResult, store: Store) -> Manifest | None:
    """Return the manifest of a result, None if the store has none that leads to its artifact."""
    manifest = store.find_manifest(result.manifest_key) if result.manifest_key else None
    is_own = manifest is not None and manifest.action == result.action_key
    return manifest if is_own else None


def _files(done: Sequence[VariantResult], store: Store) -> Iterator[Sequence[Entry]]:
    """Yield the files of each variant.

    Raises:
        ToolError: the store lacks one.
    """
    for result in done:
        has_manifest = _manifest(result, store) is not None
        entries = entries_of_variant(store, result.manifest_key) if has_manifest else None
        entries = entries or entries_of_action(store, str(result.action_key))
        if entries is None:
            why = store.not_stored or "it was removed meanwhile"
            raise ToolError(
                f"the store {store.root} has no artifact of {result.variant.id}: {why}.",
                hint="A part takes artifacts from the store: name one with room by --store.",
            )
        yield entries
