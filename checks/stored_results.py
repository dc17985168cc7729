"""Results of checks in the store, so that unchanged variants are not checked again.

The results of one artifact, for one choice of options, are a manifest in the store with these
fields:

* `check`: JSON text that maps the name of a level to `own`, the digest of the pallasc sources that
  make up the level; `result`, the `LevelResult` with file paths relative to the spec's folder; and
  `files`, the digest of each file that contains a line of a finding. Editing a comment does not
  change the code, but may move these lines; the variant is then checked again.
* `action`: the action key of the checked artifact, so that the results are removed with it
* `files`, `packages`, `opened`, `absent`, `hidden`, `missed`, `read`: everything the user's code
  read during the check, as in the manifest of a compilation

The manifest's key covers action key and digest of the artifact, seed, number of schedules, inputs,
request key, reference and tolerance. The store keeps a manifest for each of the last few states
of the sources, as it does for a request key. These manifests are signed, trusted, verified and
counted like all others in the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from pallasc.cache.manifests import Manifest, manifest_from_json, set_name
from pallasc.checks.findings import (
    LevelResult,
    files_of,
    moved_from,
    moved_to,
    result_from_json,
    to_json,
)
from pallasc.checks.levels import Options
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.manifest import joined
from pallasc.compiler.inputs.sources import CurrentSources
from pallasc.compiler.toolchain.identity import own_digest
from pallasc.errors import PallascError
from pallasc.specs.canonical import canonical_text, labelled_key
from pallasc.specs.spec import Variant

if TYPE_CHECKING:
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.report import VariantResult
    from pallasc.compiler.toolchain.modules import Place
    from pallasc.compiler.toolchain.setup import Context

SCHEMA = 3
_CHECKING = ("checks", "compiler", "emulator", "specs")
"""Folders of the code that determines results."""


class Checkable(NamedTuple):
    """An artifact and options to check, with the keys for storing the results.

    Attributes:
        key: key of the manifests with the results.
        action: the artifact's action key, "" if unknown.
        variant: the variant that was compiled to the artifact, None without source.
        place: folders in which the modules and files of that variant are searched for.
    """

    key: str
    action: str
    variant: Variant | None
    place: Place | None


class StoredResults:
    """Results of checks in a store.

    Args:
        store: the store.
        context: the toolchain's identity and the digests of files.
    """

    def __init__(self, store: Store, context: Context) -> None:
        self._store = store
        self._context = context
        self._lookup = Lookup(context, store)
        self._own = ""
        self._changed: dict[tuple[str, Place], bool] = {}
        self._fitting: dict[Place | None, str] = {}
        """Digest of the sources of the last results found, by place. It is tried first, because
        variants in one place usually have the same sources."""

    def subject(self, options: Options, built: VariantResult, variant: Variant | None) -> Checkable:
        """Return the artifact with the keys for storing results.

        Args:
            options: the check's options.
            built: the compiled variant, which has an artifact.
            variant: the variant that was compiled to the artifact, None without source.

        Raises:
            ToolError: a file of inputs, or a data file of the spec, cannot be read.
        """
        digest, action = self._context.digests.digest, built.action_key or ""
        files = {name: digest(str(file)) for name, file in options.inputs.items()}
        fields = {
            "check": str(SCHEMA),
            "action": action,
            "artifact": built.artifact.digest if built.artifact is not None else "",
            "seed": str(options.seed),
            "schedules": str(options.schedules),
            "inputs": canonical_text(files) if files else "",
            **({} if variant is None else self._source(variant, built)),
        }
        place = None if variant is None else self._lookup.place(variant)
        return Checkable(labelled_key(fields), action, variant, place)

    def find(self, subject: Checkable, levels: Sequence[str]) -> dict[str, LevelResult]:
        """Return the results that are still valid, by level."""
        place = subject.place
        if (read := self._fitting.get(place)) is not None:
            name = set_name(subject.key, read)
            likely = self._store.find_manifest(name)
            if likely is not None and likely.read == read and self._store.believes(name, likely):
                results = self._results(likely, subject, levels)
                if len(results) == len(levels):
                    return results
        manifest = self._manifest(subject)
        if manifest is None:
            return {}
        self._fitting[place] = manifest.read
        return self._results(manifest, subject, levels)

    def _results(
        self, manifest: Manifest, subject: Checkable, levels: Sequence[str]
    ) -> dict[str, LevelResult]:
        if self._has_changed(manifest, subject):
            return {}
        rows, results = _rows(manifest), {}
        for level in levels:
            row = rows.get(level)
            if row is not None and self._is_current(row, subject.variant):
                result = _result(row.get("result"), subject.variant)
                if result is not None:
                    results[level] = result
        return results

    def _is_current(self, row: Mapping[str, Any], variant: Variant | None) -> bool:
        """Return True if neither the level nor a file with a line of a finding has changed."""
        files = row.get("files")
        if row.get("own") != self._own_digest() or not isinstance(files, dict):
            return False
        folder, digest = variant.base_dir if variant else "", self._context.digests.digest
        try:
            return all(digest(os.path.join(folder, file)) == was for file, was in files.items())
        except PallascError:  # a file was removed
            return False

    def put(self, subject: Checkable, result: LevelResult, sources: Mapping[str, Any]) -> None:
        """Store a result together with the still valid results of other levels.

        The results share one list of sources: if anything changes that one level has read, the
        results of all levels are invalid.

        Args:
            subject: the checked subject.
            result: the result.
            sources: what the user's code read, from the worker; empty without source.

        Raises:
            CorruptError: a worker sent sources that are not part of a manifest.
            PallascError: a file with a line of a finding cannot be read, or the store cannot be
                written.
        """
        before, rows = self._manifest(subject), {}
        read = manifest_from_json(subject.key, sources) if sources else Manifest()
        if before is not None and not self._has_changed(before, subject):
            both = before if before.read == read.read else joined(before, read)
            if both is not None:
                rows, read = _rows(before), both
        files = {}
        if subject.variant is not None:
            folder, digest = subject.variant.base_dir, self._context.digests.digest
            files = {os.path.relpath(f, folder): digest(f) for f in sorted(files_of(result))}
            result = moved_from(result, folder)
        rows[result.level] = {"own": self._own_digest(), "files": files, "result": to_json(result)}
        manifest = replace(read, action=subject.action, check=canonical_text(rows), signed=())
        self._store.put_set(subject.key, manifest)

    def _manifest(self, subject: Checkable) -> Manifest | None:
        """Return the valid manifest with the most results, or else the newest."""
        held = [
            manifest
            for name, manifest in self._store.sets(subject.key)
            if manifest.check and self._store.believes(name, manifest)
        ]
        fresh = [manifest for manifest in held if not self._has_changed(manifest, subject)]
        if fresh:
            return max(fresh, key=lambda manifest: len(_rows(manifest)))
        return held[0] if held else None

    def _own_digest(self) -> str:
        self._own = self._own or own_digest(self._context.digests.digest, _CHECKING)
        return self._own

    def _source(self, variant: Variant, built: VariantResult) -> dict[str, str]:
        tolerance = variant.tolerance
        limits = None if tolerance is None else [tolerance.rtol, tolerance.atol]
        return {
            "reference": variant.reference or "",
            "tolerance": canonical_text(limits),
            "place": f"{variant.location.line}:{variant.location.column}",
            "request": built.request_key or self._lookup.key(variant),
        }

    def _has_changed(self, manifest: Manifest, subject: Checkable) -> bool:
        """Return True if anything that the user's code read has changed."""
        place = subject.place
        if place is None:
            return False
        known = (manifest.read, place)
        if known not in self._changed:
            current = CurrentSources(place, self._context.digests, self._context.unchecked)
            self._changed[known] = current.first_change(manifest) is not None
        return self._changed[known]


def _rows(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the results in a manifest by level, dropping malformed ones."""
    try:
        rows = json.loads(manifest.check or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(rows, dict):
        return {}
    return {name: row for name, row in rows.items() if isinstance(row, dict)}


def _result(data: object, variant: Variant | None) -> LevelResult | None:
    """Return a stored result, None if it is malformed."""
    try:
        result = result_from_json(data) if isinstance(data, dict) else None
    except ValueError:
        return None
    if result is None or variant is None or not result.findings:
        return result
    return moved_to(result, variant.base_dir)
